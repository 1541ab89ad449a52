//! Failure: under load the service loses a request, answers wrongly, or takes more memory than its
//! budget. Mechanism: buffers made for waiting requests, permits that are not given back, a refusal
//! that is none. Method: 10,000 requests at once through the router, without sockets, which would
//! measure the kernel's; while they wait, every buffer is taken. On host memory and on a device,
//! simulated, for which the test runs again in a process of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode, header};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tempfile::TempDir;
use tokio_cufile::{DigestKind, Engine, Priority};
use tower::ServiceExt;

use crate::blobs::{Blobs, Limits};
use crate::pool::{Place, Pooled};
use crate::{http, telemetry};

const REQUESTS: usize = 10_000;
const BUFFER: usize = 1 << 20;
/// 16 buffers, where 10,000 would take 10 GB.
const MEMORY: usize = 16 * BUFFER;
const BLOB: usize = 8 << 20;
/// Of a request that waits, generously: its task, its future, its answer.
const REQUEST_BYTES: u64 = 16 << 10;

struct Fixture {
    engine: Engine,
    blobs: Arc<Blobs>,
    router: Router,
    content: Vec<u8>,
    _folder: TempDir,
}

async fn fixture(place: Place, waiting_max: usize) -> Fixture {
    // Where the build lies, which is seldom a tmpfs.
    let folder = tempfile::tempdir_in(xtask::place::target()).unwrap();
    let content: Vec<u8> = (0..BLOB as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    fs::write(folder.path().join("blob"), &content).unwrap();
    let engine = Engine::builder().budget(16 << 20).build().await.unwrap();
    let limits = Limits {
        memory: MEMORY,
        buffer: BUFFER,
        waiting_max,
        // Longer than any machine takes for all of them.
        deadline: Duration::from_secs(600),
    };
    let blobs = Blobs::new(&engine, folder.path().to_owned(), place, limits).await;
    let blobs = Arc::new(blobs.unwrap());
    Fixture {
        router: http::router(Arc::clone(&blobs), recorder()),
        engine,
        blobs,
        content,
        _folder: folder,
    }
}

/// There is one in a process.
fn recorder() -> PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER
        .get_or_init(|| telemetry::install().unwrap())
        .clone()
}

impl Fixture {
    async fn get(&self, path: &str) -> Response<Body> {
        let request = Request::get(path).body(Body::empty()).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        serde_json::from_slice(&body(response).await).unwrap()
    }

    async fn status(&self, path: &str) -> StatusCode {
        self.get(path).await.status()
    }

    /// All buffers.
    async fn take_all(&self) -> Vec<Pooled> {
        let mut taken = Vec::new();
        for _ in 0..MEMORY / BUFFER {
            taken.push(self.blobs.pool().take(Priority::Urgent).await.unwrap());
        }
        taken
    }

    /// Every buffer is home again, and the engine holds nothing.
    async fn settled(&self) {
        drop(self.take_all().await);
        assert_eq!(self.blobs.pool().in_use(), 0);
        assert_eq!(self.blobs.waiting(), 0);
        let stats = self.engine.stats();
        assert_eq!(stats.operations_quarantined, 0);
        assert_eq!(stats.bytes.free, stats.bytes.capacity);
        assert_eq!(stats.slots.free, stats.slots.capacity);
    }
}

async fn body(response: Response<Body>) -> Vec<u8> {
    to_bytes(response.into_body(), usize::MAX)
        .await
        .unwrap()
        .to_vec()
}

/// Bytes in memory now, by the kernel's count.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib * 1024
}

