//! A service that reads named blobs, files of one folder, into GPU or host memory.
//!
//! `cargo run --release --example service -- FOLDER [--device cuda:0]`
//!
//! ```text
//! GET /blobs/NAME?offset=0&length=4096    read, digested; answered as JSON
//!                                         also digest=crc32c|xxh3|blake3|none, deadline_ms=,
//!                                         priority=urgent|normal|bulk, bytes=true for the bytes
//! GET /metrics                            for Prometheus
//! GET /healthz
//! ```
//!
//! | answer | when |
//! |---|---|
//! | 400, 404, 416 | the query cannot be right; no such blob; the blob does not have the range |
//! | 503, `Retry-After` | more requests wait than `--waiting-max`, or than the engine admits |
//! | 504 | the deadline passed: waiting for memory, or reading |
//!
//! Memory is bounded: every read goes into a buffer of one pool, at most `--memory` in all, and a
//! buffer comes back when its answer has been sent. However many requests wait, they hold none.
//! A client that hangs up drops the future of its read; the buffer comes back when the disk and the
//! device are done with it. `RUST_LOG` says what is logged; SIGTERM or Ctrl-C ends the service in
//! order.

mod answer;
mod blobs;
mod http;
#[cfg(test)]
mod load;
mod pool;
mod telemetry;
#[cfg(test)]
mod terminated;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_cufile::Engine;
use tracing_subscriber::EnvFilter;

use crate::blobs::{Blobs, Limits};
use crate::pool::Place;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves the files of a folder out of GPU or host memory.
#[derive(Debug, Parser)]
struct Args {
    /// The folder with the blobs
    folder: PathBuf,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Which memory to read into: host or cuda:N
    #[arg(long, default_value = "host")]
    device: Place,
    /// Bytes of all buffers together
    #[arg(long, default_value_t = 256 << 20)]
    memory: usize,
    /// Bytes of one buffer, the most that one request reads
    #[arg(long, default_value_t = 4 << 20)]
    buffer: usize,
    /// Requests that may wait or be served at once; one more is answered with 503
    #[arg(long, default_value_t = 16_384)]
    waiting_max: usize,
    /// For requests that name no deadline
    #[arg(long, default_value_t = 30_000)]
    deadline_ms: u64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    serve(Args::parse()).await
}

/// Until it is asked to end.
async fn serve(args: Args) -> Result<(), Failure> {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .init();
    let recorder = telemetry::install()?;

    let engine = Engine::from_env()?.build().await?;
    let limits = Limits {
        memory: args.memory,
        buffer: args.buffer,
        waiting_max: args.waiting_max,
        deadline: Duration::from_millis(args.deadline_ms),
    };
    let blobs = Arc::new(Blobs::new(&engine, args.folder, args.device, limits).await?);
    let listener = TcpListener::bind(args.listen).await?;
    tracing::info!(
        address = %listener.local_addr()?,
        memory = blobs.pool().place_name(),
        budget = blobs.pool().capacity(),
        "serving"
    );
    axum::serve(listener, http::router(Arc::clone(&blobs), recorder))
        .with_graceful_shutdown(asked_to_end())
        .await?;

    drop(blobs);
    let report = engine.shutdown().await;
    tracing::info!(?report, "ended");
    Ok(())
}

/// Ctrl-C, or what a supervisor sends.
async fn asked_to_end() {
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate => {}
    }
    tracing::info!("ending: answering what has been asked");
}
