//! Gates without the runner: a gate is answered once, durably, whoever answers first; what a crash
//! or the end of a turn makes of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::sync::{Arc, Barrier};

use stepwell::content::{AssistantMessage, RawJson, ToolResultMessage, UserMessage};
use stepwell::event::{
    Control, Effect, ErrorKind, ErrorProjection, Gate, GateOpened, GateResolved, Kind, Limits,
    PermissionDecided, PermissionRequested, Prompt, Resolver,
};
use stepwell::identity::{AgentName, GateId, SessionId, StepId, ToolExecutionId, TurnId};
use stepwell::journal::{JournalOptions, NotCommitted, Seq};
use stepwell::store::{
    Answer, AnswerError, CommitError, Draft, GatedCall, Layout, Loop, LoopSpec, Mode, OrderError,
    PERMISSION, Refusal, Session, SessionSpec, StepDraft, Store, StoreOptions, USER_INPUT,
};
use stepwell::vfs::sim::SimVfs;

fn options() -> StoreOptions {
    StoreOptions {
        layout: match env!("CARGO_CRATE_NAME").starts_with("shared") {
            true => Layout::Shared,
            false => Layout::PerSession,
        },
        journal: JournalOptions {
            first_capacity: 16 * 1024,
            max_capacity: 16 * 1024,
            ..JournalOptions::default()
        },
        workers: stepwell::journal::Workers::manual(),
        ..StoreOptions::default()
    }
}

fn store_with(disk: &SimVfs, options: StoreOptions) -> Store {
    Store::on(Arc::new(disk.clone()), "/store", options).unwrap()
}

struct World {
    disk: SimVfs,
    store: Store,
    session: Session,
}

fn world() -> (World, Loop) {
    world_with(options())
}

fn world_with(options: StoreOptions) -> (World, Loop) {
    let disk = SimVfs::new();
    let store = store_with(&disk, options);
    let session = store.create_session(SessionSpec::new()).unwrap();
    let main = session.create_loop(LoopSpec::new("main")).unwrap();
    let world = World {
        disk,
        store,
        session,
    };
    (world, main)
}

fn call() -> GatedCall {
    GatedCall {
        tool: "bash".into(),
        call_id: "1".into(),
        execution: ToolExecutionId::new(),
        input: RawJson::parse(br#"{"b":1.0, "b":"\ud83d"}"#).unwrap(),
    }
}

fn gate(kind: &str, actions: &[&str]) -> Gate {
    let controls = actions.iter().map(|action| Control {
        action: (*action).to_owned(),
        label: String::new(),
    });
    Gate {
        id: GateId::new(),
        kind: kind.into(),
        resolver: Resolver::for_loop(),
        prompt: Some(Prompt {
            body: "may I?".into(),
            controls: controls.collect(),
            ..Prompt::default()
        }),
        restorable: true,
        payload: RawJson::from_serialize(&call()).ok(),
        ..Gate::default()
    }
}

fn permission() -> Gate {
    gate(PERMISSION, &["Approve", "Deny"])
}

/// Opens a gate in a step of a turn.
fn open(session: &Session, owner: &Owner, gate: &Gate) -> Result<(), CommitError> {
    let bind = |draft: Draft| {
        draft
            .in_loop(owner.loop_id)
            .in_turn(owner.turn)
            .in_step(owner.step)
            .agent(AgentName::from("main"))
    };
    let opened = Draft::new(GateOpened { gate: gate.clone() });
    let request = Draft::new(PermissionRequested {
        tool_execution_id: ToolExecutionId::new(),
        request: RawJson::empty_object(),
    });
    session.commit(vec![bind(opened), bind(request)]).map(drop)
}

#[derive(Clone, Copy)]
struct Owner {
    loop_id: stepwell::identity::LoopId,
    turn: TurnId,
    step: StepId,
}

/// A loop with an open turn that waits at a gate. The turn is dropped: it stays open.
fn waiting_at(session: &Session, main: &mut Loop, gates: &[Gate]) -> Owner {
    let loop_id = main.id();
    let turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let owner = Owner {
        loop_id,
        turn: turn.id(),
        step: StepId::new(),
    };
    drop(turn);
    for gate in gates {
        open(session, &owner, gate).unwrap();
    }
    owner
}

fn kinds_from(session: &Session, from: u64) -> Vec<Kind> {
    let events = session.replay(Seq::new(from));
    events.map(|event| event.unwrap().event().kind()).collect()
}

fn step_with_call() -> StepDraft {
    let message = AssistantMessage::text("x").with_tool_use("1", "bash", RawJson::empty_object());
    StepDraft::new(message).results([ToolResultMessage::text("1", "done")])
}

#[test]
fn of_answers_that_race_exactly_one_is_taken() {
    for round in 0..40 {
        let (world, mut main) = world_with(StoreOptions {
            workers: stepwell::journal::Workers::default(),
            ..options()
        });
        let gate = permission();
        waiting_at(&world.session, &mut main, std::slice::from_ref(&gate));
        let start = Arc::new(Barrier::new(8));
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let (session, start) = (world.session.clone(), start.clone());
                let action = ["Approve", "Deny"][number % 2];
                let gate = gate.id;
                std::thread::spawn(move || {
                    start.wait();
                    let answer = Answer::choose(action).comment(format!("by {number}"));
                    session.answer_gate(gate, answer)
                })
            })
            .collect();
        let answers: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        let taken: Vec<_> = answers.iter().filter_map(|it| it.as_ref().ok()).collect();
        assert_eq!(taken.len(), 1, "round {round}: {answers:?}");
        let at = taken[0].seq();
        for answer in &answers {
            let late = AnswerError::AlreadyAnswered { gate: gate.id, at };
            assert!(answer.is_ok() || *answer == Err(late), "{answer:?}");
        }
        let resolved = kinds_from(&world.session, 1)
            .into_iter()
            .filter(|kind| *kind == Kind::GateResolved);
        assert_eq!(resolved.count(), 1);
        assert_eq!(world.session.pending_gates(), []);
        let kept = world.session.gate_answers();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].resolved, taken[0].event().body);
    }
}