/// Sends all requests, waits until as many wait as may, frees the memory, and counts the answers.
async fn storm(fixture: &Fixture, admitted: usize) -> BTreeMap<StatusCode, usize> {
    let taken = fixture.take_all().await;
    let before = resident();
    let most = Arc::new(AtomicU64::new(0));
    let answered = Arc::new(AtomicUsize::new(0));
    let digests = fixture.content.chunks(BUFFER).map(|part| {
        let digest = DigestKind::Xxh3.of(part);
        Arc::<str>::from(digest.to_string())
    });
    let digests: Vec<_> = digests.collect();
    let mut tasks = Vec::new();
    for number in 0..REQUESTS {
        let part = number % digests.len();
        let offset = part * BUFFER;
        let class = ["urgent", "normal", "bulk"][number % 3];
        let path = format!("/blobs/blob?offset={offset}&length={BUFFER}&priority={class}");
        let request = Request::get(path).body(Body::empty()).unwrap();
        let (router, most) = (fixture.router.clone(), Arc::clone(&most));
        let answered = Arc::clone(&answered);
        let digest = Arc::clone(&digests[part]);
        tasks.push(tokio::spawn(async move {
            let response = router.oneshot(request).await.unwrap();
            answered.fetch_add(1, Ordering::Relaxed);
            if number % 100 == 0 {
                most.fetch_max(resident(), Ordering::Relaxed);
            }
            let status = response.status();
            if status == StatusCode::SERVICE_UNAVAILABLE {
                assert!(response.headers().contains_key(header::RETRY_AFTER));
            } else {
                let answer: Value = serde_json::from_slice(&body(response).await).unwrap();
                assert_eq!(answer["length"], BUFFER, "{answer}");
                assert_eq!(answer["digest"], *digest, "{answer}");
            }
            status
        }));
    }
    // As many wait as may, and all others have been refused: one that comes later would find a place.
    while fixture.blobs.waiting() < admitted
        || answered.load(Ordering::Relaxed) < REQUESTS - admitted
    {
        tokio::task::yield_now().await;
    }
    drop(taken);
    let mut answers = BTreeMap::new();
    for task in tasks {
        *answers.entry(task.await.unwrap()).or_default() += 1;
        assert!(fixture.blobs.pool().in_use() <= MEMORY);
    }
    let grown = most
        .load(Ordering::Relaxed)
        .max(resident())
        .saturating_sub(before);
    // The buffers, the engine's slots, and what the requests themselves are.
    let budget = MEMORY as u64 + (16 << 20) + REQUESTS as u64 * REQUEST_BYTES;
    assert!(
        grown <= budget,
        "{grown} bytes above {before}, budget {budget}"
    );
    fixture.settled().await;
    answers
}

