//! The tests of the store once more, over the layout with one journal for all sessions:
//! `store_support` gives that layout to a test crate of this name. What speaks of the files of one
//! session says so and is passed over.
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

#[path = "store_awaits.rs"]
mod store_awaits;
#[path = "store_behind.rs"]
mod store_behind;
#[path = "store_boundary.rs"]
mod store_boundary;
#[path = "store_flight.rs"]
mod store_flight;
#[path = "store_gates.rs"]
mod store_gates;
#[path = "store_history.rs"]
mod store_history;
#[path = "store_keys.rs"]
mod store_keys;
#[path = "store_metadata.rs"]
mod store_metadata;
#[path = "store_observers.rs"]
mod store_observers;
#[path = "store_open.rs"]
mod store_open;
#[path = "store_restore.rs"]
mod store_restore;
#[path = "store_rewind.rs"]
mod store_rewind;
mod store_support;