#[test]
fn an_answer_must_be_one_of_those_that_are_offered() {
    let (world, mut main) = world();
    let (choice, free) = (permission(), gate(USER_INPUT, &[]));
    let pick = gate(USER_INPUT, &["red", "blue"]);
    waiting_at(
        &world.session,
        &mut main,
        &[choice.clone(), free.clone(), pick.clone()],
    );
    let session = &world.session;
    let before = session.last_seq();
    let refused = [
        (&choice, Answer::choose("approve")),
        (&choice, Answer::choose("")),
        (&choice, Answer::text("Approve")),
        (&pick, Answer::text("green")),
        (&free, Answer::choose("red")),
        (&free, Answer::choose("")),
    ];
    for (gate, answer) in refused {
        let error = session.answer_gate(gate.id, answer).unwrap_err();
        assert!(matches!(error, AnswerError::NotOffered { .. }), "{error}");
    }
    let long = "ä".repeat(32 * 1024 + 1);
    assert_eq!(
        session.answer_gate(free.id, Answer::text(long)),
        Err(AnswerError::TooLong {
            got: 64 * 1024 + 2,
            max: 64 * 1024
        })
    );
    let nobody = GateId::new();
    assert_eq!(
        session.answer_gate(nobody, Answer::choose("Approve")),
        Err(AnswerError::UnknownGate(nobody))
    );
    assert_eq!(session.last_seq(), before, "nothing was written");
    assert_eq!(session.pending_gates().len(), 3);
    session.answer_gate(pick.id, Answer::choose("red")).unwrap();
    session.answer_gate(free.id, Answer::text("")).unwrap();
    let answer = Answer::choose("Deny").comment("not here");
    let resolved = session.answer_gate(choice.id, answer).unwrap();
    assert_eq!(resolved.event().body.action, "Deny");
    assert_eq!(session.gate_answers()[2].text().unwrap(), "not here");
}

#[test]
fn audits_are_cut_between_characters() {
    for shift in 0..4 {
        let (world, mut main) = world();
        let free = gate(USER_INPUT, &[]);
        waiting_at(&world.session, &mut main, std::slice::from_ref(&free));
        let text = "x".repeat(shift) + &"🙂".repeat(30);
        let answer = world.session.answer_gate(free.id, Answer::text(&text));
        let resolved = &answer.unwrap().event().body.clone();
        let audit = resolved.audit.as_ref().unwrap().data.as_ref().unwrap();
        let audit: std::collections::HashMap<String, String> =
            serde_json::from_str(audit.get()).unwrap();
        let preview = &audit["preview"];
        assert!(text.starts_with(preview.as_str()));
        assert!((77..=80).contains(&preview.len()), "{}", preview.len());
        assert_eq!(world.session.gate_answers()[0].text(), Some(text));
    }
}

