//! The journal over the simulated disk, against the test's own books.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod books;
mod counts;
mod process;
mod random;
mod rng;
mod rot;
mod site;
mod steps;
mod world;
