//! HTTP: what is asked, and which code an outcome is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use tokio_cufile::{DigestKind, Priority};
use tracing::Instrument;

use crate::answer;
use crate::blobs::{Asked, Blobs, Refusal, Wishes};
use crate::telemetry;

/// The same deadline as in the query, for who does not write the address.
const DEADLINE_HEADER: &str = "x-deadline-ms";

#[derive(Clone, Debug)]
struct Served {
    blobs: Arc<Blobs>,
    recorder: PrometheusHandle,
}

pub(crate) fn router(blobs: Arc<Blobs>, recorder: PrometheusHandle) -> Router {
    Router::new()
        .route("/blobs/{name}", get(blob))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(Served { blobs, recorder })
}

async fn metrics(State(served): State<Served>) -> String {
    telemetry::record_state(&served.blobs);
    served.recorder.run_upkeep();
    served.recorder.render()
}

/// What may stand behind the question mark.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
    deadline_ms: Option<u64>,
    #[serde(default)]
    priority: Class,
    #[serde(default)]
    digest: Sum,
    #[serde(default)]
    bytes: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Class {
    Urgent,
    #[default]
    Normal,
    Bulk,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sum {
    Crc32c,
    #[default]
    Xxh3,
    Blake3,
    None,
}

impl Question {
    fn asked(&self, deadline: Instant) -> Asked {
        Asked {
            offset: self.offset,
            length: self.length,
            wishes: Wishes {
                deadline,
                priority: match self.priority {
                    Class::Urgent => Priority::Urgent,
                    Class::Normal => Priority::Normal,
                    Class::Bulk => Priority::Bulk,
                },
                digest: match self.digest {
                    Sum::Crc32c => Some(DigestKind::Crc32c),
                    Sum::Xxh3 => Some(DigestKind::Xxh3),
                    Sum::Blake3 => Some(DigestKind::Blake3),
                    Sum::None => None,
                },
            },
        }
    }
}

async fn blob(
    State(served): State<Served>,
    Path(name): Path<String>,
    Query(question): Query<Question>,
    headers: HeaderMap,
) -> Response {
    let start = Instant::now();
    let span = tracing::info_span!("blob", name, ?question);
    let response = async {
        let outcome = answer_question(&served.blobs, &name, &question, &headers).await;
        outcome.unwrap_or_else(|refusal| {
            tracing::debug!(?refusal, "refused");
            answer::refused(refusal)
        })
    };
    let response = response.instrument(span).await;
    telemetry::record_request(response.status(), start.elapsed());
    response
}

async fn answer_question(
    blobs: &Blobs,
    name: &str,
    question: &Question,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    let header = match headers.get(DEADLINE_HEADER) {
        None => None,
        Some(value) => match value.to_str().map(str::parse) {
            Ok(Ok(ms)) => Some(ms),
            _ => return Ok((StatusCode::BAD_REQUEST, "x-deadline-ms: a number\n").into_response()),
        },
    };
    let span = question
        .deadline_ms
        .or(header)
        .map_or_else(|| blobs.default_deadline(), Duration::from_millis);
    // Further away than the clock reaches is a day.
    let far = || Instant::now() + Duration::from_secs(86_400);
    let deadline = Instant::now().checked_add(span).unwrap_or_else(far);
    let loaded = blobs.read(name, question.asked(deadline)).await?;
    if question.bytes {
        answer::bytes(loaded).await
    } else {
        Ok(answer::description(
            name,
            blobs.pool().place_name(),
            &loaded,
        ))
    }
}
