//! A fork as the first version of the format writes it must stay readable for ever.
//!
//! The store under `tests/golden/v1-fork` was written once by this file, run with
//! `STEPWELL_WRITE_GOLDEN_FORK=DIR cargo test --test golden_fork`: a session that was forked within a
//! segment, and whose parent was deleted, so that its files have one name again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::path::{Path, PathBuf};

use stepwell::content::{AssistantMessage, UserMessage};
use stepwell::event::Key;
use stepwell::identity::SessionId;
use stepwell::journal::{JournalOptions, JournalView, Owner, Seq};
use stepwell::store::{ForkSpec, LoopSpec, Mode, SessionSpec, StepDraft, Store, StoreOptions};
use stepwell::vfs::RealVfs;

fn id(last: u8) -> SessionId {
    format!("0a0b0c0d-0000-4000-8000-0000000000{last:02}")
        .parse()
        .unwrap()
}

fn options() -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: 4096,
            max_capacity: 4096,
            ..JournalOptions::default()
        },
        workers: stepwell::journal::Workers::manual(),
        ..StoreOptions::default()
    }
}

fn said(text: &str) -> StepDraft {
    StepDraft::new(AssistantMessage::text(format!(
        "{text} {}",
        "x".repeat(400)
    )))
}

fn write(dir: &Path) {
    let store = Store::open_with(dir, options()).unwrap();
    let parent = store
        .create_session(SessionSpec::new().id(id(1)).title("golden"))
        .unwrap();
    let mut main = parent.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("first")).unwrap();
    let keyed = said("once").key(Key::new("golden-key").unwrap());
    turn.commit_step(keyed).unwrap();
    let mut at = Seq::ZERO;
    for number in 0..12 {
        let step = turn.commit_step(said(&format!("step {number}"))).unwrap();
        if number == 6 {
            at = step.seq();
        }
    }
    let spec = ForkSpec::at(at).id(id(2)).title("a golden fork");
    let (child, _) = store.fork(id(1), spec).unwrap();
    let mut own = child.loop_by_name("main").unwrap().unwrap();
    let turn = own.begin_turn(UserMessage::text("second")).unwrap();
    turn.commit_last_step(said("its own")).unwrap();
    drop((own, child, main, parent));
    store.delete_session(id(1)).unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn a_fork_of_the_first_format_version_reads_and_goes_on() {
    if let Some(dir) = std::env::var_os("STEPWELL_WRITE_GOLDEN_FORK") {
        write(Path::new(&dir));
    }
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1-fork");
    let store = Store::open_existing(&golden).unwrap();
    assert!(store.verify(id(2)).unwrap().is_intact());
    let view = JournalView::open(std::sync::Arc::new(RealVfs), &store.session_dir(id(2))).unwrap();
    assert_eq!(view.owner(), Owner::Session(id(2)));
    let copied = tempfile::tempdir().unwrap();
    copy(&golden, copied.path());
    let store = Store::open_with(copied.path(), options()).unwrap();
    let (session, report) = store.open_session(id(2), Mode::Write).unwrap();
    assert!(report.is_clean() && report.open_turns.is_empty());
    // Started, loop, turn, the keyed step, and seven more.
    assert_eq!(
        session.forked_from().map(|from| (from.parent, from.at)),
        Some((id(1), Seq::new(11)))
    );
    assert_eq!(session.title().as_deref(), Some("a golden fork"));
    let history = session.history().unwrap();
    assert_eq!(history.len(), 1 + 1 + 7 + 1 + 1);
    let first = |index: usize| {
        history[index]
            .message
            .to_text()
            .chars()
            .take(7)
            .collect::<String>()
    };
    assert_eq!(
        ["first", "once xx", "step 6 ", "second"],
        [0, 1, 8, 9].map(first)[..]
    );
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main.begin_turn(UserMessage::text("again")).unwrap();
    let repeated = turn.commit_step(said("once").key(Key::new("golden-key").unwrap()));
    assert!(repeated.unwrap().is_duplicate());
    turn.commit_step(said("and on")).unwrap();
}
