//! Export and import: what goes out comes in again as the same history and the same state, and what is
//! cut off or wrong leaves no session behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::io::{BufReader, Read};

use stepwell::event::{
    ContextCompacted, Control, DecodeError, Event, Gate, GateOpened, PermissionRequested, Prompt,
    Resolver, Rewound, ToolIntent, to_wire,
};
use stepwell::identity::{Cause, Coordinates, SessionId, StepId, ToolExecutionId};
use stepwell::store::{Draft, ExportError, ImportError, ImportId, ImportReport, SessionChange};
use store_support::*;

fn id() -> SessionId {
    SessionId::from_bytes([0x5e; 16])
}

fn small() -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: 4096,
            max_capacity: 4096,
            ..JournalOptions::default()
        },
        ..options()
    }
}

/// A session with all that a fold knows: keys, tools, gates that are open and answered, intents,
/// compaction, a rewind, host events, causes, an interrupted turn.
fn rich(store: &Store) -> Session {
    let session = store
        .create_session(SessionSpec::new().id(id()).title("rich"))
        .unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut side = session.create_loop(LoopSpec::new("side")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("first")).unwrap();
    let host = HostEvent {
        name: "checkpoint".into(),
        version: 3,
        data: RawJson::parse("{\"b\" :\t[1,\n 2.0],\r\n \"b\":\"\\ud83d\"}").unwrap(),
        optional: true,
    };
    turn.commit_step(
        tool_step()
            .key(Key::new("step \"1\"").unwrap())
            .host_event(host),
    )
    .unwrap();
    for number in 0..12 {
        turn.commit_step(text_step(&format!("{number} {}", "x".repeat(400))))
            .unwrap();
    }
    let last = turn.commit_last_step(text_step("done")).unwrap().seq();
    let loop_id = session.loops()[0].0;
    let compacted = ContextCompacted {
        summary: UserMessage::text("summary"),
        keep_from: last.get(),
        reason: "long".into(),
    };
    session
        .commit(vec![Draft::new(compacted).in_loop(loop_id)])
        .unwrap();
    let mut turn = main.begin_turn(UserMessage::text("second")).unwrap();
    let started = turn.started();
    turn.commit_step(text_step("to be left")).unwrap();
    turn.finish().unwrap();
    let rewound = Rewound {
        to: started.get() - 1,
        reason: "wrong way".into(),
    };
    let cause = Cause {
        coordinates: Coordinates::session(id()).in_loop(loop_id),
        ..Cause::default()
    };
    session
        .commit(vec![Draft::new(rewound).in_loop(loop_id).cause(cause)])
        .unwrap();
    session
        .change(SessionChange::title("richer").label("team", "core"))
        .unwrap();
    let turn = side.begin_turn(UserMessage::text("third")).unwrap();
    let (side_id, turn_id, step) = (session.loops()[1].0, turn.id(), StepId::new());
    let execution = ToolExecutionId::new();
    let in_step = |body: Body| {
        Draft::new(body)
            .in_loop(side_id)
            .in_turn(turn_id)
            .in_step(step)
    };
    let gate = Gate {
        kind: stepwell::store::PERMISSION.into(),
        resolver: Resolver::default(),
        prompt: Some(Prompt {
            title: "may it?".into(),
            controls: vec![Control {
                action: "Approve".into(),
                ..Control::default()
            }],
            ..Prompt::default()
        }),
        id: stepwell::identity::GateId::new(),
        ..Gate::default()
    };
    let asked = PermissionRequested {
        tool_execution_id: execution,
        request: RawJson::empty_object(),
    };
    session
        .commit(vec![
            in_step(asked.into()),
            in_step(GateOpened { gate }.into()),
        ])
        .unwrap();
    let intent = ToolIntent {
        tool_execution_id: execution,
        call_id: "c".into(),
        tool_name: "rm".into(),
        ..ToolIntent::default()
    };
    session.commit(vec![in_step(intent.into())]).unwrap();
    session
}

fn export(store: &Store, id: SessionId) -> Vec<u8> {
    let mut out = Vec::new();
    let report = store.export(id, &mut out).unwrap();
    assert_eq!(report.bytes, out.len() as u64);
    assert_eq!(
        report.events,
        out.iter().filter(|byte| **byte == b'\n').count() as u64
    );
    out
}

