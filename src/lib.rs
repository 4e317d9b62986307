//! An embedded, crash-safe, event-sourced store for agent loops, with its own journal.

pub mod content;
pub mod event;
pub mod identity;
pub mod journal;
#[cfg(feature = "runtime")]
pub mod runtime;
pub mod store;
pub mod vfs;

pub use store::{Session, Store};