async fn ten_thousand_are_answered(place: Place) {
    let all = fixture(place, REQUESTS).await;
    let answers = storm(&all, REQUESTS).await;
    assert_eq!(answers, BTreeMap::from([(StatusCode::OK, REQUESTS)]));

    let few = fixture(place, 1_000).await;
    let answers = storm(&few, 1_000).await;
    let (ok, refused) = (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answers.values().sum::<usize>(), REQUESTS);
    assert_eq!(answers.get(&ok), Some(&1_000), "{answers:?}");
    assert_eq!(answers.get(&refused), Some(&9_000), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_waits_on_host_memory_stay_within_the_budget() {
    ten_thousand_are_answered(Place::Host).await;
}

#[test]
fn ten_thousand_waits_on_a_device_stay_within_the_budget() {
    on_simulator(
        "load::ten_thousand_waits_on_a_device_stay_within_the_budget",
        async {
            ten_thousand_are_answered(Place::Cuda(1)).await;
        },
    );
}

/// Whether this process has an environment variable.
pub(crate) fn is_set(name: &str) -> bool {
    let all = fs::read("/proc/self/environ").unwrap();
    let mut each = all.split(|&byte| byte == 0);
    each.any(|one| one.starts_with(name.as_bytes()))
}

/// Runs a test again, in a process that finds the simulated driver, and `inside` there.
fn on_simulator(name: &str, inside: impl Future<Output = ()>) {
    const INNER: &str = "SERVICE_TEST_ON_SIMULATOR";
    if is_set(INNER) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build();
        return runtime.unwrap().block_on(inside);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INNER, "1")
        .env("LD_LIBRARY_PATH", xtask::simulator::cuda().unwrap())
        .env("TOKIO_CUFILE_SIMULATE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{output:?}"
    );
}

async fn answers(place: Place) {
    let service = fixture(place, 100).await;
    let content = &service.content;
    let answer = service
        .json("/blobs/blob?offset=4097&length=100001&digest=blake3")
        .await;
    let part = &content[4097..4097 + 100_001];
    assert_eq!(answer["digest"], DigestKind::Blake3.of(part).to_string());
    assert_eq!(answer["length"], 100_001);
    assert_eq!(answer["blob_length"], BLOB);
    let paths = answer["paths"].as_object().unwrap();
    assert_eq!(
        paths.values().filter_map(Value::as_u64).sum::<u64>(),
        100_001
    );
    if place != Place::Host {
        assert!(
            answer["memory"].as_str().unwrap().contains("SIMULATED"),
            "{answer}"
        );
    }
    let response = service
        .get("/blobs/blob?offset=1&length=70000&bytes=true")
        .await;
    let digest = DigestKind::Xxh3.of(&content[1..70_001]).to_string();
    assert_eq!(response.headers()["x-digest"], digest);
    assert!(body(response).await == content[1..70_001]);
    // As much as a buffer holds.
    assert_eq!(service.json("/blobs/blob").await["length"], BUFFER);
    let end = service.json(&format!("/blobs/blob?offset={BLOB}")).await;
    assert_eq!(end["length"], 0);
    service.settled().await;
}

#[tokio::test]
async fn host_memory_has_the_bytes_of_the_blob() {
    answers(Place::Host).await;
}

#[test]
fn a_device_has_the_bytes_of_the_blob() {
    on_simulator(
        "load::a_device_has_the_bytes_of_the_blob",
        answers(Place::Cuda(0)),
    );
}

#[tokio::test]
async fn every_refusal_has_its_code() {
    let service = fixture(Place::Host, 100).await;
    fs::create_dir(folder(&service).join("folder")).unwrap();
    for (path, status) in [
        ("/blobs/missing", 404),
        ("/blobs/folder", 404),
        ("/blobs/..%2f..%2fetc%2fpasswd", 404),
        ("/blobs/%2e%2e", 404),
        ("/blobs/../blobs/blob", 404),
        ("/blobs/blob?offset=8388609", 416),
        ("/blobs/blob?offset=8388600&length=9", 416),
        ("/blobs/blob?offset=18446744073709551615&length=1", 416),
        ("/blobs/blob?length=1048577", 400),
        ("/blobs/blob?length=-1", 400),
        ("/blobs/blob?priority=now", 400),
        ("/blobs/blob?lenght=1", 400),
        ("/blobs/blob?deadline_ms=0", 504),
        ("/blobs/blob?deadline_ms=18446744073709551615", 200),
        ("/healthz", 200),
    ] {
        assert_eq!(service.status(path).await, status, "{path}");
    }
    service.settled().await;
}

fn folder(service: &Fixture) -> &Path {
    service._folder.path()
}

#[tokio::test]
async fn a_deadline_bounds_the_wait_for_memory() {
    let service = fixture(Place::Host, 100).await;
    let taken = service.take_all().await;
    assert_eq!(service.status("/blobs/blob?deadline_ms=20").await, 504);
    let request = Request::get("/blobs/blob").header("x-deadline-ms", "20");
    let request = request.body(Body::empty()).unwrap();
    let response = service.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 504);
    drop(taken);
    service.settled().await;
}

#[tokio::test]
async fn an_urgent_request_does_not_stand_behind_those_that_are_not() {
    let service = fixture(Place::Host, 100).await;
    let mut normal = Vec::new();
    // All that the others may have.
    for _ in 0..14 {
        normal.push(service.blobs.pool().take(Priority::Bulk).await.unwrap());
    }
    assert_eq!(service.status("/blobs/blob?deadline_ms=20").await, 504);
    assert_eq!(service.status("/blobs/blob?priority=urgent").await, 200);
}

#[tokio::test]
async fn a_client_that_hangs_up_costs_no_buffer() {
    let service = fixture(Place::Host, 100).await;
    for steps in 0..50 {
        let request = Request::get("/blobs/blob?digest=blake3")
            .body(Body::empty())
            .unwrap();
        let mut answer = Box::pin(service.router.clone().oneshot(request));
        for _ in 0..steps {
            if futures::poll!(&mut answer).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(answer);
    }
    service.settled().await;
}

#[tokio::test]
async fn the_numbers_are_there_for_prometheus() {
    let service = fixture(Place::Host, 100).await;
    service.json("/blobs/blob").await;
    let text = String::from_utf8(body(service.get("/metrics").await).await).unwrap();
    for name in [
        "blob_requests_total{status=\"200\"}",
        "blob_request_seconds_bucket",
        "engine_bytes_total{path=\"uring-direct\"}",
        "engine_operations{state=\"queued\"}",
        "engine_permits{resource=\"bytes\",state=\"free\"}",
        "pool_bytes{state=\"capacity\"} 16777216",
        "blob_requests_waiting 0",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
}
