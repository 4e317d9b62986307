//! An embedded, crash-safe, event-sourced store for agent loops, with its own journal.

pub mod identity;
pub mod journal;
pub mod vfs;
