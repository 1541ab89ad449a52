//! Transfers from and into memory of either kind, as one type.

use std::time::Instant;

use futures::executor::block_on;
use tokio_cufile::{Done, Error, HostBuffer, OpError, Transfer};

/// A transfer of one of the kinds of memory.
pub(super) enum Moving {
    Vec(Transfer<Vec<u8>>),
    Buffer(Transfer<HostBuffer>),
}

/// How it ended: bytes moved, memory, and why no more.
pub(super) struct Moved {
    pub(super) bytes: usize,
    pub(super) memory: Option<Vec<u8>>,
    pub(super) error: Option<Error>,
}

impl Moving {
    pub(super) fn start(self) -> Self {
        match self {
            Self::Vec(transfer) => Self::Vec(transfer.start()),
            Self::Buffer(transfer) => Self::Buffer(transfer.start()),
        }
    }

    pub(super) fn deadline(self, at: Instant) -> Self {
        match self {
            Self::Vec(transfer) => Self::Vec(transfer.deadline(at)),
            Self::Buffer(transfer) => Self::Buffer(transfer.deadline(at)),
        }
    }

    pub(super) fn cancel(&self) {
        match self {
            Self::Vec(transfer) => transfer.cancel_handle().cancel(),
            Self::Buffer(transfer) => transfer.cancel_handle().cancel(),
        }
    }

    pub(super) fn wait(self) -> Moved {
        match self {
            Self::Vec(transfer) => moved(block_on(transfer), |memory| memory),
            Self::Buffer(transfer) => moved(block_on(transfer), |memory| {
                memory.as_slice().expect("no part is out").to_vec()
            }),
        }
    }
}

fn moved<B>(result: Result<Done<B>, OpError<B>>, bytes_of: impl FnOnce(B) -> Vec<u8>) -> Moved {
    match result {
        Ok(done) => Moved {
            bytes: done.bytes,
            memory: Some(bytes_of(done.buf)),
            error: None,
        },
        Err(failed) => {
            let bytes = failed.bytes_done();
            let (error, memory) = failed.into_parts();
            Moved {
                bytes,
                memory: memory.map(bytes_of),
                error: Some(error),
            }
        }
    }
}
