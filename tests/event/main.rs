//! Identity, content and events: rules, codecs, and what they refuse.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "../support/events.rs"]
mod events;

mod content;
mod hostile;
mod identity;
mod raw_json;
mod record;
mod rules;
mod wire;
mod wire_reference;
