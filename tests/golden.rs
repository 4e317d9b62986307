//! A store written by the first version of the format must stay readable for ever.
//!
//! The store under `tests/golden/v1` was written once by this file, run with
//! `STEPWELL_WRITE_GOLDEN=DIR cargo test --test golden`; a new format version gets a folder of its
//! own, and the old ones are never written again. `tests/golden/v1-gates` has the kinds that came
//! later: gates, their answers, intents (`STEPWELL_WRITE_GOLDEN_GATES=DIR`); `tests/golden/v1-metadata`
//! has changes of a session's title, labels and data, in a carry record too, and a tombstone
//! (`STEPWELL_WRITE_GOLDEN_METADATA=DIR`). `tests/golden/v1-carry` has carry records of version 2
//! (`STEPWELL_WRITE_GOLDEN_CARRY=DIR`); those of the others are of version 1, which an opening reads past. A
//! fork is in `tests/golden/v1-fork` (`golden_fork.rs`). `tests/golden/v1-blobs` has bodies in files of
//! their own (`STEPWELL_WRITE_GOLDEN_BLOBS=DIR`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::path::{Path, PathBuf};

use stepwell::content::{AssistantMessage, RawJson, ToolResultMessage, UserMessage};
use stepwell::event::{
    ContextCompacted, Control, Gate, GateOpened, Key, Kind, PermissionRequested, Prompt, Resolver,
    Rewound, ToolIntent, ToolIntentSettled,
};
use stepwell::identity::{SessionId, StepId, ToolExecutionId};
use stepwell::journal::{FrameKind, JournalOptions, Lsn, Seq};
use stepwell::store::{
    Answer, AnswerError, Draft, GatedCall, LoopSpec, Metadata, Mode, PERMISSION, Session,
    SessionChange, SessionError, SessionSpec, StepDraft, Store, StoreOptions,
};

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
    let history = session.history().unwrap();
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

fn golden_id<I: From<[u8; 16]>>(byte: u8) -> I {
    I::from([byte; 16])
}

