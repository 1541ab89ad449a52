//! Requests whose fate is decided as they come, for programs that make more of them than anybody
//! could steer by hand.

use std::collections::BinaryHeap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fuser::Errno;

use super::{Held, Seen};

/// What becomes of one request.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It is done at once.
    Give,
    /// The first bytes of it are.
    CutShort(usize),
    /// It is refused.
    Fail(Errno),
    /// It is done later.
    Later(Duration),
    /// It waits for [`next_held`](super::SlowFs::next_held).
    Hold,
}

/// Asked for every read and write as it arrives, on the server's thread.
pub type Policy = Box<dyn Fn(&Seen) -> Fate + Send + Sync>;

/// Where requests wait until they are due.
pub(super) type Waiting = Sender<(Instant, Held)>;

/// Starts the thread that lets go what is due; it ends, letting all go, with the last sender.
pub(super) fn waiting_room() -> Waiting {
    let (sender, inbox) = channel();
    thread::spawn(move || release_when_due(&inbox));
    sender
}

struct Due(
    Instant,
    #[expect(dead_code, reason = "dropped, it is answered")] Held,
);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.cmp(&self.0)
    }
}

fn release_when_due(inbox: &Receiver<(Instant, Held)>) {
    let mut waiting = BinaryHeap::new();
    loop {
        let now = Instant::now();
        while waiting.peek().is_some_and(|Due(at, _)| *at <= now) {
            drop(waiting.pop());
        }
        let received = match waiting.peek() {
            Some(Due(at, _)) => inbox.recv_timeout(at.saturating_duration_since(now)),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok((at, held)) => waiting.push(Due(at, held)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
