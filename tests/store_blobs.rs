//! Large bodies in files of their own: what is written, what is read, and what goes on beside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stepwell::content::Message;
use stepwell::event::{Event, StoredBody, TurnFoldedInto, body_in, decode_header, encode_record};
use stepwell::identity::{LoopId, SessionId};
use stepwell::journal::{Entry, FrameKind, Lsn};
use stepwell::store::{BodyProblem, Draft, Outcome, ReplayError, Ticket};
use store_support::*;

const LARGE: usize = 1000;
const LIMIT: Duration = Duration::from_secs(30);

fn id() -> SessionId {
    SessionId::from_bytes([0xb1; 16])
}

fn with_threshold(blob_threshold: usize) -> StoreOptions {
    StoreOptions {
        blob_threshold,
        ..options()
    }
}

fn open(disk: &SimVfs) -> Store {
    store_with(disk, with_threshold(LARGE))
}

fn create(store: &Store) -> Session {
    store.create_session(SessionSpec::new().id(id())).unwrap()
}

/// A step with a body of some `bytes`, with opaque JSON that must be kept as it is.
fn large_step(name: &str, bytes: usize) -> StepDraft {
    let input = RawJson::parse(br#"{ "b":1.0,"a":1e400, "b":"\ud83d" }"#).unwrap();
    let call = AssistantMessage::text(name).with_tool_use("a", "read", input);
    let result = format!("{name} {}", "\u{e4}x".repeat(bytes / 3));
    StepDraft::new(call).results([ToolResultMessage::text("a", result)])
}

/// In the directory of the session, or in that of all sessions.
fn is_blob_file(path: &std::path::Path) -> bool {
    let mut around = path.ancestors().skip(1).take(2);
    around.any(|dir| dir.ends_with("blobs"))
}

/// The blob files, by name.
fn blobs(disk: &SimVfs) -> Vec<(PathBuf, u64)> {
    let mut files = disk.files();
    files.retain(|(path, _)| is_blob_file(path));
    files
}

fn is_new(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|end| end == "new")
}

fn is_blob(op: &Op) -> bool {
    op.path()
        .components()
        .any(|part| part.as_os_str() == "blobs")
}

fn entries(store: &Store) -> Vec<Entry> {
    let view = store.journal_view(id()).unwrap();
    let entries = view.read(Lsn::ZERO).map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.kind == FrameKind::Record)
        .collect()
}

fn outside(entry: &Entry) -> Option<u64> {
    match decode_header(&entry.payload, &Limits::default())
        .unwrap()
        .body
    {
        StoredBody::Outside(outside) => Some(outside.length),
        StoredBody::Inside(_) => None,
    }
}

fn events(session: &Session) -> Vec<(Seq, Event)> {
    let events = session.replay(Seq::new(1)).map(|event| event.unwrap());
    events
        .map(|event| (event.seq(), event.event().clone()))
        .collect()
}

fn read_only(disk: &SimVfs) -> Session {
    open(disk).open_session(id(), Mode::Read).unwrap().0
}

#[test]
fn a_body_of_the_threshold_goes_to_a_file_and_a_smaller_one_does_not() {
    let probe = |threshold| {
        let disk = SimVfs::new();
        let store = store_with(&disk, with_threshold(threshold));
        let session = create(&store);
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
        turn.commit_step(large_step("x", 3000)).unwrap();
        let said = turn.commit_last_step(text_step("done")).unwrap();
        assert_eq!(said.seq(), Seq::new(5));
        let found: Vec<Option<u64>> = entries(&store).iter().map(outside).collect();
        assert_eq!(blobs(&disk).len(), found.iter().flatten().count());
        assert!(store.verify(id()).unwrap().is_intact());
        let history = session.history().unwrap();
        (
            found,
            history
                .into_iter()
                .map(|item| item.message)
                .collect::<Vec<_>>(),
        )
    };
    let (none, plain) = probe(usize::MAX);
    assert_eq!(none, [None; 6]);
    let (found, history) = probe(2000);
    let length = found[3].unwrap();
    assert_eq!(found, [None, None, None, Some(length), None, None]);
    assert_eq!(history, plain);
    assert_eq!(probe(length as usize).0, found);
    assert_eq!(probe(length as usize + 1).0, none);
    // All that may stand there: the turn, its steps and its end.
    let (all, history) = probe(0);
    let is_outside: Vec<bool> = all.iter().map(Option::is_some).collect();
    assert_eq!(is_outside, [false, false, true, true, true, true]);
    assert_eq!(history, plain);
}