fn golden_input() -> RawJson {
    RawJson::parse(br#"{"b":1.0,"a":1e400,"b":"\ud83d"}"#).unwrap()
}

/// Three gates, of which one is answered and used, one answered, one open; three intents, of which
/// one is settled by its step, one by a person, one by nobody; then enough that segments are sealed.
fn write_gates(dir: &Path) {
    let store = Store::open_with(dir, options()).unwrap();
    let spec = SessionSpec::new().id(id()).title("golden gates");
    let session = store.create_session(spec).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let loop_id = main.id();
    let turn = main.begin_turn(UserMessage::text("first")).unwrap();
    let turn_id = turn.id();
    drop(turn);
    let bind = |draft: Draft, step: u8| {
        let step: StepId = golden_id(step);
        draft.in_loop(loop_id).in_turn(turn_id).in_step(step)
    };
    for number in 1..=3 {
        let execution: ToolExecutionId = golden_id(number);
        let call = GatedCall {
            tool: "tool".into(),
            call_id: "call".into(),
            execution,
            input: golden_input(),
        };
        let controls = ["Approve", "Deny"].map(|action| Control {
            action: action.into(),
            label: action.into(),
        });
        let gate = Gate {
            id: golden_id(number),
            kind: PERMISSION.into(),
            resolver: Resolver::for_loop(),
            prompt: Some(Prompt {
                body: "may I?".into(),
                controls: controls.to_vec(),
                ..Prompt::default()
            }),
            restorable: true,
            payload: RawJson::from_serialize(&call).ok(),
            ..Gate::default()
        };
        let requested = PermissionRequested {
            tool_execution_id: execution,
            request: RawJson::empty_object(),
        };
        let intent = ToolIntent {
            tool_execution_id: execution,
            call_id: "call".into(),
            tool_name: "tool".into(),
            input_preview: "{".into(),
            input_bytes: 34,
        };
        let batch = vec![
            bind(Draft::new(GateOpened { gate }), number),
            bind(Draft::new(requested), number),
            bind(Draft::new(intent), number),
        ];
        session.commit(batch).unwrap();
    }
    for gate in [1, 2] {
        let answer = Answer::choose("Approve").comment("gern");
        session.answer_gate(golden_id(gate), answer).unwrap();
    }
    let call = AssistantMessage::text("x").with_tool_use("call", "tool", golden_input());
    let step = StepDraft::new(call).results([ToolResultMessage::text("call", "done")]);
    let step = step.id(golden_id(1));
    let drafts = step.into_drafts(loop_id, turn_id, main.name().clone());
    session.commit(drafts).unwrap();
    let settled = ToolIntentSettled {
        tool_execution_id: golden_id(2),
        note: "looked".into(),
    };
    session.commit(vec![bind(Draft::new(settled), 2)]).unwrap();
    // In another loop, so that the first keeps its open turn, as a kill would leave it.
    let mut other = session.create_loop(LoopSpec::new("other")).unwrap();
    let mut turn = other.begin_turn(UserMessage::text("second")).unwrap();
    for number in 0..12 {
        let text = format!("step {number} {}", "x".repeat(400));
        turn.commit_step(StepDraft::new(AssistantMessage::text(text)))
            .unwrap();
    }
    turn.finish().unwrap();
    drop((main, other, session));
}

#[test]
fn gates_answers_and_intents_of_the_first_format_version_are_read_and_go_on() {
    if let Some(dir) = std::env::var_os("STEPWELL_WRITE_GOLDEN_GATES") {
        write_gates(Path::new(&dir));
    }
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1-gates");
    let store = Store::open_existing(&golden).unwrap();
    assert!(store.verify(id()).unwrap().is_intact());
    let copied = tempfile::tempdir().unwrap();
    copy(&golden, copied.path());
    let store = Store::open_with(copied.path(), options()).unwrap();
    let (session, report) = store.open_session(id(), Mode::Write).unwrap();
    assert_eq!(report.open_turns.len(), 1);
    let [pending] = &report.pending_gates[..] else {
        panic!("{:?}", report.pending_gates);
    };
    assert_eq!(pending.gate.id, golden_id(3));
    assert_eq!(pending.call().unwrap().input, golden_input());
    let [unknown] = &report.unknown_effects[..] else {
        panic!("{:?}", report.unknown_effects);
    };
    assert_eq!(unknown.execution, golden_id(3));
    let [answer] = &session.gate_answers()[..] else {
        panic!("{:?}", session.gate_answers());
    };
    assert_eq!(answer.resolved.gate_id, golden_id(2));
    assert_eq!(answer.text().as_deref(), Some("gern"));
    let late = session.answer_gate(golden_id(1), Answer::choose("Deny"));
    assert!(matches!(late, Err(AnswerError::AlreadyAnswered { .. })));
    let answer = Answer::choose("Deny");
    session.answer_gate(golden_id(3), answer).unwrap();
    session.settle_effect(golden_id(3), "looked").unwrap();
    assert_eq!(session.unknown_effects(), []);
    assert_eq!(session.gate_answers().len(), 2);
}

/// A session whose title, labels and data are changed before segments are sealed, and one that is
/// deleted.
fn write_metadata(dir: &Path) {
    let store = Store::open_with(dir, options()).unwrap();
    let gone = SessionSpec::new().id(golden_id(9));
    store.create_session(gone).unwrap().close().unwrap();
    store.delete_session(golden_id(9)).unwrap();
    let spec = SessionSpec::new().id(id()).title("first");
    let session = store.create_session(spec).unwrap();
    let change = SessionChange::title("golden metadata").label("team", "core");
    let change = change.label("old", "1").host(golden_input());
    session.change(change).unwrap();
    let change = SessionChange::new().without_label("old");
    session.change(change).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    for number in 0..12 {
        let text = format!("step {number} {}", "x".repeat(400));
        turn.commit_step(StepDraft::new(AssistantMessage::text(text)))
            .unwrap();
    }
    turn.finish().unwrap();
    drop((main, session));
}

#[test]
fn metadata_and_tombstones_of_the_first_format_version_are_read_and_go_on() {
    if let Some(dir) = std::env::var_os("STEPWELL_WRITE_GOLDEN_METADATA") {
        write_metadata(Path::new(&dir));
    }
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1-metadata");
    let store = Store::open_existing(&golden).unwrap();
    assert!(store.verify(id()).unwrap().is_intact());
    let is_right = |found: &Metadata| {
        assert_eq!(found.title.as_deref(), Some("golden metadata"));
        assert_eq!(found.labels.len(), 1);
        assert_eq!(found.labels["team"], "core");
        assert_eq!(found.host, Some(golden_input()));
    };
    let [entry] = &store.sessions().unwrap()[..] else {
        panic!("not one session");
    };
    is_right(&entry.state.as_ref().unwrap().metadata);
    let copied = tempfile::tempdir().unwrap();
    copy(&golden, copied.path());
    let store = Store::open_with(copied.path(), options()).unwrap();
    let (session, _) = store.open_session(id(), Mode::Write).unwrap();
    is_right(&session.metadata());
    session.change(SessionChange::title("")).unwrap();
    assert_eq!(session.title(), None);
    let refused = store.create_session(SessionSpec::new().id(golden_id(9)));
    assert!(matches!(refused, Err(SessionError::Deleted(_))));
}

/// A session whose state is in its carry records: two loops of which one was compacted and rewound, a
/// gate that was answered and one that waits, keys, labels; then a kill.
fn write_carry(dir: &Path) {
    let store = Store::open_with(dir, options()).unwrap();
    let spec = SessionSpec::new().id(id()).title("golden carry");
    let session = store.create_session(spec).unwrap();
    let label = SessionChange::new().label("team", "core");
    session.change(label).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let loop_id = main.id();
    let said = |text: &str| StepDraft::new(AssistantMessage::text(text));
    let mut turn = main.begin_turn(UserMessage::text("first")).unwrap();
    let keyed = said("once").key(Key::new("golden-key").unwrap());
    turn.commit_step(keyed).unwrap();
    let to = turn.commit_step(said("kept")).unwrap().seq().get();
    turn.finish().unwrap();
    let compacted = ContextCompacted {
        summary: UserMessage::text("the summary"),
        keep_from: to,
        reason: String::new(),
    };
    session
        .commit(vec![Draft::new(compacted).in_loop(loop_id)])
        .unwrap();
    let stays = session.last_seq().get();
    let turn = main.begin_turn(UserMessage::text("gone")).unwrap();
    turn.commit_last_step(said("gone too")).unwrap();
    let rewound = Rewound {
        to: stays,
        reason: String::new(),
    };
    session
        .commit(vec![Draft::new(rewound).in_loop(loop_id)])
        .unwrap();
    let turn = main.begin_turn(UserMessage::text("asking")).unwrap();
    let in_turn = turn.id();
    drop(turn);
    for number in 1..=2 {
        let gate = Gate {
            id: golden_id(number),
            kind: PERMISSION.into(),
            resolver: Resolver::for_loop(),
            prompt: Some(Prompt {
                body: "may I?".into(),
                controls: vec![Control {
                    action: "Approve".into(),
                    label: "Approve".into(),
                }],
                ..Prompt::default()
            }),
            restorable: true,
            ..Gate::default()
        };
        let opened = Draft::new(GateOpened { gate }).in_loop(loop_id);
        let opened = opened.in_turn(in_turn).in_step(golden_id(number));
        session.commit(vec![opened]).unwrap();
    }
    session
        .answer_gate(golden_id(1), Answer::choose("Approve"))
        .unwrap();
    let mut other = session.create_loop(LoopSpec::new("other")).unwrap();
    let mut turn = other.begin_turn(UserMessage::text("second")).unwrap();
    for number in 0..12 {
        turn.commit_step(said(&format!("step {number} {}", "x".repeat(400))))
            .unwrap();
    }
    turn.finish().unwrap();
    drop((main, other, session));
}

#[test]
fn carry_records_of_the_second_version_are_started_from() {
    if let Some(dir) = std::env::var_os("STEPWELL_WRITE_GOLDEN_CARRY") {
        write_carry(Path::new(&dir));
    }
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1-carry");
    let store = Store::open_existing(&golden).unwrap();
    assert!(store.verify(id()).unwrap().is_intact());
    let carries = store.journal_view(id()).unwrap().carries().unwrap();
    let last: serde_json::Value = serde_json::from_slice(&carries.last().unwrap().1).unwrap();
    assert_eq!(last["version"], 2);
    let copied = tempfile::tempdir().unwrap();
    copy(&golden, copied.path());
    // What it says is believed without a look at what lies before: that is damaged here.
    let first = store.journal_view(id()).unwrap();
    let first = first.read(Lsn::ZERO).nth(3).unwrap().unwrap().position;
    let store = Store::open_with(copied.path(), options()).unwrap();
    let path = store.session_dir(id()).join(first.segment.to_string());
    let mut bytes = std::fs::read(&path).unwrap();
    let whole = bytes.clone();
    bytes[first.offset as usize + 100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (session, report) = store.open_session(id(), Mode::Write).unwrap();
    assert!(session.history().is_err());
    std::fs::write(&path, whole).unwrap();
    assert_eq!(session.title().as_deref(), Some("golden carry"));
    assert_eq!(session.metadata().labels["team"], "core");
    assert_eq!(report.open_turns.len(), 1);
    assert_eq!(report.open_turns[0].index, 3);
    assert_eq!(report.pending_gates.len(), 1);
    assert_eq!(session.gate_answers().len(), 1);
    let late = session.answer_gate(golden_id(1), Answer::choose("Approve"));
    assert!(matches!(late, Err(AnswerError::AlreadyAnswered { .. })));
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let context = main.context().unwrap();
    let texts: Vec<String> = context.iter().map(|message| message.to_text()).collect();
    assert_eq!(texts, ["the summary", "kept", "asking"]);
    let history = main.history().unwrap();
    let texts: Vec<String> = history.iter().map(|message| message.to_text()).collect();
    assert_eq!(texts, ["first", "once", "kept", "asking"]);
    let mut turn = main.begin_turn(UserMessage::text("again")).unwrap();
    let once = StepDraft::new(AssistantMessage::text("once"));
    let repeated = turn.commit_step(once.key(Key::new("golden-key").unwrap()));
    assert!(repeated.unwrap().is_duplicate());
    assert_eq!(session.steps(), 2 + 1 + 12);
}

/// Bodies in files of their own, of each kind that has some; one under its first name, as a kill may
/// leave it.
fn write_blobs(dir: &Path) {
    let options = StoreOptions {
        blob_threshold: 300,
        ..options()
    };
    let store = Store::open_with(dir, options).unwrap();
    let spec = SessionSpec::new().id(id()).title("golden blobs");
    let session = store.create_session(spec).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let long = |text: &str| format!("{text} {}", "x".repeat(400));
    let mut turn = main.begin_turn(UserMessage::text(long("go"))).unwrap();
    let call = AssistantMessage::text("calling").with_tool_use("call", "tool", golden_input());
    let step = StepDraft::new(call).results([ToolResultMessage::text("call", long("found"))]);
    let event = stepwell::event::HostEvent {
        name: "host".into(),
        version: 1,
        data: RawJson::from_serialize(&long("host")).unwrap(),
        optional: true,
    };
    let key = Key::new("golden-key").unwrap();
    turn.commit_step(step.key(key).host_event(event)).unwrap();
    turn.commit_last_step(StepDraft::new(AssistantMessage::text(long("done"))))
        .unwrap();
    let mut turn = main.begin_turn(UserMessage::text("again")).unwrap();
    let last = turn.commit_step(StepDraft::new(AssistantMessage::text(long("last"))));
    let last = last.unwrap();
    let blobs = store.session_dir(id()).join("blobs");
    let event = last.committed().header.event_id;
    let name = |seq: u64| format!("{seq:020}-{event}");
    let seq = last.seq().get();
    let new = blobs.join(format!("{}.new", name(seq - 1)));
    std::fs::rename(blobs.join(name(seq)), new).unwrap();
    drop(turn);
    drop((main, session));
}

#[test]
fn bodies_in_files_of_the_first_format_version_are_read_and_go_on() {
    if let Some(dir) = std::env::var_os("STEPWELL_WRITE_GOLDEN_BLOBS") {
        write_blobs(Path::new(&dir));
    }
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1-blobs");
    let long = |text: &str| format!("{text} {}", "x".repeat(400));
    let is_right = |session: &Session| {
        let history = session.history().unwrap();
        let texts: Vec<String> = history.iter().map(|item| item.message.to_text()).collect();
        let said = [long("go"), "calling".into(), long("found"), long("done")];
        assert_eq!(texts[..4], said);
        assert_eq!(texts[4..], ["again".to_owned(), long("last")]);
        let call = history[1]
            .message
            .blocks()
            .iter()
            .find_map(|block| match block {
                stepwell::content::Block::ToolUse(call) => Some(call.input.clone()),
                _ => None,
            });
        assert_eq!(call, Some(golden_input()));
    };
    let store = Store::open_existing(&golden).unwrap();
    assert!(store.verify(id()).unwrap().is_intact());
    is_right(&store.open_session(id(), Mode::Read).unwrap().0);
    let copied = tempfile::tempdir().unwrap();
    copy(&golden, copied.path());
    // With another threshold than its writer's.
    let store = Store::open_with(copied.path(), options()).unwrap();
    let (session, report) = store.open_session(id(), Mode::Write).unwrap();
    assert!(report.is_clean());
    is_right(&session);
    let names = std::fs::read_dir(store.session_dir(id()).join("blobs")).unwrap();
    let names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    // The turn, its step, the event, the last step and the end of the turn; the step of the other.
    assert_eq!(names.len(), 6);
    assert!(
        names.iter().all(|name| !name.ends_with(".new")),
        "{names:?}"
    );
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main.begin_turn(UserMessage::text("on")).unwrap();
    let call = AssistantMessage::text("calling").with_tool_use("call", "tool", golden_input());
    let step = StepDraft::new(call).results([ToolResultMessage::text("call", long("found"))]);
    let repeated = turn.commit_step(step.key(Key::new("golden-key").unwrap()));
    assert!(repeated.unwrap().is_duplicate());
}
