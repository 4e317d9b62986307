//! The locks of the store, the journal and the runtime: the standard library's, or, when schedules are
//! model-checked (`--cfg shuttle`), those of the model checker, which decides who gets them next.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub(crate) use std::thread_local;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;
