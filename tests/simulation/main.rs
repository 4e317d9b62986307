//! The journal over the simulated disk, against the test's own books.
//!
//! # The oracle
//!
//! The books (`books`) are kept from what callers were told, never from what recovery computed. A
//! batch is entered before it is handed over; then it is *acknowledged*, *not committed* or
//! *unknown*. Each answer of the library is held against them:
//!
//! 1. **What was acknowledged or served never changes.** Every opening, every view and every reader,
//!    also one that was made long ago, gives all of it, in order, each record at the Lsn and the Seq
//!    that its receipt named, byte for byte (P1, P4).
//! 2. **Unknown batches are all or nothing, and those kept are a prefix** of them in the order in
//!    which they were handed over. Not committed means never seen again (P3, P7).
//! 3. **The same durable image gives the same answer.** What a power loss left is looked at once,
//!    read-only; every opening from it, also after crashes inside recovery, keeps exactly that. An
//!    opening that has decided is never taken back.
//! 4. **The true watermark is compared**, not the one that recovery computed: no report and no entry
//!    calls proven what the books have not settled, and no watermark is lower than the claims which
//!    must be on the medium by the rules of the writer.
//! 5. **A legal crash always opens** (P5). An opening, an append, a witness or a close may fail only
//!    with an excuse: a fault hit, the process crashed, the disk is full, somebody else opens, or the
//!    journal was poisoned before. A poisoned journal stays poisoned and goes on reading (P8).
//! 6. **An overtaken writer acknowledges nothing** and harms nothing, whenever it wakes up, also if
//!    the takeover happens within one of its calls (P9, W12).
//! 7. **A view opens at any moment**, also within a call of a writer or of an opening, and finds no
//!    damage where there is none.
//! 8. **Rot in acknowledged data is reported**, by the view and by the opening alike, and never hides
//!    what it did not touch (P6). The exception is the window, which is computed from the books: a
//!    record may be missing in silence only if no claim that covers it (the header of a frame of a
//!    later group, a slot, a seal, an end in the manifest) lies outside of what was damaged. How
//!    often that happens is counted. Truncated and removed files are never silent.
//! 9. **A fork is whole or absent**, and is and stays its parent up to the fork point, whatever becomes
//!    of either: the parent goes on in files that both have, is taken over, crashes, is removed.
//! 10. **No panic, bounded time, bounded disk**: the files of a journal stay within what its records
//!     and openings account for (P13, P14).
//!
//! A sync that reports success and loses data breaks what is assumed of the medium: from then on no
//! power loss is judged, but kills are (what the page cache holds is copied by the next opening).
//!
//! # Running it
//!
//! `cargo test --release --features sim --test simulation` runs the exhaustive part and 2,000 seeds.
//! `STEPWELL_SIM_SEEDS` and `STEPWELL_SIM_SEED_START` run more and others, `STEPWELL_SIM_TRACE=1`
//! prints what each seed does. A seed is one thread's and decides everything but the random bytes
//! that the library draws (log ids, fences, names of temporary files), on which nothing depends.
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
mod exhaustive;
mod fork;
mod process;
mod random;
mod rng;
mod rot;
mod site;
mod steps;
mod world;