fn events(session: &Session) -> Vec<(Seq, Event)> {
    let replay = session
        .replay(Seq::new(1))
        .map(|committed| committed.unwrap());
    replay
        .map(|committed| (committed.seq(), committed.event().clone()))
        .collect()
}

/// That two sessions are the same in all that can be seen of them.
fn same(one: &Session, other: &Session) {
    assert_eq!(events(one), events(other));
    assert_eq!(one.history().unwrap(), other.history().unwrap());
    assert_eq!(one.loops(), other.loops());
    for (loop_id, _) in one.loops() {
        assert_eq!(
            one.loop_context(loop_id).unwrap(),
            other.loop_context(loop_id).unwrap()
        );
        assert_eq!(one.turn_count(loop_id), other.turn_count(loop_id));
    }
    assert_eq!(one.open_turns(), other.open_turns());
    assert_eq!(one.pending_gates(), other.pending_gates());
    assert_eq!(one.gate_answers(), other.gate_answers());
    assert_eq!(one.metadata(), other.metadata());
    assert_eq!(
        (one.steps(), one.last_seq()),
        (other.steps(), other.last_seq())
    );
}

fn read(store: &Store, id: SessionId) -> Session {
    store.open_session(id, Mode::Read).unwrap().0
}

fn target() -> (SimVfs, Store) {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let store = store_with(&disk, small());
    (disk, store)
}

#[test]
fn an_imported_session_is_the_exported_one() {
    let (_, source) = target();
    let session = rich(&source);
    let mut live = Vec::new();
    session.export(&mut live).unwrap();
    session.close().unwrap();
    let lines = export(&source, id());
    assert_eq!(live, lines, "open or not, the lines are the same");

    let (disk, store) = target();
    let report = store.import(&lines[..], ImportId::Same).unwrap();
    assert_eq!((report.session, report.keys), (id(), 1));
    assert_eq!(report.events, source.verify(id()).unwrap().events);
    assert!(report.passed_over.is_empty() && !report.renumbered);
    // Durable, and nothing of the making is left.
    disk.power_loss(PowerLoss::DropAll);
    let store = store_with(&disk, small());
    assert_eq!(store.sessions().unwrap().len(), 1);
    let names = disk.list(Path::new("/store/sessions")).unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    let verified = store.verify(id()).unwrap();
    assert!(verified.is_intact(), "{verified:?}");
    assert_eq!(export(&store, id()), lines);
    same(&read(&source, id()), &read(&store, id()));
    // And it goes on as the first one does: the turn is closed, the gate and the effect are there.
    let go_on = |store: &Store| {
        let (session, report) = store.open_session(id(), Mode::Write).unwrap();
        assert_eq!(
            (report.open_turns.len(), report.pending_gates.len()),
            (1, 1)
        );
        assert_eq!(report.unknown_effects.len(), 1);
        // The key is known: a repeat is no second commit.
        let mut main = session.loop_by_name("main").unwrap().unwrap();
        let mut turn = main.begin_turn(UserMessage::text("again")).unwrap();
        let host = stepwell::store::Outcome::is_duplicate;
        assert!(host(
            &turn
                .commit_step(tool_step().key(Key::new("step \"1\"").unwrap()))
                .unwrap()
        ));
    };
    go_on(&source);
    go_on(&store);
}

#[test]
fn a_new_id_stands_everywhere() {
    let (_, source) = target();
    rich(&source).close().unwrap();
    let lines = export(&source, id());
    let report = source.import(&lines[..], ImportId::Fresh).unwrap();
    assert_ne!(report.session, id());
    let copy = String::from_utf8(export(&source, report.session)).unwrap();
    assert!(
        !copy.contains(&id().to_string()),
        "the old id is left somewhere"
    );
    let back = copy.replace(&report.session.to_string(), &id().to_string());
    assert_eq!(back.len(), lines.len());
    let chosen = SessionId::from_bytes([7; 16]);
    assert_eq!(
        source
            .import(&lines[..], ImportId::New(chosen))
            .unwrap()
            .session,
        chosen
    );
    assert_eq!(
        read(&source, chosen).history().unwrap().len(),
        read(&source, id()).history().unwrap().len()
    );
}