#[test]
fn an_answer_that_is_not_committed_leaves_the_gate_open() {
    let limits = Limits {
        record_bytes: 4000,
        ..Limits::default()
    };
    let (world, mut main) = world_with(StoreOptions {
        limits,
        ..options()
    });
    let gate = permission();
    waiting_at(&world.session, &mut main, std::slice::from_ref(&gate));
    let long = Answer::choose("Approve").comment("x".repeat(5000));
    let error = world.session.answer_gate(gate.id, long).unwrap_err();
    let not_committed = matches!(
        error,
        AnswerError::Commit(CommitError::NotCommitted(Refusal::Encode(_)))
    );
    assert!(not_committed, "{error}");
    assert_eq!(world.session.pending_gates().len(), 1);

    // A full disk, too.
    world.disk.set_capacity(Some(world.disk.used()));
    let mut refused = 0;
    for _ in 0..20 {
        let comment = Answer::choose("Approve").comment("x".repeat(3000));
        let filled = world.session.pending_gates().is_empty();
        if filled {
            let gate = Gate {
                id: GateId::new(),
                ..gate.clone()
            };
            let at = &world.session.gate_answers()[0].opened;
            let owner = Owner {
                loop_id: at.loop_id,
                turn: at.turn,
                step: at.step,
            };
            if open(&world.session, &owner, &gate).is_err() {
                break;
            }
        }
        let gate = world.session.pending_gates()[0].gate.id;
        match world.session.answer_gate(gate, comment.clone()) {
            Ok(_) => continue,
            Err(AnswerError::Commit(CommitError::NotCommitted(Refusal::Journal(reason)))) => {
                assert!(matches!(reason, NotCommitted::StorageFull(_)), "{reason}");
            }
            Err(error) => panic!("{error}"),
        }
        refused += 1;
        assert_eq!(world.session.pending_gates().len(), 1, "as before");
        world.disk.set_capacity(None);
        world.session.answer_gate(gate, comment).unwrap();
        assert_eq!(world.session.pending_gates(), []);
        break;
    }
    assert_eq!(refused, 1);
}

#[test]
fn after_a_restart_a_gate_is_listed_and_answered_once_and_its_answer_used_once() {
    let (world, mut main) = world();
    let id = world.session.id();
    let gate = permission();
    let owner = waiting_at(&world.session, &mut main, std::slice::from_ref(&gate));
    let listed = world.session.pending_gates();
    drop((main, world.session, world.store));
    world.disk.kill();

    let store = store_with(&world.disk, options());
    let (session, report) = store.open_session(id, Mode::Write).unwrap();
    assert_eq!(report.open_turns.len(), 1);
    assert_eq!(report.pending_gates, listed);
    assert_eq!(session.pending_gates(), listed);
    assert_eq!(listed[0].call().unwrap().input, call().input);
    assert_eq!(session.gate_answers(), []);
    session
        .answer_gate(gate.id, Answer::choose("Approve"))
        .unwrap();
    let again = session.answer_gate(gate.id, Answer::choose("Deny"));
    assert!(matches!(again, Err(AnswerError::AlreadyAnswered { .. })));
    let answers = session.gate_answers();
    assert_eq!(answers[0].opened, listed[0]);
    assert_eq!(answers[0].resolved.action, "Approve");
    drop((session, store));
    world.disk.kill();

    let store = store_with(&world.disk, options());
    let (session, report) = store.open_session(id, Mode::Write).unwrap();
    assert_eq!(report.pending_gates, []);
    let again = session.answer_gate(gate.id, Answer::choose("Deny"));
    assert!(matches!(again, Err(AnswerError::AlreadyAnswered { .. })));
    assert_eq!(session.gate_answers(), answers, "kept across restarts");

    // A turn uses it: durable with its step.
    let mut main = session.hold(owner.loop_id).unwrap();
    let turn = main.begin_turn(UserMessage::text("again")).unwrap();
    let (turn, step) = (turn.id(), StepId::new());
    let decided = PermissionDecided {
        tool_execution_id: ToolExecutionId::new(),
        gate_id: gate.id,
        effect: Effect::Approve,
        reason: String::new(),
        subject: None,
        audit: None,
    };
    let mut batch = vec![
        Draft::new(decided)
            .in_loop(owner.loop_id)
            .in_turn(turn)
            .in_step(step),
    ];
    batch.extend(step_with_call().id(step).into_drafts(
        owner.loop_id,
        turn,
        AgentName::from("main"),
    ));
    session.commit(batch).unwrap();
    assert_eq!(session.gate_answers(), []);
    // Through enough records that segments were sealed with it, the carry record says the same.
    drop(main);
    drop(session);
    assert!(store.verify(id).unwrap().is_intact());
}

