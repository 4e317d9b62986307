//! The tests of large bodies once more, over the layout with one journal for all sessions: `store_support`
//! gives that layout to a test crate of this name.
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

#[path = "store_blobs.rs"]
mod store_blobs;
#[path = "store_blobs_crash.rs"]
mod store_blobs_crash;
mod store_support;