#[test]
fn an_id_that_is_taken_or_was_deleted_is_refused() {
    let (disk, store) = target();
    let session = rich(&store);
    let mut lines = Vec::new();
    session.export(&mut lines).unwrap();
    let again = || store.import(&lines[..], ImportId::Same);
    assert!(matches!(again(), Err(ImportError::AlreadyExists(found)) if found == id()));
    session.close().unwrap();
    assert!(matches!(again(), Err(ImportError::AlreadyExists(_))));
    drop(session);
    store.delete_session(id()).unwrap();
    assert!(matches!(again(), Err(ImportError::Deleted(found)) if found == id()));
    let names = disk.list(Path::new("/store/sessions")).unwrap();
    assert!(names.is_empty(), "{names:?}");
    assert!(store.sessions().unwrap().is_empty());
    store.import(&lines[..], ImportId::Fresh).unwrap();
}

fn line(kind: &str, seq: u64, rest: &str) -> String {
    format!(
        r#"{{"event_id":"55555555-5555-4555-8555-{seq:012}","created_at":"2026-11-30T10:00:00Z","session_id":"{}"{rest},"type":"{kind}","v":1}}"#,
        id()
    )
}

const LOOP: &str = r#","loop_id":"22222222-2222-4222-8222-222222222222""#;
const TURN: &str = r#","loop_id":"22222222-2222-4222-8222-222222222222","turn_id":"33333333-3333-4333-8333-333333333333""#;
const STEP: &str = r#","loop_id":"22222222-2222-4222-8222-222222222222","turn_id":"33333333-3333-4333-8333-333333333333","step_id":"44444444-4444-4444-8444-444444444444""#;

