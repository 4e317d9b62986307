//! The tests of the runtime once more, over the layout with one journal for all sessions:
//! `runtime_support` gives that layout to a test crate of this name.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::duplicate_mod,
    dead_code,
    unused_imports,
    missing_docs
)]

#[path = "runtime_commit.rs"]
mod runtime_commit;
#[path = "runtime_gates.rs"]
mod runtime_gates;
#[path = "runtime_hub.rs"]
mod runtime_hub;
#[path = "runtime_publication.rs"]
mod runtime_publication;
#[path = "runtime_turns.rs"]
mod runtime_turns;
