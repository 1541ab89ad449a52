//! Foreign calls that may never return, on a thread that is lost then.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use super::Absent;

/// Runs `run`, which does `what`, on a thread of that name, and waits for it. What comes later than `limit` goes to `late`,
/// on that thread.
///
/// # Errors
///
/// Why nothing is known of it: with `true` where it may still be running.
pub(super) fn watched<T: Send + 'static>(
    (name, what): (&'static str, &'static str),
    limit: Duration,
    run: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Result<T, (Absent, bool)> {
    // Without room: what nobody waits for any more is given back to the sender.
    let (answer, answered) = sync_channel(0);
    let run = move || {
        if let Err(refused) = answer.send(run()) {
            late(refused.0);
        }
    };
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    if let Err(error) = spawned {
        return Err((format!("no thread {name}: {error}").into(), false));
    }
    match answered.recv_timeout(limit) {
        Ok(value) => Ok(value),
        Err(RecvTimeoutError::Timeout) => {
            let reason = format!("libcufile did not {what} within {limit:?}");
            Err((reason.into(), true))
        }
        Err(RecvTimeoutError::Disconnected) => Err((format!("{name} panicked").into(), false)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_in_time_comes_back_and_what_is_late_is_cleared_up() {
        let in_time = watched(
            ("watched", "wait"),
            LONG,
            || 7,
            |_| panic!("it was in time"),
        );
        assert_eq!(in_time.ok(), Some(7));
        let (go, may_go) = channel::<()>();
        let (cleared, is_cleared) = channel();
        let wait = move || may_go.recv().is_ok();
        let late = move |value| cleared.send(value).unwrap();
        let (reason, may_run) =
            watched(("watched", "wait"), Duration::ZERO, wait, late).unwrap_err();
        assert!(
            may_run && reason.contains("did not wait within"),
            "{reason}"
        );
        go.send(()).unwrap();
        assert_eq!(is_cleared.recv(), Ok(true));
    }

    #[test]
    fn a_panic_is_told() {
        let broken = || -> u8 { panic!("broken") };
        let (reason, may_run) = watched(("watched", "wait"), LONG, broken, drop).unwrap_err();
        assert!(!may_run && reason.contains("panicked"), "{reason}");
    }
}
