//! What the server and the test share.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::Receiver;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use fuser::Errno;

use super::held::{Held, Order};
use super::{Kind, Seen};

#[derive(Default)]
pub(super) struct State {
    pub(super) content: Vec<u8>,
    pub(super) log: Vec<Seen>,
    pub(super) holding: BTreeSet<Kind>,
    pub(super) failures: VecDeque<(Kind, Errno)>,
    pub(super) held: VecDeque<Held>,
}

pub(super) struct Control {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl Control {
    pub(super) fn new(content: Vec<u8>) -> Self {
        let state = State {
            content,
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn carry_out(&self, inbox: &Receiver<Order>) {
        for order in inbox {
            match order {
                Order::Give(seen, answer) => answer.give(&seen, &mut self.lock().content),
                Order::Fail(errno, answer) => answer.fail(errno),
            }
        }
    }
}