#[test]
fn a_file_is_the_body_byte_for_byte_under_the_name_of_its_record() {
    let disk = SimVfs::new();
    let store = open(&disk);
    let session = create(&store);
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let outcome = turn.commit_step(large_step("x", 5000)).unwrap();
    let committed = outcome.committed();
    let event = committed.event().clone().erase();
    let whole = encode_record(&event, None, &Limits::default()).unwrap();
    let name = format!("{:020}-{}", committed.seq().get(), event.header.event_id);
    let [(path, length)] = &blobs(&disk)[..] else {
        panic!("{:?}", blobs(&disk));
    };
    assert!(path.ends_with(&name), "{}", path.display());
    let bytes = disk.read_file(path).unwrap();
    assert_eq!(*length, bytes.len() as u64);
    assert!(bytes == body_in(&whole), "a person can read it");
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains(r#"{ "b":1.0,"a":1e400, "b":"\ud83d" }"#));
    assert_eq!(committed.encoded_len(), whole.len(), "the body counts");
    let read = session.replay(committed.seq()).next().unwrap().unwrap();
    assert_eq!(read.encoded_len(), whole.len());
    // The log holds a reference.
    let entry = entries(&store).pop().unwrap();
    assert_eq!(entry.payload.len(), whole.len() - *length as usize + 40);
}

/// P4: all ways to read give what was committed, and the same as if it stood in the log.
#[test]
fn live_history_and_restored_history_are_the_same() {
    let disk = SimVfs::new();
    let store = open(&disk);
    let session = create(&store);
    let watcher = Watcher::on(&disk, &session);
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let loop_id = main.id();
    let long = "what the user pasted ".repeat(100);
    let mut turn = main.begin_turn(UserMessage::text(&long)).unwrap();
    let mut live = vec![Message::User(UserMessage::text(&long))];
    let mut step_id = None;
    for number in 0..4 {
        let step = large_step(&format!("step {number}"), 400 + 700 * number);
        let event = HostEvent {
            name: "host".into(),
            version: 1,
            data: RawJson::parse(format!("[\"{}\"]", "h".repeat(2000)).as_bytes()).unwrap(),
            optional: number % 2 == 0,
        };
        let done = turn.commit_step(step.host_event(event)).unwrap();
        live.extend(done.committed().body.messages.iter().cloned());
        step_id = Some(done.committed().header.coordinates.step);
    }
    let folded = TurnFoldedInto {
        turn_index: 1,
        message: UserMessage::text(&long),
    };
    let folded = Draft::new(folded).in_loop(loop_id).in_turn(turn.id());
    session.commit(vec![folded]).unwrap();
    live.push(Message::User(UserMessage::text(&long)));
    turn.commit_last_step(text_step(&"the end ".repeat(300)))
        .unwrap();
    live.push(Message::Assistant(AssistantMessage::text(
        "the end ".repeat(300),
    )));
    assert!(blobs(&disk).len() >= 10, "{:?}", blobs(&disk));
    let kinds: Vec<Kind> = watcher.seen().iter().map(|(_, kind, _)| *kind).collect();
    let seen = events(&session);
    let lengths = |session: &Session| -> Vec<usize> {
        let all = session.replay(Seq::new(1));
        all.map(|event| event.unwrap().encoded_len()).collect()
    };
    let said = |session: &Session| -> Vec<Message> {
        let history = session.history().unwrap().into_iter();
        history.map(|item| (*item.message).clone()).collect()
    };
    let context = |session: &Session| -> Vec<Message> {
        let messages = session.loop_context(loop_id).unwrap().into_iter();
        messages.map(|message| (*message).clone()).collect()
    };
    assert_eq!(said(&session), live);
    assert_eq!(context(&session), live);
    let before = lengths(&session);
    drop((main, session, store));
    for session in [
        read_only(&disk),
        store_with(&disk, with_threshold(usize::MAX))
            .open_session(id(), Mode::Write)
            .unwrap()
            .0,
    ] {
        assert_eq!(said(&session), live);
        assert_eq!(context(&session), live);
        assert_eq!(events(&session)[..seen.len()], seen);
        assert_eq!(lengths(&session)[..seen.len()], before);
        assert_eq!(session.steps(), 5);
        let found = session.step(step_id.unwrap()).unwrap().unwrap();
        assert_eq!(found.body.messages[..], live[7..9]);
        let page = session
            .history_page(stepwell::store::HistoryPage::last(3))
            .unwrap();
        let page: Vec<Message> = page.iter().map(|item| (*item.message).clone()).collect();
        assert_eq!(page[..], live[live.len() - page.len()..]);
    }
    // Also as a follower in another process has them.
    let store = store_with(&disk.new_process(), options());
    let followed: Vec<(Seq, Event)> = entries(&store)
        .iter()
        .map(|entry| store.event_of(id(), entry).unwrap().unwrap().0)
        .map(|committed| (committed.seq(), committed.event().clone()))
        .collect();
    assert_eq!(followed[..seen.len()], seen);
    assert_eq!(
        followed[1..seen.len()]
            .iter()
            .map(|(_, event)| event.kind())
            .collect::<Vec<_>>(),
        kinds
    );
}

/// P13, and P6: an opening needs no body of any record.
#[test]
fn an_opening_and_a_listing_read_no_bodies() {
    for mode in [Mode::Read, Mode::Write] {
        let disk = SimVfs::new();
        disk.set_tracing(false);
        let session = create(&open(&disk));
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
        for number in 0..30 {
            turn.commit_step(large_step(&number.to_string(), 100_000))
                .unwrap();
        }
        session.witness().unwrap();
        let steps = session.steps();
        drop((main, session));
        disk.kill();
        let read = Arc::new(AtomicU64::new(0));
        let count = read.clone();
        disk.set_hook(move |op| {
            assert!(
                !is_blob(op) || matches!(op, Op::List { .. }),
                "an opening looked into {op:?}"
            );
            if let Op::Read { length, .. } = op {
                count.fetch_add(*length as u64, Ordering::Relaxed);
            }
        });
        let store = open(&disk);
        let [entry] = &store.sessions().unwrap()[..] else {
            panic!("not one session");
        };
        assert_eq!(entry.state.as_ref().unwrap().unreadable, None);
        read.store(0, Ordering::Relaxed);
        let (session, report) = store.open_session(id(), mode).unwrap();
        disk.clear_hook();
        assert!(report.is_clean());
        assert_eq!(session.steps(), steps);
        assert_eq!(report.open_turns.len(), 1);
        let read = read.load(Ordering::Relaxed);
        assert!(read < 256 * 1024, "{read} bytes for 3 MB of bodies");
    }
}

fn damaged(disk: &SimVfs, path: &std::path::Path, kind: usize) -> BodyProblem {
    let length = disk.read_file(path).unwrap().len() as u64;
    let wrong = |found| BodyProblem::Length {
        found,
        expected: length,
    };
    match kind {
        0 => {
            disk.remove(path).unwrap();
            BodyProblem::Missing
        }
        1 => {
            disk.truncate(path, length - 1).unwrap();
            wrong(length - 1)
        }
        2 => {
            let mut bytes = disk.read_file(path).unwrap();
            bytes.push(b' ');
            disk.put_file(path, &bytes).unwrap();
            wrong(length + 1)
        }
        3 => {
            disk.truncate(path, 0).unwrap();
            wrong(0)
        }
        offset => {
            disk.flip_byte(path, (offset as u64 * 97) % length).unwrap();
            BodyProblem::Digest
        }
    }
}

/// P6: a body that is not what was written is named by its file and its record, whoever reads it, and
/// hides nothing else.
#[test]
fn a_damaged_body_is_named_and_hides_nothing() {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let session = create(&open(&disk));
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let mut seqs = Vec::new();
    for number in 0..3 {
        turn.commit_step(text_step("small")).unwrap();
        let done = turn
            .commit_step(large_step(&number.to_string(), 2000))
            .unwrap();
        seqs.push(done.seq());
    }
    let whole = events(&session);
    session.witness().unwrap();
    drop((main, session));
    disk.kill();
    let (path, _) = blobs(&disk)[1].clone();
    for kind in 0..24 {
        let disk = disk.snapshot();
        let problem = damaged(&disk, &path, kind);
        let error = ReplayError::Body {
            seq: seqs[1],
            path: path.clone(),
            problem,
        };
        let check = |session: &Session| {
            let mut found = Vec::new();
            let mut errors = Vec::new();
            for event in session.replay(Seq::new(1)).take(whole.len()) {
                match event {
                    Ok(event) => found.push((event.seq(), event.event().clone())),
                    Err(error) => errors.push(error),
                }
            }
            assert_eq!(errors, std::slice::from_ref(&error));
            let mut rest = whole.clone();
            rest.retain(|(seq, _)| *seq != seqs[1]);
            assert_eq!(found, rest);
            assert_eq!(session.history().unwrap_err(), error);
            let all = session.read_history(Seq::new(1));
            assert_eq!(all.filter(Result::is_err).count(), 1);
        };
        let session = read_only(&disk);
        check(&session);
        drop(session);
        let report = open(&disk).verify(id()).unwrap();
        assert_eq!(report.unreadable, std::slice::from_ref(&error));
        assert_eq!(report.events as usize, whole.len() - 1);
        // It is no reason not to go on.
        let (session, report) = open(&disk).open_session(id(), Mode::Write).unwrap();
        assert!(report.is_clean(), "{report}");
        check(&session);
        let mut main = session.loop_by_name("main").unwrap().unwrap();
        drop(main.begin_turn(UserMessage::text("on")).unwrap());
        let mut lines = Vec::new();
        let exported = session.export(&mut lines).unwrap_err();
        assert!(exported.to_string().contains(&error.to_string()));
    }
    // What the disk does not give.
    let eio = disk.snapshot();
    let bad = path.clone();
    eio.fail_from(
        move |op| matches!(op, Op::Read { .. }) && op.path() == bad,
        0,
        FaultKind::Eio,
    );
    let found = read_only(&eio).history().unwrap_err();
    assert!(
        matches!(&found, ReplayError::Body { seq, problem: BodyProblem::Disk(error), .. }
            if *seq == seqs[1] && error.path == path),
        "{found:?}"
    );
}

/// A record above the watermark whose body is lost does not keep the session closed; it is named.
#[test]
fn a_lost_body_of_a_recovered_record_is_in_the_report() {
    let disk = SimVfs::new();
    let session = create(&open(&disk));
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let done = turn.commit_step(large_step("x", 2000)).unwrap();
    let (seq, whole) = (done.seq(), done.committed().event().clone().erase());
    drop((main, session));
    disk.kill();
    let sound = disk.snapshot();
    let (_, report) = open(&sound).open_session(id(), Mode::Write).unwrap();
    assert_eq!(report.recovered.last().unwrap().event(), &whole);
    assert!(report.is_clean());
    let (path, _) = blobs(&disk).remove(0);
    disk.remove(&path).unwrap();
    let (session, report) = open(&disk).open_session(id(), Mode::Write).unwrap();
    let lost = ReplayError::Body {
        seq,
        path,
        problem: BodyProblem::Missing,
    };
    assert_eq!(report.unreadable, Some(lost));
    assert!(report.recovered.iter().all(|event| event.seq() < seq));
    assert_eq!(session.steps(), 1);
}

fn draft(loop_id: LoopId, name: &str, bytes: usize) -> Draft {
    let event = HostEvent {
        name: name.into(),
        version: 1,
        data: RawJson::parse(format!("\"{}\"", "d".repeat(bytes)).as_bytes()).unwrap(),
        optional: false,
    };
    Draft::new(event).in_loop(loop_id)
}

fn seq(ticket: Ticket<Result<Vec<Outcome>, CommitError>>) -> u64 {
    let outcomes = ticket.wait_for(LIMIT).unwrap().unwrap().unwrap();
    outcomes[0].seq().get()
}

/// Nothing that depends on a commit overtakes it while its body is written, what does not depend on it
/// goes on, and who submits never waits.
#[test]
fn commits_keep_their_places_while_a_body_is_written() {
    let disk = SimVfs::new();
    let session = create(&open(&disk));
    let one = session.create_loop(LoopSpec::new("one")).unwrap();
    let two = session.create_loop(LoopSpec::new("two")).unwrap();
    let last = session.last_seq().get();
    let stall = disk.stall(|op| is_blob(op) && matches!(op, Op::SyncData { .. }));
    let large = session.submit(vec![draft(one.id(), "large", 5000)]);
    assert!(stall.wait_for(1, LIMIT), "the workers write it");
    let behind = session.submit(vec![draft(one.id(), "behind", 10)]);
    let other = session.submit(vec![draft(two.id(), "other", 10)]);
    assert_eq!(seq(other), last + 1);
    let alone = session.submit(vec![draft(LoopId::nil(), "alone", 10)]);
    let later = session.submit(vec![draft(two.id(), "later", 10)]);
    drop(stall);
    assert_eq!(seq(large), last + 2);
    assert_eq!(seq(behind), last + 3);
    assert_eq!(seq(alone), last + 4);
    assert_eq!(seq(later), last + 5);
    let names: Vec<String> = session
        .replay(Seq::new(last + 1))
        .map(|event| match &event.unwrap().event().body {
            Body::HostEvent(host) => host.name.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, ["other", "large", "behind", "alone", "later"]);
}

/// A commit that names its place is behind that record also when its body takes a while.
#[test]
fn a_commit_behind_a_record_holds_the_session_while_its_body_is_written() {
    let disk = SimVfs::new();
    let session = create(&open(&disk));
    let one = session.create_loop(LoopSpec::new("one")).unwrap();
    let two = session.create_loop(LoopSpec::new("two")).unwrap();
    let last = session.last_seq();
    let stall = disk.stall(|op| is_blob(op) && matches!(op, Op::SyncData { .. }));
    let behind = session.submit_behind(last, vec![draft(one.id(), "behind", 5000)]);
    assert!(stall.wait_for(1, LIMIT));
    let other = session.submit(vec![draft(two.id(), "other", 10)]);
    drop(stall);
    assert_eq!(seq(behind), last.get() + 1);
    assert_eq!(seq(other), last.get() + 2);
    // And the session is given back.
    let again = session.submit(vec![draft(two.id(), "again", 5000)]);
    assert_eq!(seq(again), last.get() + 3);
}

/// Without threads everything is run by who waits, or by hand.
#[test]
fn without_threads_bodies_are_written_by_who_waits() {
    let disk = SimVfs::new();
    let options = StoreOptions {
        workers: stepwell::journal::Workers::manual(),
        ..with_threshold(LARGE)
    };
    let workers = options.workers.clone();
    let session = create(&store_with(&disk, options));
    let one = session.create_loop(LoopSpec::new("one")).unwrap();
    let large = session.submit(vec![draft(one.id(), "large", 5000)]);
    assert_eq!(blobs(&disk), [], "a submit does no work");
    // It waits behind the other, whose body nobody has written yet.
    let done = session
        .commit(vec![draft(one.id(), "blocking", 5000)])
        .unwrap();
    assert_eq!(done[0].seq().get(), seq(large) + 1);
    let large = session.submit(vec![draft(one.id(), "by hand", 5000)]);
    while workers.run_one() {}
    assert_eq!(seq(large), done[0].seq().get() + 1);
    assert_eq!(blobs(&disk).len(), 3);
    assert!(blobs(&disk).iter().all(|(path, _)| !is_new(path)));
}

/// A commit runs to its end whatever becomes of its ticket, and whenever its caller dies it is there whole
/// or not at all.
#[test]
fn a_ticket_dropped_at_any_piece_of_the_work_changes_nothing() {
    let mut whole = 0;
    for pieces in 0..4 {
        let disk = SimVfs::new();
        let options = StoreOptions {
            workers: stepwell::journal::Workers::manual(),
            ..with_threshold(LARGE)
        };
        let workers = options.workers.clone();
        let session = create(&store_with(&disk, options));
        let one = session.create_loop(LoopSpec::new("one")).unwrap();
        let last = session.last_seq();
        let batch = vec![draft(one.id(), "a", 3000), draft(one.id(), "b", 3000)];
        let ticket = session.submit(batch);
        for _ in 0..pieces {
            workers.run_one();
        }
        drop(ticket);
        for loss in [PowerLoss::DropAll, PowerLoss::Seeded(1)] {
            let disk = disk.snapshot();
            disk.power_loss(loss);
            let (session, _) = open(&disk).open_session(id(), Mode::Write).unwrap();
            let found = session.replay(last.next()).map(|event| event.unwrap());
            let found: Vec<Kind> = found.map(|event| event.event().kind()).collect();
            let is_whole = found.starts_with(&[Kind::HostEvent; 2]);
            assert!(is_whole || !found.contains(&Kind::HostEvent), "{found:?}");
            assert_eq!(blobs(&disk).len(), if is_whole { 2 } else { 0 });
            whole += usize::from(is_whole);
        }
        // Also when the last handle goes.
        drop((one, session));
        while workers.run_one() {}
        disk.kill();
        assert_eq!(read_only(&disk).last_seq().get(), last.get() + 2);
    }
    assert!((2..8).contains(&whole), "{whole}");
}

/// Queues are bounded: who cannot wait is refused when too many bytes of bodies are under way.
#[test]
fn bodies_under_way_are_bounded_in_bytes() {
    let disk = SimVfs::new();
    let mut options = with_threshold(LARGE);
    options.journal.queue_bytes = 12_000;
    let session = create(&store_with(&disk, options));
    let loops: Vec<_> = ["a", "b", "c", "d"]
        .map(|name| session.create_loop(LoopSpec::new(name)).unwrap())
        .into();
    let stall = disk.stall(|op| is_blob(op) && matches!(op, Op::SyncData { .. }));
    let large = |index: usize| session.submit(vec![draft(loops[index].id(), "large", 5000)]);
    let (first, second) = (large(0), large(1));
    let refused = large(2).wait_for(LIMIT).unwrap().unwrap();
    assert!(
        matches!(
            refused,
            Err(CommitError::NotCommitted(Refusal::Journal(NotCommitted::Busy { bytes, .. })))
                if bytes > 10_000
        ),
        "{refused:?}"
    );
    // A small one is no body.
    seq(session.submit(vec![draft(loops[3].id(), "small", 10)]));
    drop(stall);
    seq(first);
    seq(second);
    seq(large(2));
    assert_eq!(blobs(&disk).len(), 3);
}

#[test]
fn a_session_that_is_closed_while_a_body_is_written_refuses_it_and_keeps_no_file() {
    let disk = SimVfs::new();
    let store = open(&disk);
    let session = create(&store);
    let main = session.create_loop(LoopSpec::new("main")).unwrap();
    let last = session.last_seq();
    let stall = disk.stall(|op| is_blob(op) && matches!(op, Op::SyncData { .. }));
    let large = session.submit(vec![draft(main.id(), "large", 5000)]);
    assert!(stall.wait_for(1, LIMIT));
    session.close().unwrap();
    drop(stall);
    let refused = large.wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(
        refused,
        Err(CommitError::NotCommitted(Refusal::Journal(
            NotCommitted::Closed
        )))
    );
    assert_eq!(blobs(&disk), []);
    drop((main, session));
    // Also where a worker has the session for a moment more.
    store.close().unwrap();
    let (_, report) = open(&disk).open_session(id(), Mode::Write).unwrap();
    assert_eq!(report.committed, last);
}

/// Idempotency: the body is compared by its digest, wherever it stood and stands.
#[test]
fn keys_compare_bodies_wherever_they_stand() {
    for thresholds in [[LARGE; 2], [LARGE, usize::MAX], [usize::MAX, LARGE]] {
        let disk = SimVfs::new();
        let key = || Key::new("once").unwrap();
        let session = create(&store_with(&disk, with_threshold(thresholds[0])));
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
        let step = || large_step("x", 3000).key(key());
        let first = turn.commit_step(step()).unwrap();
        assert!(turn.commit_step(step()).unwrap().is_duplicate());
        drop((main, session));
        disk.kill();
        let store = store_with(&disk, with_threshold(thresholds[1]));
        let (session, _) = store.open_session(id(), Mode::Write).unwrap();
        let mut main = session.loop_by_name("main").unwrap().unwrap();
        let mut turn = main.begin_turn(UserMessage::text("on")).unwrap();
        let files = blobs(&disk);
        let again = turn.commit_step(step()).unwrap();
        assert!(again.is_duplicate());
        assert_eq!(again.seq(), first.seq());
        assert_eq!(again.committed().body, first.committed().body);
        assert_eq!(blobs(&disk), files, "a repeat writes nothing");
        let refused = turn.commit_step(large_step("y", 3000).key(key()));
        assert_eq!(
            refused,
            Err(CommitError::NotCommitted(Refusal::KeyReused {
                key: key(),
                first: first.seq()
            }))
        );
        if let [(path, _)] = &files[..] {
            disk.flip_byte(path, 100).unwrap();
            let refused = turn.commit_step(step());
            assert!(
                matches!(
                    &refused,
                    Err(CommitError::NotCommitted(Refusal::FirstUnreadable(
                        ReplayError::Body { seq, .. }
                    ))) if *seq == first.seq()
                ),
                "a repeat is not committed again: {refused:?}"
            );
        }
    }
}

/// Every failure of the disk before the record refuses the commit for certain; nothing of it is in the
/// log or beside it, the turn stays open and the session goes on.
#[test]
fn a_file_that_cannot_be_written_is_a_refusal_and_leaves_nothing() {
    type Hit = (&'static str, fn(&Op) -> bool, FaultKind);
    let hits: [Hit; 7] = [
        (
            "full",
            |op| matches!(op, Op::Write { .. }),
            FaultKind::Enospc,
        ),
        (
            "quota",
            |op| matches!(op, Op::Create { .. }),
            FaultKind::Edquot,
        ),
        (
            "write",
            |op| matches!(op, Op::Write { .. }),
            FaultKind::FailedWrite(300),
        ),
        (
            "sync",
            |op| matches!(op, Op::SyncData { .. }),
            FaultKind::SyncKept(PowerLoss::DropAll),
        ),
        (
            "directory",
            |op| matches!(op, Op::SyncDir { .. }),
            FaultKind::DirSync(PowerLoss::DropAll),
        ),
        (
            "handles",
            |op| matches!(op, Op::OpenDir { .. }),
            FaultKind::Emfile,
        ),
        (
            "create",
            |op| matches!(op, Op::Create { .. }),
            FaultKind::Eio,
        ),
    ];
    for (what, hit, fault) in hits {
        let disk = SimVfs::new();
        let session = create(&open(&disk));
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
        turn.commit_step(large_step("before", 2000)).unwrap();
        let before = (session.last_seq(), blobs(&disk));
        let fired = disk.faults_fired();
        disk.fail_nth(move |op| is_blob(op) && hit(op), 0, fault);
        let refused = turn.commit_step(large_step("fails", 2000)).unwrap_err();
        assert_eq!(disk.faults_fired(), fired + 1, "{what}");
        let CommitError::NotCommitted(refusal) = &refused else {
            panic!("{what}: {refused:?}");
        };
        let right = match what {
            "full" | "quota" => {
                matches!(refusal, Refusal::Journal(NotCommitted::StorageFull(error)) if is_new(&error.path))
            }
            "handles" => {
                matches!(
                    refusal,
                    Refusal::Journal(NotCommitted::TooManyHandles { .. })
                )
            }
            _ => matches!(refusal, Refusal::Blob(_)),
        };
        assert!(right, "{what}: {refusal:?}");
        assert_eq!((session.last_seq(), blobs(&disk)), before, "{what}");
        assert_eq!(session.fault(), None);
        turn.commit_step(large_step("after", 2000)).unwrap();
        turn.finish().unwrap();
        let history = session.history().unwrap();
        drop((main, session));
        disk.power_loss(PowerLoss::DropAll);
        assert_eq!(read_only(&disk).history().unwrap(), history, "{what}");
        assert!(open(&disk).verify(id()).unwrap().is_intact());
    }
}

/// What the log refuses for certain when the body is written already leaves no file either: no room for
/// the next segment, or too much that waits.
#[test]
fn a_record_that_the_log_refuses_leaves_no_file() {
    let disk = SimVfs::new();
    let session = create(&open(&disk));
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    disk.fail_from(
        |op| matches!(op, Op::Create { path } if path.to_string_lossy().contains("seg-")),
        0,
        FaultKind::Enospc,
    );
    let mut committed = 0;
    let refused = loop {
        match turn.commit_step(large_step("x", 2000)) {
            Ok(_) => committed += 1,
            Err(refused) => break refused,
        }
    };
    assert!(
        matches!(
            refused,
            CommitError::NotCommitted(Refusal::Journal(NotCommitted::StorageFull(_)))
        ),
        "{refused:?}"
    );
    assert!(committed > 10);
    assert_eq!(blobs(&disk).len(), committed);
    disk.clear_faults();
    turn.commit_step(large_step("x", 2000)).unwrap();
    assert_eq!(blobs(&disk).len(), committed + 1);

    let disk = SimVfs::new();
    let mut options = with_threshold(LARGE);
    options.journal.queue_records = 1;
    options.journal.queue_bytes = 6000;
    let session = create(&store_with(&disk, options));
    let loops: Vec<_> = ["a", "b", "c"]
        .map(|name| session.create_loop(LoopSpec::new(name)).unwrap())
        .into();
    let submit = |index: usize, bytes| session.submit(vec![draft(loops[index].id(), "x", bytes)]);
    let stall = disk.stall(|op| {
        matches!(op, Op::SyncData { .. }) && op.path().to_string_lossy().contains("seg-")
    });
    let flying = submit(0, 10);
    assert!(stall.wait_for(1, LIMIT));
    let queued = submit(1, 10);
    let refused = submit(2, 5000).wait_for(LIMIT).unwrap().unwrap();
    assert!(
        matches!(
            refused,
            Err(CommitError::NotCommitted(Refusal::Journal(
                NotCommitted::Busy { .. }
            )))
        ),
        "{refused:?}"
    );
    assert_eq!(blobs(&disk), []);
    drop(stall);
    seq(flying);
    seq(queued);
    // Its bytes and its loop are given back.
    seq(submit(2, 5000));
    assert_eq!(blobs(&disk).len(), 1);
}

/// Ids that a host repeats lead no file to a wrong record.
#[test]
fn an_orphan_with_the_id_of_a_record_takes_no_place() {
    let disk = SimVfs::new();
    let session = create(&open(&disk));
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let one = turn.commit_step(large_step("one", 2000)).unwrap();
    disk.fail_nth(|op| matches!(op, Op::Rename { .. }), 0, FaultKind::Eio);
    let two = turn.commit_step(large_step("two", 2000)).unwrap();
    turn.commit_step(text_step("three")).unwrap();
    let whole = session.history().unwrap();
    let dir = blobs(&disk)[0].0.parent().unwrap().to_owned();
    session.close().unwrap();
    drop((main, session));
    let fake = |seq: u64, of: &Outcome<StepDone>| {
        let event = of.committed().header.event_id;
        disk.put_file(dir.join(format!("{seq:020}-{event}.new")), b"{}")
            .unwrap();
    };
    fake(one.seq().get() - 1, &one);
    fake(two.seq().get() + 1, &two);
    assert_eq!(read_only(&disk).history().unwrap(), whole);
    for _ in 0..2 {
        let (session, _) = open(&disk).open_session(id(), Mode::Write).unwrap();
        assert_eq!(session.history().unwrap(), whole);
    }
    let left = blobs(&disk);
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.iter().all(|(path, _)| !is_new(path)));
}

/// The limit of a record counts its body, wherever it would stand, and names the tool.
#[test]
fn a_step_above_the_limit_is_refused_with_the_tool_that_is_at_fault() {
    let disk = SimVfs::new();
    let mut options = with_threshold(LARGE);
    options.limits.record_bytes = 20_000;
    let session = create(&store_with(&disk, options));
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let refused = turn.commit_step(large_step("x", 30_000)).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("result of the tool \"read\", call \"a\""),
        "{text}"
    );
    assert_eq!(blobs(&disk), []);
    turn.commit_step(large_step("x", 10_000)).unwrap();
    // What a reader with a lower limit must not take in it does not take in.
    let mut options = with_threshold(LARGE);
    options.limits.record_bytes = 5_000;
    let store = Store::on_existing(Arc::new(disk.clone()), "/store", options).unwrap();
    let found = entries(&store).pop().unwrap();
    let refused = store.event_of(id(), &found);
    assert!(
        matches!(refused, Err(ReplayError::Decode { .. })),
        "{refused:?}"
    );
}

/// A file that was not renamed is read under its first name, and gets its last one from the next
/// writer, however far the log has gone on.
#[test]
fn a_file_that_keeps_its_first_name_is_read_and_renamed_later() {
    for more in [0, 60] {
        let disk = SimVfs::new();
        let session = create(&open(&disk));
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
        disk.fail_nth(|op| matches!(op, Op::Rename { .. }), 0, FaultKind::Eio);
        turn.commit_step(large_step("kept", 2000)).unwrap();
        let [(path, _)] = &blobs(&disk)[..] else {
            panic!("{:?}", blobs(&disk));
        };
        assert!(is_new(path));
        for _ in 0..more {
            turn.commit_step(text_step(&"m".repeat(800))).unwrap();
        }
        let whole = session.history().unwrap();
        session.close().unwrap();
        drop((main, session));
        assert_eq!(read_only(&disk).history().unwrap(), whole);
        assert!(open(&disk).verify(id()).unwrap().is_intact());
        assert!(is_new(&blobs(&disk)[0].0), "who reads changes nothing");
        let (session, _) = open(&disk).open_session(id(), Mode::Write).unwrap();
        let [(path, _)] = &blobs(&disk)[..] else {
            panic!("{:?}", blobs(&disk));
        };
        assert!(!is_new(path));
        assert_eq!(session.history().unwrap()[..whole.len()], whole);
    }
}

/// What a failed commit left is removed by the next writer, and by no reader; not where a quarantined
/// file may name it, and nothing that is none of ours.
#[test]
fn orphans_are_removed_by_who_opens_for_writing_only() {
    let disk = SimVfs::new();
    let session = create(&open(&disk));
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    turn.commit_step(large_step("kept", 2000)).unwrap();
    disk.fail_nth(
        |op| is_blob(op) && matches!(op, Op::SyncData { .. }),
        0,
        FaultKind::Eio,
    );
    disk.fail_nth(|op| matches!(op, Op::RemoveFile { .. }), 0, FaultKind::Eio);
    turn.commit_step(large_step("fails", 2000)).unwrap_err();
    assert_eq!(blobs(&disk).len(), 2);
    let dir = blobs(&disk)[0].0.parent().unwrap().to_owned();
    disk.put_file(dir.join("notes.new"), b"of a person")
        .unwrap();
    drop((main, session));
    disk.kill();
    drop(read_only(&disk));
    open(&disk).verify(id()).unwrap();
    open(&disk).sessions().unwrap();
    assert_eq!(blobs(&disk).len(), 3, "who reads changes nothing");
    let quarantined = disk.snapshot();
    let folder = open(&disk).session_dir(id()).join("quarantine");
    let _ = quarantined.create_dir(&folder);
    quarantined.put_file(folder.join("seg-0"), b"x").unwrap();
    drop(open(&quarantined).open_session(id(), Mode::Write).unwrap());
    assert_eq!(
        blobs(&quarantined).len(),
        3,
        "a quarantined file may name it"
    );
    quarantined.remove(folder.join("seg-0")).unwrap();
    drop(open(&quarantined).open_session(id(), Mode::Write).unwrap());
    for disk in [&quarantined, &disk] {
        let (session, _) = open(disk).open_session(id(), Mode::Write).unwrap();
        let left = blobs(disk);
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left.iter().any(|(path, _)| path.ends_with("notes.new")));
        assert_eq!(session.history().unwrap().len(), 3);
    }
}
