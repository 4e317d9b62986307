//! A store written by the first version of the format must stay readable for ever.
//!
//! The store under `tests/golden/v1` was written once by this file, run with
//! `STEPWELL_WRITE_GOLDEN=DIR cargo test --test golden`; a new format version gets a folder of its
//! own, and the old ones are never written again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::path::{Path, PathBuf};

use stepwell::content::{AssistantMessage, RawJson, ToolResultMessage, UserMessage};
use stepwell::event::{Key, Kind};
use stepwell::identity::SessionId;
use stepwell::journal::{FrameKind, JournalOptions, Lsn, Seq};
use stepwell::store::{LoopSpec, Mode, Session, SessionSpec, StepDraft, Store, StoreOptions};

fn id() -> SessionId {
    "0a0b0c0d-0000-4000-8000-00000000beef".parse().unwrap()
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

/// Two openings, a kill between them, several segments, tool input that must be kept byte for byte.
fn write(dir: &Path) {
    let store = Store::open_with(dir, options()).unwrap();
    let spec = SessionSpec::new().id(id()).title("golden");
    let session = store.create_session(spec).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("first")).unwrap();
    let input = RawJson::parse(br#"{"b":1.0,"a":1e400,"b":"\ud83d"}"#).unwrap();
    let call = AssistantMessage::text("calling").with_tool_use("call", "tool", input);
    let step = StepDraft::new(call).results([ToolResultMessage::error("call", "failed")]);
    turn.commit_step(step.key(Key::new("golden-key").unwrap()))
        .unwrap();
    drop((main, session));
    let (session, _) = store.open_session(id(), Mode::Write).unwrap();
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main.begin_turn(UserMessage::text("second")).unwrap();
    for number in 0..12 {
        let text = format!("step {number} {}", "x".repeat(400));
        turn.commit_step(StepDraft::new(AssistantMessage::text(text)))
            .unwrap();
    }
    turn.finish().unwrap();
    drop((main, session));
}

fn check(session: &Session) {
    let events: Vec<_> = session
        .replay(Seq::new(1))
        .map(|committed| committed.unwrap())
        .collect();
    let kinds: Vec<Kind> = events.iter().map(|one| one.event().kind()).collect();
    let mut expected = vec![
        Kind::SessionStarted,
        Kind::LoopStarted,
        Kind::TurnStarted,
        Kind::StepDone,
        Kind::RestoreStarted,
        Kind::TurnInterrupted,
        Kind::RestoreDone,
        Kind::TurnStarted,
    ];
    expected.extend([Kind::StepDone; 12]);
    expected.push(Kind::TurnDone);
    assert_eq!(kinds[..expected.len()], expected);
    let history = session.history();
    assert_eq!(history.len(), 1 + 2 + 1 + 12);
    let input = history[1]
        .message
        .blocks()
        .iter()
        .find_map(|block| match block {
            stepwell::content::Block::ToolUse(call) => Some(call.input.get()),
            _ => None,
        });
    assert_eq!(input, Some(r#"{"b":1.0,"a":1e400,"b":"\ud83d"}"#));
    assert_eq!(session.title().as_deref(), Some("golden"));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn the_first_format_version_reads_and_goes_on() {
    if let Some(dir) = std::env::var_os("STEPWELL_WRITE_GOLDEN") {
        write(Path::new(&dir));
    }
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    let store = Store::open_existing(&golden).unwrap();
    let (session, report) = store.open_session(id(), Mode::Read).unwrap();
    assert_eq!(report.damage, None);
    check(&session);
    let view = store.journal_view(id()).unwrap();
    let fences = view
        .read(Lsn::ZERO)
        .filter(|entry| {
            entry
                .as_ref()
                .is_ok_and(|entry| entry.kind == FrameKind::Fence)
        })
        .count();
    assert_eq!(fences, 2);
    assert!(store.verify(id()).unwrap().is_intact());

    // Writing goes on, in a copy.
    let copied = tempfile::tempdir().unwrap();
    copy(&golden, copied.path());
    let store = Store::open_with(copied.path(), options()).unwrap();
    let (session, report) = store.open_session(id(), Mode::Write).unwrap();
    assert_eq!(report.journal.cut, None);
    check(&session);
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main.begin_turn(UserMessage::text("third")).unwrap();
    let call = AssistantMessage::text("calling").with_tool_use(
        "call",
        "tool",
        RawJson::parse(br#"{"b":1.0,"a":1e400,"b":"\ud83d"}"#).unwrap(),
    );
    let step = StepDraft::new(call).results([ToolResultMessage::error("call", "failed")]);
    let repeated = turn
        .commit_step(step.key(Key::new("golden-key").unwrap()))
        .unwrap();
    assert!(repeated.is_duplicate(), "keys are kept across versions");
    assert_eq!(repeated.seq(), Seq::new(4));
}
