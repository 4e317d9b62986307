//! Export and import need memory for a few lines, opening and reading for a few records, however long
//! the session is.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::io::{BufReader, BufWriter};

use stepwell::content::{AssistantMessage, UserMessage};
use stepwell::journal::Seq;
use stepwell::store::{
    HistoryPage, ImportId, LoopSpec, Mode, SessionSpec, StepDraft, Store, StoreOptions,
};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const MIB: usize = 1 << 20;
/// A session of so many mebibytes.
const SIZE: usize = 12;
/// What may be held at once beyond what was held before. The whole history would be more.
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
    let opening = |mode| peak(|| drop(store.open_session(id, mode).unwrap()));
    let (reading, writing) = (opening(Mode::Read), opening(Mode::Write));
    assert!(reading < MIB && writing < MOST, "{reading} {writing}");
    let (session, _) = store.open_session(id, Mode::Read).unwrap();
    let streaming = peak(|| {
        let mut items = session.read_history(Seq::new(1));
        assert!(items.all(|item| item.is_ok()));
    });
    let last = HistoryPage::last(4);
    let page = peak(|| assert_eq!(session.history_page(last).unwrap().len(), 4));
    assert!(streaming < MOST && page < MOST, "{streaming} {page}");
    // The measure is one: the history is all of it. A context of this size is kept, a larger one not.
    let history = peak(|| drop(session.history().unwrap()));
    assert!(history > SIZE * MIB, "{history}");
    let main = session.loops()[0].0;
    for (room, most) in [(2 * SIZE, 2 * SIZE), (SIZE / 2, 1)] {
        let options = StoreOptions {
            context_bytes: room * MIB,
            ..StoreOptions::default()
        };
        let store = Store::open_with(folder.path().join("store"), options).unwrap();
        let profiler = dhat::Profiler::builder().testing().build();
        let (session, _) = store.open_session(id, Mode::Read).unwrap();
        assert_eq!(session.loop_context(main).unwrap().len(), SIZE * 4 + 1);
        let held = dhat::HeapStats::get().curr_bytes;
        drop(profiler);
        assert!(held < most * MIB, "{held} of {room} MiB");
        assert_eq!(held > SIZE * MIB, room > SIZE, "{held} of {room} MiB");
    }
}
