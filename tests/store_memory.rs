//! Export and import need memory for a few lines, however long the session is.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::io::{BufReader, BufWriter};

use stepwell::content::{AssistantMessage, UserMessage};
use stepwell::store::{ImportId, LoopSpec, Mode, SessionSpec, StepDraft, Store};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const MIB: usize = 1 << 20;
/// A session of so many mebibytes.
const SIZE: usize = 12;
/// What may be held at once beyond what was held before. Opening would hold the whole history.
const MOST: usize = 6 * MIB;

/// The most that was held at once in a piece of work, beyond what was held before.
fn peak(work: impl FnOnce()) -> usize {
    let profiler = dhat::Profiler::builder().testing().build();
    let before = dhat::HeapStats::get().curr_bytes;
    work();
    let peak = dhat::HeapStats::get().max_bytes - before;
    drop(profiler);
    peak
}

#[test]
fn export_and_import_hold_a_few_lines_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("store")).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    let id = session.id();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let text = "x".repeat(MIB / 4);
    for _ in 0..SIZE * 4 {
        turn.commit_step(StepDraft::new(AssistantMessage::text(&*text)))
            .unwrap();
    }
    turn.finish().unwrap();
    session.close().unwrap();
    drop((main, session, store));

    let lines = folder.path().join("lines");
    let store = Store::open(folder.path().join("store")).unwrap();
    let exporting = peak(|| {
        let mut out = BufWriter::new(std::fs::File::create(&lines).unwrap());
        store.export(id, &mut out).unwrap();
    });
    assert!(std::fs::metadata(&lines).unwrap().len() as usize > SIZE * MIB);
    let target = Store::open(folder.path().join("target")).unwrap();
    let importing = peak(|| {
        let from = BufReader::new(std::fs::File::open(&lines).unwrap());
        target.import(from, ImportId::Same).unwrap();
    });
    assert!(
        exporting < MOST && importing < MOST,
        "{exporting} {importing}"
    );
    // The measure is one: opening holds all of it.
    let opening = peak(|| drop(target.open_session(id, Mode::Read).unwrap()));
    assert!(opening > SIZE * MIB, "{opening}");
}
