//! What a host says of a session: changed by events, folded, carried, listed, exported.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::collections::BTreeMap;

use stepwell::event::{EncodeError, LimitKind, SessionChanged, SessionStarted};
use stepwell::identity::SessionId;
use stepwell::store::{Metadata, SessionChange};
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

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()));
    pairs.collect()
}

fn started() -> SessionSpec {
    SessionSpec::new().id(id()).started(SessionStarted {
        title: Some("first".into()),
        labels: labels(&[("team", "core"), ("old", "yes")]),
        ..SessionStarted::default()
    })
}

const HOST: &str = r#"{"a": 1e400,  "A":"\ud83d"}"#;

fn change() -> SessionChange {
    SessionChange::title("second")
        .label("team", "edge")
        .label("new", "1")
        .without_label("old")
        .host(RawJson::parse(HOST).unwrap())
}

fn is_changed(found: &Metadata) {
    assert_eq!(found.title.as_deref(), Some("second"));
    assert_eq!(found.labels, labels(&[("team", "edge"), ("new", "1")]));
    assert_eq!(found.host.as_ref().unwrap().get(), HOST);
}

fn listed(store: &Store) -> Metadata {
    let entries = store.sessions().unwrap();
    entries[0].state.clone().unwrap().metadata
}

#[test]
fn a_change_is_an_event_and_comes_back_after_a_restart() {
    let disk = SimVfs::new();
    let store = store(&disk);
    let session = store.create_session(started()).unwrap();
    assert_eq!(
        session.metadata().labels,
        labels(&[("team", "core"), ("old", "yes")])
    );
    let committed = session.change(change()).unwrap();
    assert_eq!(committed.seq(), Seq::new(2));
    // A version that does not know the kind may pass over it.
    let entries = store
        .journal_view(id())
        .unwrap()
        .read(stepwell::journal::Lsn::ZERO);
    let records: Vec<_> = entries
        .map(Result::unwrap)
        .filter(|entry| entry.seq == Seq::new(2))
        .collect();
    assert_eq!((records[0].payload[1], records[0].payload[4]), (1, 9));
    is_changed(&session.metadata());
    assert_eq!(session.title().as_deref(), Some("second"));
    // What is not named stays; a title can be taken away, and so can the data.
    session
        .change(SessionChange::new().label("x", "y"))
        .unwrap();
    assert_eq!(session.title().as_deref(), Some("second"));
    session
        .change(SessionChange::new().without_label("x"))
        .unwrap();
    drop(session);
    disk.kill();
    let store = store_support::store(&disk);
    let (session, _) = store.open_session(id(), Mode::Write).unwrap();
    is_changed(&session.metadata());
    is_changed(&listed(&store));
    session
        .change(SessionChange::title("").host(RawJson::null()))
        .unwrap();
    let bare = session.metadata();
    assert_eq!((bare.title, bare.host), (None, None));
}

#[test]
fn async_callers_change_it_too_and_with_a_step_it_is_one_batch() {
    let disk = SimVfs::new();
    let store = store(&disk);
    let session = store.create_session(started()).unwrap();
    let outcomes = session.submit_change(change()).wait().unwrap().unwrap();
    assert_eq!(outcomes[0].committed().event().kind(), Kind::SessionChanged);
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let turn = main.begin_turn(UserMessage::text("hello")).unwrap();
    let (loop_id, turn) = (session.loops()[0].0, turn.id());
    let mut batch = text_step("step").into_drafts(loop_id, turn, "main".into());
    batch.push(SessionChange::title("by a step").into());
    let syncs = disk.sync_count("seg-");
    session.commit(batch).unwrap();
    assert_eq!(disk.sync_count("seg-"), syncs + 1);
    assert_eq!(session.title().as_deref(), Some("by a step"));
}

#[test]
fn what_is_too_much_or_nothing_is_refused() {
    let disk = SimVfs::new();
    let store = store(&disk);
    let session = store.create_session(started()).unwrap();
    let max = SessionChanged::MAX_BYTES as usize;
    let refused = |change| match session.change(change) {
        Err(CommitError::NotCommitted(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(SessionChange::new()), Refusal::Empty);
    match refused(SessionChange::title("x".repeat(max + 1))) {
        Refusal::Encode(EncodeError::Limit(limit)) => {
            assert_eq!(
                (limit.kind, limit.got),
                (LimitKind::Metadata, max as u64 + 1)
            );
        }
        other => panic!("{other:?}"),
    }
    // Each fits, both together do not.
    session
        .change(SessionChange::new().label("big", "x".repeat(max - 100)))
        .unwrap();
    match refused(SessionChange::title("y".repeat(200))) {
        Refusal::Order(OrderError::TooMuchMetadata { got, max: limit }) => {
            assert!(got > limit && limit == max);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(session.title().as_deref(), Some("first"));
    session
        .change(SessionChange::new().without_label("big"))
        .unwrap();
    session
        .change(SessionChange::title("y".repeat(200)))
        .unwrap();
    let stopped = stepwell::store::Draft::new(stepwell::event::SessionStopped {});
    session.commit(vec![stopped]).unwrap();
    assert_eq!(
        refused(SessionChange::title("z")),
        Refusal::Order(OrderError::Stopped)
    );
}

/// The listing finds a change wherever it stands: in the tail, before it with a carry record, and
/// before segments that recovery closed without one.
#[test]
fn the_listing_shows_the_last_change_wherever_it_stands() {
    for reopened in [0, 1, 3] {
        let disk = SimVfs::new();
        disk.set_tracing(false);
        let options = || StoreOptions {
            journal: JournalOptions {
                // Recovery closes segments instead of copying them.
                supersede_limit: 0,
                ..small().journal
            },
            ..small()
        };
        let mut store = store_with(&disk, options());
        let mut session = store.create_session(started()).unwrap();
        session.change(change()).unwrap();
        for round in 0..=reopened {
            if round > 0 {
                drop(session);
                disk.kill();
                store = store_with(&disk, options());
                session = store.open_session(id(), Mode::Write).unwrap().0;
            }
            if round > 0 || reopened == 0 {
                session
                    .create_loop(LoopSpec::new(format!("loop {round}")))
                    .unwrap();
                let mut main = session
                    .loop_by_name(&format!("loop {round}"))
                    .unwrap()
                    .unwrap();
                let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
                for number in 0..if reopened == 3 { 2 } else { 20 } {
                    turn.commit_step(text_step(&format!("{number} {}", "x".repeat(500))))
                        .unwrap();
                }
            }
            is_changed(&listed(&store));
        }
        session.close().unwrap();
        is_changed(&listed(&store));
        let report = store.verify(id()).unwrap();
        assert!(report.is_intact(), "{report:?}");
    }
}
