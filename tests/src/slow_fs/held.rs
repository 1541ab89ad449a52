//! Requests that wait for a test to let them go, and their answers.

use std::fmt;
use std::sync::mpsc::Sender;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, FopenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite,
};

use super::Seen;
use super::server::attributes;

/// A request that waits for its answer. Dropped, it is answered as [`release`](Self::release) does.
#[must_use = "dropped, it is answered"]
pub struct Held {
    seen: Seen,
    answer: Option<Answer>,
    orders: Sender<Order>,
}

pub(super) enum Answer {
    Data(ReplyData),
    Written(ReplyWrite, Vec<u8>),
    Empty(ReplyEmpty),
    Opened(ReplyOpen),
    Resized(ReplyAttr, u64),
}

impl Held {
    pub(super) const fn new(seen: Seen, answer: Answer, orders: Sender<Order>) -> Self {
        Self {
            seen,
            answer: Some(answer),
            orders,
        }
    }

    /// What is asked.
    #[must_use]
    pub const fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Does what is asked.
    pub fn release(self) {
        drop(self);
    }

    /// Does it for the first `len` bytes only.
    pub fn cut_short(mut self, len: usize) {
        self.seen.len = len;
        drop(self);
    }

    /// Refuses.
    pub fn fail(mut self, errno: Errno) {
        if let Some(answer) = self.answer.take() {
            order(&self.orders, Order::Fail(errno, answer));
        }
    }
}

fn order(orders: &Sender<Order>, order: Order) {
    if let Err(undone) = orders.send(order) {
        // The server is gone. Here its replies would write to somebody else's descriptor.
        #[expect(clippy::disallowed_methods, reason = "see above")]
        std::mem::forget(undone);
    }
}

impl Answer {
    pub(super) fn fail(self, errno: Errno) {
        match self {
            Self::Data(reply) => reply.error(errno),
            Self::Written(reply, _) => reply.error(errno),
            Self::Empty(reply) => reply.error(errno),
            Self::Opened(reply) => reply.error(errno),
            Self::Resized(reply, _) => reply.error(errno),
        }
    }

    pub(super) fn give(self, seen: &Seen, content: &mut Vec<u8>) {
        let at = usize::try_from(seen.offset).unwrap_or(usize::MAX);
        match self {
            Self::Data(reply) => {
                let end = at.saturating_add(seen.len).min(content.len());
                reply.data(content.get(at..end).unwrap_or_default());
            }
            Self::Written(reply, mut data) => {
                data.truncate(seen.len);
                let end = at + data.len();
                content.resize(content.len().max(end), 0);
                content[at..end].copy_from_slice(&data);
                reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
            }
            Self::Empty(reply) => reply.ok(),
            Self::Opened(reply) => reply.opened(
                FileHandle(0),
                FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            ),
            Self::Resized(reply, size) => {
                content.resize(usize::try_from(size).unwrap_or(usize::MAX), 0);
                reply.attr(&Duration::ZERO, &attributes(size));
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            order(&self.orders, Order::Give(self.seen.clone(), answer));
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.seen.fmt(f)
    }
}
/// What a test wants done with a held request, for a thread of the server to do.
pub(super) enum Order {
    Give(Seen, Answer),
    Fail(Errno, Answer),
}
