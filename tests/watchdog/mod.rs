//! A test that hangs fails by its name instead of holding up all others.

#![allow(dead_code, unreachable_pub)]

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Far beyond what any of these tests takes; nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(60);

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