#[test]
fn the_state_that_segments_carry_has_gates_answers_and_intents() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path(), options()).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    let id = session.id();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let gates = [permission(), permission()];
    let owner = waiting_at(&session, &mut main, &gates);
    let answer = Answer::choose("Deny");
    session.answer_gate(gates[0].id, answer).unwrap();
    let intent = stepwell::event::ToolIntent {
        tool_execution_id: ToolExecutionId::new(),
        call_id: "1".into(),
        tool_name: "bash".into(),
        input_preview: "{}".into(),
        input_bytes: 2,
    };
    let intent = Draft::new(intent)
        .in_loop(owner.loop_id)
        .in_turn(owner.turn)
        .in_step(owner.step);
    session.commit(vec![intent]).unwrap();
    // Other steps, until segments are sealed.
    let mut other = session.create_loop(LoopSpec::new("other")).unwrap();
    let mut turn = other.begin_turn(UserMessage::text("on")).unwrap();
    for _ in 0..30 {
        let text = AssistantMessage::text("y".repeat(2000));
        turn.commit_step(StepDraft::new(text)).unwrap();
    }
    turn.finish().unwrap();
    drop((main, other, session));
    let report = store.verify(id).unwrap();
    assert!(report.is_intact(), "{report:?}");
    let mut carried = 0;
    let folder = store.session_dir(id);
    for file in std::fs::read_dir(folder).unwrap().flatten() {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let has = |part: &str| text.contains(part);
        carried +=
            usize::from(has(r#""gates":[{"#) && has(r#""answers":[{"#) && has(r#""intents":[{"#));
    }
    assert!(carried > 1, "{carried} footers");
}

#[test]
fn the_end_of_a_turn_closes_its_gates_in_its_batch() {
    type End = fn(stepwell::store::Turn<'_>);
    let ends: [(End, Kind); 4] = [
        (
            |turn| drop(turn.interrupt().unwrap()),
            Kind::TurnInterrupted,
        ),
        (
            |turn| {
                let error = ErrorProjection::new(ErrorKind::Unknown, "503");
                drop(turn.fail(error).unwrap());
            },
            Kind::TurnFailed,
        ),
        (|turn| drop(turn.finish().unwrap()), Kind::TurnDone),
        (|turn| drop(turn), Kind::TurnInterrupted),
    ];
    for (end, kind) in ends {
        let (world, mut main) = world();
        let session = world.session.clone();
        let loop_id = main.id();
        let turn = main.begin_turn(UserMessage::text("go")).unwrap();
        let owner = Owner {
            loop_id,
            turn: turn.id(),
            step: StepId::new(),
        };
        let gates = [permission(), permission(), permission()];
        for gate in &gates {
            open(&session, &owner, gate).unwrap();
        }
        session
            .answer_gate(gates[1].id, Answer::choose("Approve"))
            .unwrap();
        let before = session.last_seq().get();
        end(turn);
        if session.last_seq().get() == before {
            // It was dropped: the next turn closes it.
            drop(main.begin_turn(UserMessage::text("next")).unwrap());
        }
        let closed = [Kind::GateResolved, Kind::GateResolved, kind];
        assert_eq!(kinds_from(&session, before + 1)[..3], closed);
        for gate in [&gates[0], &gates[2]] {
            let late = session.answer_gate(gate.id, Answer::choose("Approve"));
            assert!(
                matches!(late, Err(AnswerError::Abandoned { .. })),
                "{late:?}"
            );
        }
        assert_eq!(session.pending_gates(), []);
        assert_eq!(session.gate_answers().len(), 1, "the answer is kept");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_the_boundary() {
    let (world, mut main) = world();
    let gate = permission();
    let owner = waiting_at(&world.session, &mut main, std::slice::from_ref(&gate));
    let twice = open(&world.session, &owner, &gate).unwrap_err();
    let refused = CommitError::NotCommitted(Refusal::Order(OrderError::GateExists(gate.id)));
    assert_eq!(twice, refused);
    // In the name of another loop, whose commits fly beside those of the first.
    let other = world.session.create_loop(LoopSpec::new("other")).unwrap();
    let resolved = |gate_id| GateResolved {
        gate_id,
        reason: "answered".into(),
        ..GateResolved::default()
    };
    let foreign = Draft::new(resolved(gate.id))
        .in_loop(other.id())
        .in_turn(owner.turn)
        .in_step(owner.step);
    let refused = CommitError::NotCommitted(Refusal::Order(OrderError::GateNotOpen(gate.id)));
    assert_eq!(world.session.commit(vec![foreign]).unwrap_err(), refused);
    // Twice in one batch.
    let own = Draft::new(resolved(gate.id))
        .in_loop(owner.loop_id)
        .in_turn(owner.turn)
        .in_step(owner.step);
    let twice = world.session.commit(vec![own.clone(), own]);
    assert_eq!(twice.unwrap_err(), refused);
    assert_eq!(world.session.pending_gates().len(), 1);
}

/// A kill at every call to the disk between the opening of a gate and the commit of its step: what
/// was acknowledged is there, and a gate is never both open and answered.
#[test]
fn a_kill_anywhere_loses_neither_gate_nor_answer() {
    #[derive(Default, Debug)]
    struct Acknowledged {
        opened: bool,
        answered: bool,
        step: bool,
    }
    let mut cut = [0_u32; 4];
    for calls in 0.. {
        let disk = SimVfs::new();
        let store = store_with(&disk, options());
        let session = store.create_session(SessionSpec::new()).unwrap();
        let id: SessionId = session.id();
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let loop_id = main.id();
        let turn = main.begin_turn(UserMessage::text("go")).unwrap();
        let owner = Owner {
            loop_id,
            turn: turn.id(),
            step: StepId::new(),
        };
        drop(turn);
        let gate = permission();
        let mut acknowledged = Acknowledged::default();
        disk.crash_after(calls);
        acknowledged.opened = open(&session, &owner, &gate).is_ok();
        if acknowledged.opened {
            let answer = Answer::choose("Approve");
            acknowledged.answered = session.answer_gate(gate.id, answer).is_ok();
        }
        if acknowledged.answered {
            let step = step_with_call().id(owner.step);
            let step = step.into_drafts(loop_id, owner.turn, AgentName::from("main"));
            acknowledged.step = session.commit(step).is_ok();
        }
        let crashed = disk.has_crashed();
        drop((main, session, store));
        disk.kill();

        let store = store_with(&disk, options());
        let (session, _) = store.open_session(id, Mode::Write).unwrap();
        let what = format!("{calls} calls: {acknowledged:?}");
        let open = session.pending_gates().len();
        let answers = session.gate_answers().len();
        let steps = session.steps();
        assert!(open + answers <= 1, "{what}");
        match acknowledged {
            Acknowledged { step: true, .. } => assert_eq!((open, answers, steps), (0, 0, 1)),
            Acknowledged { answered: true, .. } => {
                assert_eq!(open, 0, "{what}");
                assert_eq!(answers as u64 + steps, 1, "{what}");
            }
            Acknowledged { opened: true, .. } => assert_eq!(open + answers, 1, "{what}"),
            Acknowledged { .. } => assert_eq!((answers, steps), (0, 0), "{what}"),
        }
        cut[usize::from(acknowledged.opened)
            + usize::from(acknowledged.answered)
            + usize::from(acknowledged.step)] += 1;
        let late = session.answer_gate(gate.id, Answer::choose("Deny"));
        assert_eq!(late.is_ok(), open == 1, "{what}: {late:?}");
        let later = session.answer_gate(gate.id, Answer::choose("Deny"));
        assert!(later.is_err(), "{what}");
        assert!(store.verify(id).unwrap().is_intact(), "{what}");
        if !crashed {
            break;
        }
    }
    assert!(cut.iter().all(|count| *count > 0), "{cut:?}");
}
