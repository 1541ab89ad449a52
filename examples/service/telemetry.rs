//! Numbers for Prometheus: requests as they end, the engine and the pool as they are when asked.

use std::time::Duration;

use axum::http::StatusCode;
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tokio_cufile::{DataPath, Permits};

use crate::blobs::Blobs;

/// Seconds.
const LATENCIES: [f64; 12] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0,
];

/// Has the process's numbers kept.
pub(crate) fn install() -> Result<PrometheusHandle, BuildError> {
    PrometheusBuilder::new()
        .set_buckets(&LATENCIES)?
        .install_recorder()
}

pub(crate) fn record_request(status: StatusCode, took: Duration) {
    let status = status.as_u16().to_string();
    counter!("blob_requests_total", "status" => status.clone()).increment(1);
    histogram!("blob_request_seconds", "status" => status).record(took.as_secs_f64());
}

pub(crate) fn record_state(blobs: &Blobs) {
    let stats = blobs.engine().stats();
    for path in DataPath::ALL {
        counter!("engine_bytes_total", "path" => path.name()).absolute(stats.paths.get(path));
    }
    counter!("engine_retries_total").absolute(stats.retries);
    counter!("engine_quarantined_total").absolute(stats.operations_quarantined);
    gauge!("engine_operations", "state" => "live").set(stats.operations_live as f64);
    gauge!("engine_operations", "state" => "queued").set(stats.operations_queued as f64);
    let permits: [(&'static str, Permits); 4] = [
        ("bytes", stats.bytes),
        ("parts", stats.parts),
        ("workers", stats.workers),
        ("slots", stats.slots),
    ];
    for (resource, permits) in permits {
        let states: [(&'static str, u64); 4] = [
            ("capacity", permits.capacity),
            ("free", permits.free),
            ("in_flight", permits.in_flight),
            ("quarantined", permits.quarantined),
        ];
        for (state, count) in states {
            let labels = [("resource", resource), ("state", state)];
            gauge!("engine_permits", &labels).set(count as f64);
        }
    }
    gauge!("pool_bytes", "state" => "capacity").set(blobs.pool().capacity() as f64);
    gauge!("pool_bytes", "state" => "in_use").set(blobs.pool().in_use() as f64);
    gauge!("blob_requests_waiting").set(blobs.waiting() as f64);
}
