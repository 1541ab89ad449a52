//! Answers: what was loaded, or why not.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio_cufile::ErrorKind;

use crate::blobs::{Loaded, Refusal};

/// Seconds after which a refused client may come again.
const RETRY_AFTER: &str = "1";

const DIGEST: HeaderName = HeaderName::from_static("x-digest");
const PATHS: HeaderName = HeaderName::from_static("x-paths");
const BLOB_LENGTH: HeaderName = HeaderName::from_static("x-blob-length");

#[derive(Debug, Serialize)]
struct Description<'a> {
    name: &'a str,
    memory: &'a str,
    offset: u64,
    length: usize,
    blob_length: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    paths: BTreeMap<&'static str, u64>,
    route: String,
    /// For a buffer.
    waited_ms: f64,
    /// Opening and reading.
    took_ms: f64,
    queue_ms: f64,
    /// Summed over parts that went at once.
    io_ms: f64,
    copy_ms: f64,
}

/// What was loaded, without the bytes.
pub(crate) fn description(name: &str, memory: &str, loaded: &Loaded) -> Response {
    let receipt = &loaded.done.receipt;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    Json(Description {
        name,
        memory,
        offset: loaded.offset,
        length: loaded.length,
        blob_length: loaded.blob_length,
        digest: loaded.done.digest.map(|digest| digest.to_string()),
        paths: receipt
            .paths
            .iter()
            .map(|(path, bytes)| (path.name(), bytes))
            .collect(),
        route: receipt.route.to_string(),
        waited_ms: ms(loaded.waited),
        took_ms: ms(loaded.took),
        queue_ms: ms(receipt.queue_time),
        io_ms: ms(receipt.io_time),
        copy_ms: ms(receipt.copy_time),
    })
    .into_response()
}

/// The bytes; the rest is in the head.
pub(crate) async fn bytes(loaded: Loaded) -> Result<Response, Refusal> {
    let receipt = &loaded.done.receipt;
    let paths: Vec<_> = receipt
        .paths
        .iter()
        .map(|(path, bytes)| format!("{path}={bytes}"))
        .collect();
    let digest = loaded
        .done
        .digest
        .map_or_else(|| "none".to_owned(), |digest| digest.to_string());
    let head = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (DIGEST, digest),
        (PATHS, paths.join(", ")),
        (BLOB_LENGTH, loaded.blob_length.to_string()),
    ];
    let body = loaded.buffer.into_bytes(loaded.length).await?;
    Ok((head, body).into_response())
}

/// Why nothing was loaded.
pub(crate) fn refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Name => text(StatusCode::NOT_FOUND, "no blob can be called so"),
        Refusal::Range { blob_length } => {
            let range = [(header::CONTENT_RANGE, format!("bytes */{blob_length}"))];
            (
                range,
                text(
                    StatusCode::RANGE_NOT_SATISFIABLE,
                    "the blob does not have the range",
                ),
            )
                .into_response()
        }
        Refusal::TooLong { most } => text(
            StatusCode::BAD_REQUEST,
            &format!("at most {most} bytes at once"),
        ),
        Refusal::Full => try_later("too many requests wait"),
        Refusal::Late => text(
            StatusCode::GATEWAY_TIMEOUT,
            "the deadline passed before there was memory",
        ),
        Refusal::Library(error) => match status_of(error.kind()) {
            StatusCode::SERVICE_UNAVAILABLE => try_later(error.kind().description()),
            // Where files lie is nobody's business: the log has it.
            status => {
                if status.is_server_error() {
                    tracing::warn!(%error, "a read failed");
                }
                text(status, error.kind().description())
            }
        },
    }
}

const fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::NotFound | ErrorKind::NotRegularFile => StatusCode::NOT_FOUND,
        ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
        // The blob became shorter while it was read.
        ErrorKind::UnexpectedEof => StatusCode::RANGE_NOT_SATISFIABLE,
        ErrorKind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::QueueFull
        | ErrorKind::NoCapacity
        | ErrorKind::OutOfMemory
        | ErrorKind::TooManyOpenFiles
        | ErrorKind::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn try_later(reason: &str) -> Response {
    let retry = [(header::RETRY_AFTER, RETRY_AFTER)];
    (retry, text(StatusCode::SERVICE_UNAVAILABLE, reason)).into_response()
}

fn text(status: StatusCode, reason: &str) -> Response {
    (status, format!("{reason}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_engine_and_a_passed_deadline_have_codes_of_their_own() {
        assert_eq!(
            status_of(ErrorKind::QueueFull),
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert_eq!(
            status_of(ErrorKind::DeadlineExceeded),
            StatusCode::GATEWAY_TIMEOUT
        );
        assert_eq!(status_of(ErrorKind::NotFound), StatusCode::NOT_FOUND);
        assert_eq!(
            status_of(ErrorKind::Quarantined),
            StatusCode::INTERNAL_SERVER_ERROR
        );
        let full = refused(Refusal::Full);
        assert_eq!(full.headers()[header::RETRY_AFTER], RETRY_AFTER);
    }
}
