//! An append in the long run allocates nothing on the journal's side.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::sync::Arc;

use stepwell::journal::{Journal, JournalOptions, NewRecord, NoCarry, Owner, Workers};
use stepwell::vfs::RealVfs;
use support::*;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

#[test]
fn an_append_allocates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let options = JournalOptions {
        first_capacity: 64 * 1024 * 1024,
        ..JournalOptions::default()
    };
    let owner = Owner::Session(session());
    let opening = Journal::create(Arc::new(RealVfs), folder.path(), owner, options).unwrap();
    let opening = opening.workers(Workers::manual());
    let journal = opening.begin(&[], Arc::new(NoCarry)).unwrap().0;
    for length in [512, 4096, 64 * 1024] {
        let payload = vec![7; length];
        let record = NewRecord {
            session: session(),
            payload: &payload,
        };
        let append = || assert_eq!(journal.append(&[record], None).unwrap().records.len(), 1);
        for _ in 0..10 {
            append();
        }
        let profiler = dhat::Profiler::builder().testing().build();
        let before = dhat::HeapStats::get().total_blocks;
        for _ in 0..100 {
            append();
        }
        let after = dhat::HeapStats::get().total_blocks;
        drop(profiler);
        assert_eq!(after - before, 0, "{length} bytes");
    }
}
