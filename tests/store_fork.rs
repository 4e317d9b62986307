//! Forks of sessions: the child is its parent up to a record, byte for byte, whoever has the parent open
//! and whoever is cut off where; from then on neither can harm the other.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use stepwell::event::{Control, Event, Forked, Gate, GateOpened, Prompt, Resolver, ToolIntent};
use stepwell::identity::{GateId, LoopId, SessionId, StepId, ToolExecutionId};
use stepwell::journal;
use stepwell::store::{
    Answer, AnswerError, Draft, ForkError, ForkSpec, HistoryItem, ImportId, SessionChange,
};
use store_support::*;

fn id(byte: u8) -> SessionId {
    SessionId::from_bytes([byte; 16])
}

fn small() -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: 4096,
            max_capacity: 4096,
            ..JournalOptions::default()
        },
        blob_threshold: THRESHOLD.get(),
        ..options()
    }
}

thread_local! {
    static THRESHOLD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Once with all bodies in the log, once with those of steps in files.
fn wherever_bodies_stand(test: impl Fn()) {
    for threshold in [usize::MAX, 400] {
        THRESHOLD.set(threshold);
        test();
    }
}

fn quiet() -> SimVfs {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    disk
}

/// What everybody can see of a session at a record.
#[derive(Debug, PartialEq)]
struct Seen {
    history: Vec<HistoryItem>,
    contexts: Vec<(LoopId, Vec<String>)>,
    metadata: stepwell::store::Metadata,
    turns: Vec<u64>,
}

fn seen(session: &Session) -> Seen {
    let loops = session.loops();
    let context = |loop_id: LoopId| {
        let messages = session.loop_context(loop_id).unwrap();
        let texts = messages.iter().map(|message| message.to_text());
        (loop_id, texts.collect())
    };
    Seen {
        history: session.history().unwrap(),
        contexts: loops.iter().map(|(id, _)| context(*id)).collect(),
        metadata: session.metadata(),
        turns: loops
            .iter()
            .map(|(id, _)| session.turn_count(*id))
            .collect(),
    }
}

/// The events up to a record, as if they were those of one session.
fn events(session: &Session, at: Seq) -> Vec<(Seq, Event)> {
    let replay = session.replay(Seq::new(1)).map(Result::unwrap);
    let upto = replay.take_while(|committed| committed.seq() <= at);
    let alike = upto.map(|committed| {
        let mut event = committed.event().clone();
        event.header.coordinates.session = id(0xee);
        (committed.seq(), event)
    });
    alike.collect()
}

fn kinds_behind(session: &Session, at: Seq) -> Vec<Kind> {
    let replay = session.replay(at.next()).map(Result::unwrap);
    replay.map(|committed| committed.event().kind()).collect()
}

/// A session of two loops over several segments. Gives the records of its steps with what could be seen
/// when each was the last.
fn grow(session: &Session, turns: usize, steps: usize) -> Vec<(Seq, Seen)> {
    let mut moments = Vec::new();
    for name in ["main", "side"] {
        if session.loop_by_name(name).unwrap().is_none() {
            session.create_loop(LoopSpec::new(name)).unwrap();
        }
    }
    for turn in 0..turns {
        let name = ["main", "side"][turn % 2];
        let mut found = session.loop_by_name(name).unwrap().unwrap();
        let mut turn = found
            .begin_turn(UserMessage::text(format!("{name} {turn}")))
            .unwrap();
        for step in 0..steps {
            let text = format!("{step} {}", "x".repeat(350));
            let done = turn.commit_step(text_step(&text)).unwrap().seq();
            moments.push((done, seen(session)));
        }
        turn.finish().unwrap();
        moments.push((session.last_seq(), seen(session)));
    }
    moments
}

fn is_child(child: &Session, parent: &Session, at: Seq) {
    assert_eq!(events(child, at), events(parent, at));
    let replay = child.replay(at.next()).map(Result::unwrap);
    let first = replay
        .map(|committed| committed.event().clone())
        .next()
        .unwrap();
    let Body::Forked(forked) = first.body else {
        panic!("{:?} behind the fork point", first.kind());
    };
    let parent = parent.id();
    assert_eq!(
        forked,
        Forked {
            parent,
            at: at.get()
        }
    );
    assert_eq!(first.header.coordinates.session, child.id());
    assert_eq!(
        child.forked_from().map(|from| (from.parent, from.at)),
        Some((parent, at))
    );
}

/// At each step and each end of a turn; parent open here, in another process, and closed.
#[test]
fn a_child_has_what_its_parent_had_at_that_record() {
    wherever_bodies_stand(|| {
        for state in ["live", "elsewhere", "closed", "killed"] {
            let disk = quiet();
            let store = store_with(&disk, small());
            let parent = store
                .create_session(SessionSpec::new().id(id(1)).title("mother"))
                .unwrap();
            let moments = grow(&parent, 4, 3);
            parent.witness().unwrap();
            let mut other = None;
            match state {
                "live" => other = Some(parent),
                "elsewhere" => other = Some(parent),
                "closed" => parent.close().unwrap(),
                _ => drop(parent),
            }
            let forking = match state {
                "live" => store.clone(),
                _ => store_with(&disk, small()),
            };
            for (at, expected) in &moments {
                let (child, report) = forking.fork(id(1), ForkSpec::at(*at)).unwrap();
                assert!(report.is_clean());
                let parent = match &other {
                    Some(open) => open.clone(),
                    None => forking.open_session(id(1), Mode::Read).unwrap().0,
                };
                is_child(&child, &parent, *at);
                assert_eq!(&seen(&child), expected, "{state} at {at}");
                assert!(forking.verify(child.id()).unwrap().is_intact());
                // It goes on, and what it says is not its parent's.
                let mut main = child.loop_by_name("main").unwrap().unwrap();
                let mut turn = main.begin_turn(UserMessage::text("my own way")).unwrap();
                turn.commit_step(text_step("gone")).unwrap();
                turn.finish().unwrap();
                drop(main);
                let after = seen(&child);
                child.close().unwrap();
                let again = forking.open_session(child.id(), Mode::Write).unwrap().0;
                assert_eq!(seen(&again), after);
                assert_eq!(
                    again.forked_from().map(|from| (from.parent, from.at)),
                    Some((id(1), *at))
                );
            }
            let parent = match other {
                Some(open) => open,
                None => forking.open_session(id(1), Mode::Write).unwrap().0,
            };
            assert_eq!(seen(&parent), moments.last().unwrap().1);
        }
    });
}

/// Keys, turns, gates and intents at the fork point.
#[test]
fn what_was_pending_is_the_parents_and_keys_are_known() {
    let disk = quiet();
    let store = store_with(&disk, small());
    let parent = store.create_session(SessionSpec::new()).unwrap();
    let mut main = parent.create_loop(LoopSpec::new("main")).unwrap();
    let key = || Key::new("once").unwrap();
    let mut turn = main.begin_turn(UserMessage::text("pay")).unwrap();
    let paid = turn
        .commit_step(text_step("paid").key(key()))
        .unwrap()
        .seq();
    let (loop_id, turn_id, step) = (parent.loops()[0].0, turn.id(), StepId::new());
    let in_step = |body: Body| {
        Draft::new(body)
            .in_loop(loop_id)
            .in_turn(turn_id)
            .in_step(step)
    };
    let gate = Gate {
        id: GateId::new(),
        kind: stepwell::store::PERMISSION.into(),
        resolver: Resolver::default(),
        prompt: Some(Prompt {
            controls: vec![Control {
                action: "Approve".into(),
                ..Control::default()
            }],
            ..Prompt::default()
        }),
        ..Gate::default()
    };
    let asked = gate.id;
    let answered = Gate {
        id: GateId::new(),
        ..gate.clone()
    };
    let allowed = answered.id;
    let intent = ToolIntent {
        tool_execution_id: ToolExecutionId::new(),
        call_id: "c".into(),
        tool_name: "rm".into(),
        ..ToolIntent::default()
    };
    parent
        .commit(vec![
            in_step(GateOpened { gate }.into()),
            in_step(intent.into()),
        ])
        .unwrap();
    let gate = Draft::new(GateOpened { gate: answered });
    let gate = gate
        .in_loop(loop_id)
        .in_turn(turn_id)
        .in_step(StepId::new());
    parent.commit(vec![gate]).unwrap();
    let at = parent
        .answer_gate(allowed, Answer::choose("Approve"))
        .unwrap()
        .seq();
    let (child, report) = store
        .fork(parent.id(), ForkSpec::new().title("the other way"))
        .unwrap();
    // What a person allowed is allowed once, and not in each fork.
    assert_eq!(parent.gate_answers().len(), 1);
    assert!(child.gate_answers().is_empty());
    let late = child.answer_gate(allowed, Answer::choose("Approve"));
    assert!(matches!(
        late,
        Err(AnswerError::AlreadyAnswered { at: found, .. }) if found == at
    ));
    // The turn was open: it is closed in the child, as at a restart, and only there.
    assert_eq!(report.open_turns.len(), 1);
    assert!(child.open_turns().is_empty());
    assert_eq!(parent.open_turns().len(), 1);
    let behind = kinds_behind(&child, parent.last_seq());
    let expected = [
        Kind::Forked,
        Kind::GateResolved,
        Kind::SessionChanged,
        Kind::RestoreStarted,
        Kind::TurnInterrupted,
        Kind::RestoreDone,
    ];
    assert_eq!(behind, expected);
    assert_eq!(child.title().as_deref(), Some("the other way"));
    assert_eq!(parent.title(), None);
    // The gate is the parent's.
    assert!(child.pending_gates().is_empty() && report.pending_gates.is_empty());
    let refused = child
        .answer_gate(asked, Answer::choose("Approve"))
        .unwrap_err();
    assert!(
        matches!(refused, AnswerError::Abandoned { .. }),
        "{refused}"
    );
    parent
        .answer_gate(asked, Answer::choose("Approve"))
        .unwrap();
    // What the tool did nobody knows there.
    assert_eq!(report.unknown_effects.len(), 1);
    // A key from before the fork is a repeat in both.
    for session in [&child, &parent] {
        let mut again = match session.id() == parent.id() {
            true => None,
            false => session.loop_by_name("main").unwrap(),
        };
        let outcome = match &mut again {
            Some(again) => {
                let mut turn = again.begin_turn(UserMessage::text("again")).unwrap();
                turn.commit_step(text_step("paid").key(key())).unwrap()
            }
            None => turn.commit_step(text_step("paid").key(key())).unwrap(),
        };
        assert!(outcome.is_duplicate());
        assert_eq!(outcome.seq(), paid);
    }
}

#[test]
fn places_and_ids_that_cannot_be_are_refused_and_leave_nothing() {
    let disk = quiet();
    let store = store_with(&disk, small());
    let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
    grow(&parent, 1, 2);
    let last = parent.last_seq();
    let refused = |spec| store.fork(id(1), spec).unwrap_err();
    let beyond = refused(ForkSpec::at(last.next()));
    let ForkError::Journal(journal::ForkError::NotProven { at, proven }) = beyond else {
        panic!("{beyond}");
    };
    assert_eq!((at, proven), (last.next(), last));
    assert!(matches!(
        refused(ForkSpec::at(Seq::ZERO)),
        ForkError::Journal(journal::ForkError::NotProven { .. })
    ));
    // A step with its end of turn is one batch.
    let mut main = parent.loop_by_name("main").unwrap().unwrap();
    let turn = main.begin_turn(UserMessage::text("short")).unwrap();
    let step = turn.commit_last_step(text_step("answer")).unwrap().seq();
    let within = refused(ForkSpec::at(step));
    let ForkError::Journal(journal::ForkError::WithinBatch { at, last }) = within else {
        panic!("{within}");
    };
    assert_eq!((at, last), (step, step.next()));
    store.fork(id(1), ForkSpec::at(last).id(id(2))).unwrap();
    for taken in [1, 2] {
        let error = refused(ForkSpec::new().id(id(taken)));
        assert!(matches!(
            error,
            ForkError::Child(SessionError::AlreadyExists(found)) if found == id(taken)
        ));
    }
    let absent = store.fork(id(9), ForkSpec::new()).unwrap_err();
    assert!(matches!(
        absent,
        ForkError::Parent(SessionError::NotFound(_))
    ));
    let long = ForkSpec::new().title("x".repeat(70_000));
    assert!(matches!(refused(long), ForkError::Prepare(_)));
    let names = disk.list(Path::new("/store/sessions")).unwrap();
    assert_eq!(names.len(), 2, "{names:?}");
    drop((main, parent));
    store.delete_session(id(1)).unwrap();
    let deleted = store.fork(id(1), ForkSpec::new()).unwrap_err();
    assert!(matches!(
        deleted,
        ForkError::Parent(SessionError::Deleted(_))
    ));
    let deleted = store.fork(id(2), ForkSpec::new().id(id(1))).unwrap_err();
    assert!(matches!(
        deleted,
        ForkError::Child(SessionError::Deleted(_))
    ));
}

/// Deleting, repairing, exporting and backing up either leaves the other as it was, byte for byte.
#[test]
fn parent_and_child_are_deleted_and_copied_apart() {
    wherever_bodies_stand(|| {
        for parent_first in [true, false] {
            let disk = quiet();
            let store = store_with(&disk, small());
            let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
            let moments = grow(&parent, 4, 3);
            let (at, expected) = &moments[moments.len() - 3];
            let (child, _) = store.fork(id(1), ForkSpec::at(*at).id(id(2))).unwrap();
            grow(&child, 2, 2);
            let whole = [seen(&parent), seen(&child)];
            let [mut lines_of_parent, mut lines_of_child] = [Vec::new(), Vec::new()];
            parent.export(&mut lines_of_parent).unwrap();
            child.export(&mut lines_of_child).unwrap();
            parent.close().unwrap();
            child.close().unwrap();
            drop((parent, child));
            // A backup and an import of each are sessions that share nothing.
            let report = store.backup("/backup").unwrap();
            assert!(report.is_complete());
            let imported = store
                .import(&lines_of_child[..], ImportId::New(id(3)))
                .unwrap();
            assert_eq!(imported.session, id(3));
            store.repair(id(2), "/repaired", false).unwrap();
            let (gone, stays) = if parent_first { (1, 2) } else { (2, 1) };
            let receipt = store.delete_session(id(gone)).unwrap();
            assert!(receipt.bytes > 0);
            disk.power_loss(PowerLoss::DropAll);
            let store = store_with(&disk, small());
            assert!(store.verify(id(stays)).unwrap().is_intact());
            let backup = Store::on(Arc::new(disk.clone()), "/backup", small()).unwrap();
            let left = store.open_session(id(stays), Mode::Write).unwrap().0;
            assert_eq!(seen(&left), whole[stays as usize - 1]);
            let (grandchild, _) = store.fork(id(stays), ForkSpec::at(*at)).unwrap();
            assert_eq!(&seen(&grandchild), expected);
            for (number, whole) in [(1, &whole[0]), (2, &whole[1])] {
                assert!(backup.verify(id(number)).unwrap().is_intact());
                let copy = backup.open_session(id(number), Mode::Read).unwrap().0;
                assert_eq!(&seen(&copy), whole);
            }
            let copy = store.open_session(id(3), Mode::Read).unwrap().0;
            assert_eq!(seen(&copy), whole[1]);
            let repaired = Store::on(Arc::new(disk.clone()), "/repaired", small()).unwrap();
            let copy = repaired.open_session(id(2), Mode::Read).unwrap().0;
            assert_eq!(seen(&copy), whole[1]);
        }
    });
}

/// Bytes written and files made by a fork.
fn cost(segments: usize) -> (u64, usize) {
    let disk = quiet();
    let store = store_with(&disk, small());
    let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
    let files = || {
        let names = disk.list(&store.session_dir(id(1))).unwrap();
        names
            .iter()
            .filter(|entry| entry.name.starts_with("seg-"))
            .count()
    };
    while files() < segments {
        grow(&parent, 1, 2);
    }
    let made = files();
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    disk.set_hook(move |op| {
        if let Op::Write { length, .. } = op {
            count.fetch_add(*length as u64, Ordering::Relaxed);
        }
    });
    let (child, _) = store.fork(id(1), ForkSpec::new()).unwrap();
    disk.clear_hook();
    assert_eq!(child.history().unwrap(), parent.history().unwrap());
    (written.load(Ordering::Relaxed), made)
}

#[test]
fn a_fork_writes_as_much_for_forty_segments_as_for_one() {
    let [(short, one), (long, forty)] = [1, 40].map(cost);
    println!("{short} bytes for {one} segments, {long} for {forty}");
    // Each of its manifests names each segment in 80 bytes: that of the fork, those of its opening.
    let manifests = 4 * 80 * (forty - one) as u64;
    // The segment in which it ends may be filled differently, and with it the index in its footer.
    let footer = 4096;
    assert!(long <= short + manifests + footer, "{short} and {long}");
    assert!(long > short, "the manifest names the segments");
}

/// Everything but the child that the disk can have after a crash: the parent, whole.
fn judge(image: &SimVfs, expected: &Seen, parent: &Seen, acknowledged: bool) -> bool {
    let store = store_with(image, small());
    let mut listed = store.sessions().unwrap();
    listed.retain(|entry| entry.id != id(1));
    assert!(listed.len() <= 1);
    assert!(store.verify(id(1)).unwrap().is_intact());
    let mother = store.open_session(id(1), Mode::Read).unwrap().0;
    assert_eq!(&seen(&mother), parent);
    let names = image.list(Path::new("/store/sessions")).unwrap();
    let left: Vec<_> = names
        .iter()
        .filter(|entry| entry.name.starts_with("fork-"))
        .collect();
    assert!(left.is_empty(), "what was cut off is swept: {left:?}");
    let there = !listed.is_empty();
    assert!(there || !acknowledged, "the child is lost");
    if there {
        assert!(listed[0].state.as_ref().unwrap().damage.is_none());
        assert!(store.verify(id(2)).unwrap().is_intact());
    } else {
        // The id is free.
        let at = expected.history.last().unwrap().seq;
        store.fork(id(1), ForkSpec::at(at).id(id(2))).unwrap();
    }
    let child = store.open_session(id(2), Mode::Write).unwrap().0;
    assert_eq!(&seen(&child), expected);
    there
}

/// A crash before every call of a fork that changes the disk, by a kill and by a power loss: the child is
/// whole or absent, and the parent untouched.
#[test]
fn a_fork_that_is_cut_off_is_whole_or_absent() {
    wherever_bodies_stand(|| {
        let disk = quiet();
        let store = store_with(&disk, small());
        let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
        let moments = grow(&parent, 2, 4);
        let (at, expected) = &moments[moments.len() - 3];
        let whole = seen(&parent);
        parent.close().unwrap();
        drop((parent, store));
        let mut seen_there = [0, 0];
        for calls in 0.. {
            let run = disk.snapshot();
            run.set_tracing(false);
            run.crash_after(calls);
            let store = Store::on(Arc::new(run.clone()), "/store", small());
            let forked = store.map(|store| store.fork(id(1), ForkSpec::at(*at).id(id(2))).is_ok());
            let finished = matches!(forked, Ok(true));
            let kept = run.snapshot();
            kept.set_tracing(false);
            seen_there[usize::from(judge(&kept, expected, &whole, finished))] += 1;
            for loss in [
                PowerLoss::DropAll,
                PowerLoss::KeepAll,
                PowerLoss::Seeded(calls),
            ] {
                let image = run.snapshot();
                image.set_tracing(false);
                image.power_loss(loss);
                judge(&image, expected, &whole, finished);
            }
            if finished {
                break;
            }
        }
        println!("absent {}, whole {}", seen_there[0], seen_there[1]);
        assert!(seen_there[0] > 10 && seen_there[1] > 5, "{seen_there:?}");
    });
}

/// A call of a fork fails, each in turn and in each manner: there is no child then, or it is whole, and
/// the parent goes on.
#[test]
fn a_fork_whose_disk_fails_is_whole_or_absent() {
    wherever_bodies_stand(|| {
        let disk = quiet();
        let store = store_with(&disk, small());
        let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
        let moments = grow(&parent, 2, 4);
        let (at, expected) = &moments[moments.len() - 3];
        let whole = seen(&parent);
        parent.close().unwrap();
        drop((parent, store));
        let kinds = [
            FaultKind::Eio,
            FaultKind::Enospc,
            FaultKind::Emfile,
            FaultKind::ShortWrite(0),
            FaultKind::SyncKept(PowerLoss::DropAll),
            FaultKind::DirSync(PowerLoss::DropAll),
        ];
        for kind in kinds {
            let (mut failed, mut forked) = (0, 0);
            for skip in 0.. {
                let run = disk.snapshot();
                run.set_tracing(false);
                let store = store_with(&run, small());
                let ours = |op: &Op| op.path().starts_with("/store/sessions");
                run.fail_nth(ours, skip, kind);
                let outcome = store.fork(id(1), ForkSpec::at(*at).id(id(2)));
                let fired = run.faults_fired() > 0;
                run.clear_faults();
                let there = match &outcome {
                    Ok(_) => true,
                    Err(ForkError::Unopened { child, .. }) => *child == id(2),
                    Err(_) => false,
                };
                assert!(outcome.is_ok() || fired, "{kind:?} {skip}: {outcome:?}");
                failed += usize::from(outcome.is_err());
                forked += usize::from(outcome.is_ok());
                drop((outcome, store));
                let kept = run.snapshot();
                kept.set_tracing(false);
                let found = judge(&kept, expected, &whole, there);
                assert_eq!(found, there, "{kind:?} {skip}");
                run.power_loss(PowerLoss::DropAll);
                judge(&run, expected, &whole, there);
                if !fired {
                    break;
                }
            }
            println!("{kind:?}: {failed} failed, {forked} went on");
            assert!(failed > 2, "{kind:?}");
        }
    });
}

/// Bodies in files go with their records: a fork has those up to its point, linked or copied, and no more.
#[test]
fn a_fork_has_the_bodies_of_its_records_and_no_more() {
    THRESHOLD.set(400);
    for copies in [false, true] {
        let disk = quiet();
        let store = store_with(&disk, small());
        let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
        let moments = grow(&parent, 2, 3);
        let (at, expected) = &moments[1];
        let bodies = |of: u8| {
            let dir = store.session_dir(id(of)).join("blobs");
            let files = disk.files().into_iter();
            let here = files.filter(|(path, _)| path.starts_with(&dir));
            here.map(|(path, _)| path.file_name().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert!(bodies(1).len() > 2);
        if copies {
            let links = |op: &Op| matches!(op, Op::HardLink { path, .. } if path.to_string_lossy().contains("blobs"));
            disk.fail_from(links, 0, FaultKind::Exdev);
        }
        let (child, _) = store.fork(id(1), ForkSpec::at(*at).id(id(2))).unwrap();
        assert_eq!(disk.faults_fired() > 0, copies);
        drop((child, parent));
        disk.power_loss(PowerLoss::DropAll);
        assert_eq!(bodies(2), bodies(1)[..2]);
        let store = store_with(&disk, small());
        store.delete_session(id(1)).unwrap();
        let child = store.open_session(id(2), Mode::Write).unwrap().0;
        assert_eq!(&seen(&child), expected);
        assert!(store.verify(id(2)).unwrap().is_intact());
    }
}

/// Retention judges both apart: the parent goes, the child stays whole.
#[test]
fn retention_takes_a_parent_and_leaves_its_child() {
    wherever_bodies_stand(|| {
        let disk = quiet();
        let store = store_with(&disk, small());
        let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
        let moments = grow(&parent, 3, 3);
        let (at, _) = &moments[4];
        parent.close().unwrap();
        let (child, _) = store.fork(id(1), ForkSpec::at(*at).id(id(2))).unwrap();
        grow(&child, 1, 1);
        let whole = seen(&child);
        child.close().unwrap();
        drop((parent, child));
        let policy = stepwell::store::RetentionPolicy {
            keep_last: Some(1),
            ..Default::default()
        };
        let plan = store.retention(policy).unwrap();
        assert_eq!(plan.remove.len(), 1);
        assert_eq!((plan.remove[0].session, plan.kept), (id(1), 1));
        let report = store.prune(&plan);
        assert_eq!((report.deleted.len(), report.passed_over.len()), (1, 0));
        disk.power_loss(PowerLoss::DropAll);
        let store = store_with(&disk, small());
        assert!(store.verify(id(2)).unwrap().is_intact());
        let child = store.open_session(id(2), Mode::Write).unwrap().0;
        assert_eq!(seen(&child), whole);
    });
}

/// Within each call of a fork the parent commits, rolls and sweeps, or is closed and opened again.
#[test]
fn a_fork_while_the_parent_rolls_sweeps_and_is_taken_over() {
    wherever_bodies_stand(|| {
        for (elsewhere, reopens) in [(false, false), (true, false), (true, true)] {
            for moment in 0..400_u64 {
                let disk = quiet();
                let store = store_with(&disk, small());
                let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
                let moments = grow(&parent, 2, 3);
                parent.witness().unwrap();
                let (at, expected) = &moments[moments.len() - 2];
                let forking = match elsewhere {
                    true => store_with(&disk.new_process(), small()),
                    false => store.clone(),
                };
                let calls = AtomicU64::new(0);
                let acting = Mutex::new(Some((store.clone(), parent)));
                let back = Arc::new(Mutex::new(None));
                let done = back.clone();
                disk.set_hook(move |op| {
                    if op.path().starts_with("/store/sessions")
                        && calls.fetch_add(1, Ordering::SeqCst) == moment
                    {
                        let Some((store, parent)) = acting.lock().unwrap().take() else {
                            return;
                        };
                        let parent = match reopens {
                            true => {
                                drop(parent);
                                store.open_session(id(1), Mode::Write).unwrap().0
                            }
                            false => parent,
                        };
                        grow(&parent, 2, 4);
                        *done.lock().unwrap() = Some((store, parent));
                    }
                });
                let forked = forking.fork(id(1), ForkSpec::at(*at).id(id(2)));
                disk.clear_hook();
                let (child, _) = forked.unwrap_or_else(|error| panic!("{moment}: {error}"));
                assert_eq!(&seen(&child), expected, "{moment}");
                let Some((store, parent)) = back.lock().unwrap().take() else {
                    assert!(moment > 40, "the moment never came");
                    break;
                };
                assert!(store.verify(id(1)).unwrap().is_intact());
                assert!(store.verify(id(2)).unwrap().is_intact());
                is_child(&child, &parent, *at);
            }
        }
    });
}

/// What opening, changing and closing a child costs its parent: nothing, for years of it.
#[test]
fn a_child_is_opened_and_closed_without_a_byte_of_its_parent() {
    wherever_bodies_stand(|| {
        let disk = quiet();
        let store = store_with(&disk, small());
        let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
        let moments = grow(&parent, 3, 3);
        let dir = store.session_dir(id(1));
        let bytes = || {
            let files = disk
                .files()
                .into_iter()
                .filter(|(path, _)| path.starts_with(&dir));
            let read = files.map(|(path, _)| (path.clone(), disk.read_file(&path).unwrap()));
            read.collect::<Vec<_>>()
        };
        let before = bytes();
        for (number, (at, _)) in moments.iter().enumerate() {
            let child = id(10 + number as u8);
            let (mut session, _) = store.fork(id(1), ForkSpec::at(*at).id(child)).unwrap();
            for _ in 0..2 {
                grow(&session, 2, 2);
                session.change(SessionChange::title("child")).unwrap();
                session.close().unwrap();
                let again = store.open_session(child, Mode::Write).unwrap().0;
                drop(again);
                session = store.open_session(child, Mode::Write).unwrap().0;
                // Also where a carry record says it.
                assert_eq!(
                    session.forked_from().map(|from| (from.parent, from.at)),
                    Some((id(1), *at))
                );
            }
            drop(session);
            store.delete_session(child).unwrap();
        }
        assert_eq!(bytes(), before);
        grow(&parent, 1, 1);
    });
}

/// For `docs/performance.md`: bytes written, and the time on the disk of the temporary directory.
#[test]
#[ignore = "a figure, to be run alone"]
fn figures_of_forks() {
    let options = StoreOptions {
        journal: JournalOptions {
            first_capacity: 64 * 1024,
            max_capacity: 64 * 1024,
            ..JournalOptions::default()
        },
        ..StoreOptions::default()
    };
    for segments in [2, 40] {
        let disk = quiet();
        let simulated = store_with(&disk, options.clone());
        let written = Arc::new(AtomicU64::new(0));
        let folder = tempfile::tempdir().unwrap();
        let real = Store::open_with(folder.path(), options.clone()).unwrap();
        let mut times = Vec::new();
        for store in [&simulated, &real] {
            let parent = store.create_session(SessionSpec::new().id(id(1))).unwrap();
            let mut main = parent.create_loop(LoopSpec::new("main")).unwrap();
            let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
            for _ in 0..(segments - 1) * 15 + 7 {
                turn.commit_step(text_step(&"x".repeat(4000))).unwrap();
            }
            let count = written.clone();
            disk.set_hook(move |op| {
                if let Op::Write { length, .. } = op {
                    count.fetch_add(*length as u64, Ordering::Relaxed);
                }
            });
            for _ in 0..21 {
                let begun = std::time::Instant::now();
                let (child, _) = store.fork(id(1), ForkSpec::new()).unwrap();
                times.push(begun.elapsed());
                drop(child);
            }
            disk.clear_hook();
        }
        let names = std::fs::read_dir(real.session_dir(id(1))).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let made = names.filter(|name| name.starts_with("seg-")).count();
        let mut on_disk = times.split_off(21);
        on_disk.sort();
        println!(
            "{made} segments: {} bytes, {:?}",
            written.load(Ordering::Relaxed) / 21,
            on_disk[10]
        );
    }
}
