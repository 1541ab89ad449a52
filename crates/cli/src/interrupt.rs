//! Ctrl-C and a polite kill, where something has to be put right first.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// From now on the two signals do not end the process: whoever has this looks after them.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Resolves when one has come since [`listen`](Self::listen).
    pub(crate) async fn next(&mut self) {
        poll_fn(|cx| {
            let came = self.interrupt.poll_recv(cx).is_ready();
            if came || self.terminate.poll_recv(cx).is_ready() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}
