//! A test that hangs fails by its name instead of holding up all others.

#![allow(dead_code, unreachable_pub)]

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{LazyLock, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what any of these tests takes; nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Runs a test on a thread of its own, and gives up waiting for one that hangs.
pub fn ends<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, over) = channel();
    let name = thread::current().name().map(str::to_owned);
    let thread = thread::Builder::new().name(name.unwrap_or_default());
    let running = thread.spawn(move || {
        let outcome = test();
        let _ = done.send(());
        outcome
    });
    let running = running.unwrap();
    if over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        panic!("it hangs");
    }
    running.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Those who wait patiently are woken now and then, to see how long they have waited.
static WAITING: LazyLock<Mutex<Vec<Waker>>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_secs(1));
            let waiting = std::mem::take(&mut *WAITING.lock().unwrap());
            waiting.into_iter().for_each(Waker::wake);
        }
    });
    Mutex::default()
});

/// Awaits what must come; a test in which it does not fails by its name. It asks no clock of a
/// runtime, which may be paused or not there.
pub async fn patient<T>(future: impl Future<Output = T>) -> T {
    let mut future = Box::pin(future);
    let begun = Instant::now();
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            assert!(begun.elapsed() < PATIENCE, "it hangs");
            let mut waiting = WAITING.lock().unwrap();
            if !waiting.iter().any(|known| known.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            return Poll::Pending;
        }
        polled
    })
    .await
}