/// What another engine writes: its own kinds and live ones in between, keys in another case, a step
/// whose call has no result, and references to sequences.
fn foreign() -> Vec<String> {
    let step = format!(
        r#"{STEP},"messages":[{{"role":"assistant","blocks":[{{"ID":"x","Input":{{}},"Name":"ls","type":"tool_use"}}]}}]"#
    );
    let turn =
        format!(r#"{TURN},"message":{{"role":"user","blocks":[{{"Text":"hi","type":"text"}}]}}"#);
    vec![
        line("SessionStarted", 1, ""),
        line("LoopStarted", 2, LOOP),
        line("SessionActive", 3, ""),
        line("LoopModeChanged", 4, LOOP),
        line("TurnStarted", 5, &turn),
        line("TokenDelta", 6, STEP),
        line("LoopModeChanged", 7, LOOP),
        line("StepDone", 8, &step),
        line("TurnDone", 9, &turn.replace("user", "assistant")),
        line("WorkspaceBound", 10, ""),
        // Back to the turn's first message (5); the line before that is passed over.
        line("Rewound", 11, &format!(r#"{LOOP},"to":6"#)),
        line(
            "ContextCompacted",
            12,
            &format!(r#"{LOOP},"keep_from":5,"summary":{{"role":"user","blocks":[]}}"#),
        ),
    ]
}

#[test]
fn events_of_another_engine_are_imported_and_its_own_kinds_counted() {
    let (_, store) = target();
    let text = foreign().join("\r\n\n");
    let report = store.import(text.as_bytes(), ImportId::Same).unwrap();
    let counted: Vec<(&str, u64)> = report
        .passed_over
        .iter()
        .map(|(name, n)| (name.as_str(), *n))
        .collect();
    assert_eq!(
        counted,
        [
            ("LoopModeChanged", 2),
            ("SessionActive", 1),
            ("TokenDelta", 1),
            ("WorkspaceBound", 1)
        ]
    );
    assert_eq!(
        (report.events, report.keys, report.renumbered),
        (7, 0, true)
    );
    let session = read(&store, id());
    // 1 to 7: started, loop, turn, step, done, rewound, compacted.
    let all = events(&session);
    let kinds: Vec<Kind> = all.iter().map(|(_, event)| event.kind()).collect();
    assert_eq!(
        kinds,
        [
            Kind::SessionStarted,
            Kind::LoopStarted,
            Kind::TurnStarted,
            Kind::StepDone,
            Kind::TurnDone,
            Kind::Rewound,
            Kind::ContextCompacted
        ]
    );
    assert_eq!(all[5].1.body_as::<Rewound>().unwrap().to, 3);
    assert_eq!(all[6].1.body_as::<ContextCompacted>().unwrap().keep_from, 3);
    assert_eq!(texts(&session), ["hi"]);
    assert_eq!(
        all[3].1.header.event_id.to_string(),
        "55555555-5555-4555-8555-000000000008"
    );
}

#[test]
fn a_line_that_is_wrong_is_named_and_nothing_is_imported() {
    let good = foreign();
    let with = |at: usize, line: &str| {
        let mut lines = good.clone();
        lines[at] = line.to_owned();
        lines.join("\n")
    };
    let (disk, store) = target();
    let before = disk.files();
    let refused = |text: &str| {
        let refused = store.import(text.as_bytes(), ImportId::Same).unwrap_err();
        assert!(store.sessions().unwrap().is_empty());
        assert_eq!(
            disk.files().len(),
            before.len(),
            "something is left: {refused}"
        );
        refused
    };
    let named = |error: &ImportError, number: u64| {
        assert!(
            error.to_string().contains(&format!("line {number}")),
            "{error}"
        );
    };
    for bad in [
        "{",
        "[]",
        "nonsense",
        r#"{"v":1}"#,
        r#"{"type":"StepDone","v":2}"#,
        "{\"type\":\"\u{0}\"}",
    ] {
        let error = refused(&with(7, bad));
        assert!(
            matches!(error, ImportError::Line { line: 8, .. }),
            "{bad}: {error:?}"
        );
        named(&error, 8);
    }
    // A kind of ours that breaks its own rules, and one cut short.
    let no_loop = line("LoopStarted", 2, "");
    assert!(matches!(
        refused(&with(1, &no_loop)),
        ImportError::Line {
            line: 2,
            source: DecodeError::Invalid(_)
        }
    ));
    let text = good.join("\n");
    assert!(matches!(
        refused(&text[..text.len() - 5]),
        ImportError::Line { line: 12, .. }
    ));
    let other = good[7].replace(&id().to_string(), "99999999-9999-4999-8999-999999999999");
    assert!(matches!(
        refused(&with(7, &other)),
        ImportError::Foreign { line: 8, .. }
    ));
    let tail = good[1..].join("\n");
    assert!(matches!(
        refused(&tail),
        ImportError::NotTheBeginning {
            line: 1,
            found: Kind::LoopStarted
        }
    ));
    assert!(matches!(refused("\n\n"), ImportError::Empty));
    assert!(matches!(refused(""), ImportError::Empty));
    let numbered =
        |seq: u64, text: &str| text.replacen('{', &format!("{{\"journal_seq\":{seq},"), 1);
    let backwards = [numbered(5, &good[0]), numbered(5, &good[1])].join("\n");
    assert!(matches!(
        refused(&backwards),
        ImportError::OutOfOrder { line: 2, seq: 5 }
    ));
    // A line that says two things.
    let (_, source) = target();
    rich(&source).close().unwrap();
    let lines = String::from_utf8(export(&source, id())).unwrap();
    assert!(
        lines.contains(r#""record":""#),
        "line breaks in opaque JSON need the record"
    );
    let forged = lines.replacen(r#""name":"checkpoint""#, r#""name":"something""#, 1);
    assert!(matches!(refused(&forged), ImportError::Line { .. }));
}

/// A text that never ends, of which only so much is read.
struct Endless {
    read: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        buffer.fill(b'x');
        self.read += buffer.len();
        assert!(self.read < 128 << 20, "a line of any length is read");
        Ok(buffer.len())
    }
}

#[test]
fn a_line_without_end_ends() {
    let (_, store) = target();
    let endless = BufReader::with_capacity(1 << 20, Endless { read: 0 });
    let refused = store.import(endless, ImportId::Same).unwrap_err();
    assert!(
        matches!(refused, ImportError::LineTooLong { line: 1, .. }),
        "{refused}"
    );
}

/// Names of kinds beyond any number are counted, not kept.
#[test]
fn hostile_names_of_kinds_need_no_memory() {
    let (_, store) = target();
    let mut lines = vec![line("SessionStarted", 1, "")];
    lines.extend((0..2000).map(|number| format!(r#"{{"type":"Kind{number}"}}"#)));
    lines.push(format!(r#"{{"type":"{}"}}"#, "y".repeat(10_000)));
    let report = store
        .import(lines.join("\n").as_bytes(), ImportId::Same)
        .unwrap();
    assert_eq!(report.passed_over.len(), 257);
    assert_eq!(report.passed_over.values().sum::<u64>(), 2001);
    assert_eq!(report.passed_over["(other kinds)"], 2001 - 256);
}

#[test]
fn an_export_of_a_damaged_session_says_where_it_ends() {
    let (disk, source) = target();
    rich(&source).close().unwrap();
    let whole = String::from_utf8(export(&source, id())).unwrap();
    let view = source.journal_view(id()).unwrap();
    let entries: Vec<_> = view
        .read(stepwell::journal::Lsn::ZERO)
        .map(Result::unwrap)
        .collect();
    let mut damaged = 0;
    for entry in entries.iter().filter(|entry| entry.seq > Seq::ZERO) {
        let image = disk.snapshot();
        let segment = image.files().into_iter().map(|(path, _)| path);
        let name = entry.position.segment.to_string();
        let path = segment
            .into_iter()
            .find(|path| path.ends_with(&name))
            .unwrap();
        image.flip_byte(&path, entry.position.offset + 90).unwrap();
        let store = store_with(&image, small());
        let mut out = Vec::new();
        let error = store.export(id(), &mut out).unwrap_err();
        let after = match &error {
            ExportError::Unreadable { after, .. } | ExportError::Damaged { after, .. } => *after,
            other => panic!("{other}"),
        };
        assert_eq!(after.next(), entry.seq, "{error}");
        // Open for reading it ends in the same way.
        let (session, _) = store.open_session(id(), Mode::Read).unwrap();
        let mut again = Vec::new();
        assert_eq!(session.export(&mut again).unwrap_err(), error);
        assert_eq!(again, out);
        assert!(
            whole.as_bytes().starts_with(&out),
            "what was written is right"
        );
        assert_eq!(
            out.iter().filter(|byte| **byte == b'\n').count() as u64,
            after.get()
        );
        damaged += 1;
    }
    assert_eq!(damaged, whole.lines().count());
    assert!(matches!(
        source.export(SessionId::from_bytes([9; 16]), &mut Vec::new()),
        Err(ExportError::Journal(
            stepwell::journal::OpenError::NotFound { .. }
        ))
    ));
}

/// A crash before every call of an import that changes the disk, and every kind of power loss behind
/// it: there is no session, or all of it; and the next opening removes what is left.
#[test]
fn an_import_that_is_cut_off_leaves_no_session() {
    let (_, source) = target();
    rich(&source).close().unwrap();
    let lines = export(&source, id());
    let fresh = || target().0;
    let whole = {
        let disk = fresh();
        let store = store_with(&disk, small());
        disk.set_tracing(true);
        store.import(&lines[..], ImportId::Same).unwrap();
        disk.trace()
            .iter()
            .filter(|call| call.op.changes_disk())
            .count() as u64
    };
    assert!(whole > 20);
    let (mut none, mut all) = (0, 0);
    for calls in 0..whole {
        let disk = fresh();
        let store = store_with(&disk, small());
        disk.crash_after(calls);
        // What is left to be cleared away at the end fails nothing.
        let done = store.import(&lines[..], ImportId::Same).is_ok();
        assert!(!done || calls > whole - 3, "{calls}");
        drop(store);
        for loss in [
            None,
            Some(PowerLoss::DropAll),
            Some(PowerLoss::KeepAll),
            Some(PowerLoss::Seeded(calls)),
        ] {
            let image = disk.snapshot();
            match loss {
                Some(loss) => image.power_loss(loss),
                None => image.kill(),
            }
            let store = store_with(&image, small());
            let sessions = store.sessions().unwrap();
            match sessions.len() {
                0 => {
                    assert!(!done, "call {calls}, {loss:?}");
                    none += 1;
                    // A later import finds the way free, and sweeps.
                    let report: ImportReport = store.import(&lines[..], ImportId::Same).unwrap();
                    assert_eq!(report.session, id());
                }
                _ => {
                    all += 1;
                    store.import(&lines[..], ImportId::Fresh).unwrap();
                    store
                        .delete_session(
                            store
                                .sessions()
                                .unwrap()
                                .iter()
                                .map(|entry| entry.id)
                                .find(|found| *found != id())
                                .unwrap(),
                        )
                        .unwrap();
                }
            }
            assert_eq!(export(&store, id()), lines, "call {calls}");
            let mut names: Vec<String> = image
                .list(Path::new("/store/sessions"))
                .unwrap()
                .into_iter()
                .map(|entry| entry.name)
                .collect();
            names.retain(|name| *name != id().to_string());
            assert!(names.is_empty(), "call {calls}: {names:?}");
        }
    }
    assert!(none > 20 && all > 0, "{none} {all}");
}

/// One that is under way is not swept by another.
#[test]
fn an_import_under_way_is_left_alone() {
    struct Slow<'a>(&'a [u8], SimVfs, bool);
    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() && !std::mem::replace(&mut self.2, true) {
                // All lines but the last batch are written; another process imports meanwhile.
                let other = store_with(&self.1.new_process(), small());
                let text = foreign().join("\n");
                other
                    .import(
                        text.as_bytes(),
                        ImportId::New(SessionId::from_bytes([8; 16])),
                    )
                    .unwrap();
            }
            let length = self.0.len().min(buffer.len()).min(4096);
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }
    let (disk, store) = target();
    let mut lines = vec![line("SessionStarted", 1, "")];
    lines.extend((2..600).map(|number| line("HostEvent", number, r#","name":"x","data":1"#)));
    let text = lines.join("\n");
    let slow = BufReader::new(Slow(text.as_bytes(), disk.clone(), false));
    let report = store.import(slow, ImportId::Same).unwrap();
    assert_eq!(report.events, 599);
    assert_eq!(store.sessions().unwrap().len(), 2);
    assert!(store.verify(id()).unwrap().is_intact());
}

/// The events of another engine, where they are at hand.
#[test]
fn the_samples_of_another_engine_are_imported() {
    #[derive(serde::Deserialize)]
    struct Golden {
        wire: String,
    }
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let Ok(examples) = std::fs::read_to_string(shared.join("wire-examples.jsonl")) else {
        return;
    };
    // Lines behind the events are of other forms: commands and records of its journal.
    let events: Vec<&str> = examples
        .lines()
        .filter(|line| line.contains("event_id"))
        .collect();
    let (_, store) = target();
    let report = store
        .import(events.join("\n").as_bytes(), ImportId::Fresh)
        .unwrap();
    assert!(report.events > 15, "{report:?}");
    assert!(store.verify(report.session).unwrap().is_intact());
    let Ok(golden) = std::fs::read_to_string(shared.join("wire-golden.jsonl")) else {
        return;
    };
    let mut lines: Vec<String> = golden
        .lines()
        .map(|line| serde_json::from_str::<Golden>(line).unwrap().wire)
        .filter(|line| line.contains("event_id"))
        .collect();
    lines.sort_by_key(|line| !line.contains(r#""type":"SessionStarted""#));
    let report = store
        .import(lines.join("\n").as_bytes(), ImportId::Fresh)
        .unwrap();
    assert!(report.events > 15, "{report:?}");
    let unread = |line: &String| stepwell::event::from_wire(line.as_bytes()).is_err();
    assert_eq!(
        report.passed_over.values().sum::<u64>() + report.events,
        lines.len() as u64
    );
    assert!(
        lines.iter().filter(|line| unread(line)).count() as u64
            <= report.passed_over.values().sum()
    );
    assert!(to_wire(&events_of(&store, report.session)[0]).is_ok());
}

fn events_of(store: &Store, id: SessionId) -> Vec<Event> {
    let all = events(&read(store, id));
    all.into_iter().map(|(_, event)| event).collect()
}
