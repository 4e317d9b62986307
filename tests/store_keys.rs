//! Idempotency: exact within the horizon, also across restarts, also against rot.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use store_support::*;

#[test]
fn a_repeated_key_gives_the_first_commit_also_after_a_restart() {
    let disk = SimVfs::new();
    let store = store(&disk);
    let session = store.create_session(SessionSpec::new()).unwrap();
    let watcher = Watcher::on(&disk, &session);
    let key = || Key::new("step-1").unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let first = turn.commit_step(tool_step().key(key())).unwrap();
    let told = watcher.seen().len();
    let again = turn.commit_step(tool_step().key(key())).unwrap();
    assert!(!first.is_duplicate() && again.is_duplicate());
    assert_eq!(again.seq(), first.seq());
    assert_eq!(again.committed().body, first.committed().body);
    assert_eq!(
        watcher.seen().len(),
        told,
        "a duplicate is not published again"
    );
    assert_eq!(
        turn.commit_step(text_step("other").key(key())),
        Err(CommitError::NotCommitted(Refusal::KeyReused {
            key: key(),
            first: first.seq(),
        }))
    );
    let id = session.id();
    drop((main, session, store));
    disk.power_loss(PowerLoss::DropAll);
    let (session, _) = self::store(&disk).open_session(id, Mode::Write).unwrap();
    let history = session.history().unwrap();
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go on")).unwrap();
    let again = turn.commit_step(tool_step().key(key())).unwrap();
    assert!(again.is_duplicate());
    assert_eq!(again.seq(), first.seq());
    assert_eq!(session.history().unwrap().len(), history.len() + 1);
}

#[test]
fn keys_are_exact_within_the_horizon() {
    let disk = SimVfs::new();
    let horizon = StoreOptions {
        keyed_horizon: 3,
        ..options()
    };
    let session = store_with(&disk, horizon)
        .create_session(SessionSpec::new())
        .unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let mut commit = |number: u32| {
        let key = Key::new(format!("key-{number}")).unwrap();
        let step = text_step(&format!("step {number}")).key(key);
        turn.commit_step(step).unwrap().is_duplicate()
    };
    for number in 0..5 {
        assert!(!commit(number));
    }
    assert!(commit(4) && commit(3) && commit(2));
    assert!(!commit(0), "beyond the horizon it is new again");
}

/// P3: a repeated step repeats what the host bound to it; it is not committed a second time.
#[test]
fn a_repeated_step_does_not_commit_its_host_event_again() {
    let session = Store::in_memory()
        .unwrap()
        .create_session(SessionSpec::new())
        .unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let draft = || {
        let charge = HostEvent {
            name: "billing.charge".into(),
            version: 1,
            data: RawJson::parse(b"{\"cents\":3}").unwrap(),
            optional: false,
        };
        tool_step()
            .key(Key::new("once").unwrap())
            .host_event(charge)
    };
    assert!(!turn.commit_step(draft()).unwrap().is_duplicate());
    let last = session.last_seq();
    assert!(turn.commit_step(draft()).unwrap().is_duplicate());
    assert_eq!(session.last_seq(), last, "nothing was written");
}

/// Finding of an attack: one batch with one key on two bodies committed both.
#[test]
fn one_key_twice_in_a_batch_is_refused() {
    use stepwell::store::Draft;
    let session = Store::in_memory()
        .unwrap()
        .create_session(SessionSpec::new())
        .unwrap();
    let keyed = |name: &str| {
        let event = HostEvent {
            name: name.into(),
            version: 1,
            data: RawJson::null(),
            optional: false,
        };
        Draft::new(event).key(Key::new("k").unwrap())
    };
    let refused = session.commit(vec![keyed("a"), keyed("b")]);
    assert!(
        matches!(
            refused,
            Err(CommitError::NotCommitted(Refusal::KeyTwice { .. }))
        ),
        "{refused:?}"
    );
    assert_eq!(session.last_seq(), Seq::new(1));
}

/// Finding of an attack: with the first keyed record rotten, its repeat was committed again. A record
/// that is known to stand there and does not is damage, not an unknown key.
#[test]
fn a_repeat_of_a_rotten_record_is_refused_and_not_committed_again() {
    let disk = SimVfs::new();
    let store = store(&disk);
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let step = || text_step("once").key(Key::new("k").unwrap());
    let first = turn.commit_step(step()).unwrap();
    let position = store
        .journal_view(session.id())
        .unwrap()
        .read(first.committed().lsn())
        .next()
        .unwrap()
        .unwrap()
        .position;
    let path = store
        .session_dir(session.id())
        .join(position.segment.to_string());
    for offset in [20, 100] {
        disk.flip_byte(&path, position.offset + offset).unwrap();
        let refused = turn.commit_step(step());
        assert!(
            matches!(
                refused,
                Err(CommitError::NotCommitted(Refusal::FirstUnreadable(_)))
            ),
            "{refused:?}"
        );
        disk.flip_byte(&path, position.offset + offset).unwrap();
    }
    assert!(turn.commit_step(step()).unwrap().is_duplicate());
}
