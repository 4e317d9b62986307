//! Rewinding a loop: its history and context are again those at a record, and what it left stays
//! addressable.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use stepwell::event::Rewound;
use stepwell::store::{Draft, ForkSpec, HistoryPage, Loop};
use store_support::*;

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

fn said(messages: &[Arc<stepwell::content::Message>]) -> Vec<String> {
    messages.iter().map(|message| message.to_text()).collect()
}

/// The history and the context of a loop.
type Looks = (Vec<String>, Vec<String>);

fn looks(main: &Loop) -> Looks {
    (
        said(&main.history().unwrap()),
        said(&main.context().unwrap()),
    )
}

fn page(session: &Session, page: HistoryPage) -> Vec<String> {
    let items = session.history_page(page).unwrap();
    items.iter().map(|item| item.message.to_text()).collect()
}

/// One turn of two steps; what the loop looks like at each record of it.
fn turn(main: &mut Loop, name: &str) -> Vec<(Seq, Looks)> {
    let mut moments = Vec::new();
    let mut begun = main.begin_turn(UserMessage::text(name)).unwrap();
    for step in 0..2 {
        let text = format!("{name} {step} {}", "x".repeat(300));
        let seq = begun.commit_step(text_step(&text)).unwrap().seq();
        let history = said(&begun.history().unwrap());
        moments.push((seq, (history.clone(), history)));
    }
    let done = begun.finish().unwrap().seq();
    moments.push((done, looks(main)));
    moments
}

/// Back to each record of three turns, live and over a restart; each time it goes on from there.
#[test]
fn a_loop_goes_on_from_where_it_was() {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let store = store_with(&disk, small());
    for back in 0..10 {
        let session = store.create_session(SessionSpec::new()).unwrap();
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let mut side = session.create_loop(LoopSpec::new("side")).unwrap();
        let mut moments = vec![(Seq::ZERO, looks(&main))];
        for name in ["one", "two", "three"] {
            moments.extend(turn(&mut main, name));
            turn(&mut side, name);
        }
        let beside = looks(&side);
        let everything = page(&session, HistoryPage::last(1000));
        let step = session.history().unwrap().last().unwrap().step;
        let (to, expected) = &moments[back];
        let before = session.last_seq();
        let marker = main.rewind(*to, "another way").unwrap();
        assert_eq!(
            (marker.body.to, marker.body.reason.as_str()),
            (to.get(), "another way")
        );
        assert_eq!(
            marker.seq(),
            before.next(),
            "one event, and no turn was open"
        );
        assert_eq!(&looks(&main), expected);
        assert_eq!(looks(&side), beside, "the other loop stays");
        // What was left is there.
        let at = session.history_at(before).unwrap();
        let at: Vec<String> = at.iter().map(|item| item.message.to_text()).collect();
        assert_eq!(at, everything);
        assert_eq!(
            page(&session, HistoryPage::last(1000).with_rewound()),
            everything
        );
        assert_eq!(
            page(&session, HistoryPage::first(1000).with_rewound()),
            everything
        );
        let now = page(&session, HistoryPage::last(1000));
        assert_eq!(page(&session, HistoryPage::first(1000)), now);
        let left = moments
            .iter()
            .filter(|(_, (history, _))| history.len() > expected.0.len())
            .count();
        assert_eq!(now.len() < everything.len(), left > 0);
        assert!(session.step(step).unwrap().is_some());
        let replayed = session.replay(Seq::new(1)).map(Result::unwrap);
        assert_eq!(replayed.count() as u64, session.last_seq().get());
        // It goes on, and a restart sees the same.
        let after = turn(&mut main, "four").pop().unwrap().1;
        assert_eq!(after.0[..expected.0.len()], expected.0[..]);
        let live = (looks(&main), session.history().unwrap());
        let id = session.id();
        drop((main, side));
        if back % 2 == 0 {
            session.close().unwrap();
        }
        drop(session);
        let (session, _) = store.open_session(id, Mode::Write).unwrap();
        let main = session.loop_by_name("main").unwrap().unwrap();
        assert_eq!((looks(&main), session.history().unwrap()), live);
        assert!(store.verify(id).unwrap().is_intact());
    }
}

/// A fork at a record that was rewound since, and one behind the marker; a rewinding in the child to what
/// its parent said.
#[test]
fn forks_and_rewinds_go_together() {
    if is_shared() {
        return;
    }
    let disk = SimVfs::new();
    let store = store_with(&disk, small());
    let parent = store.create_session(SessionSpec::new()).unwrap();
    let mut main = parent.create_loop(LoopSpec::new("main")).unwrap();
    let one = turn(&mut main, "one");
    let two = turn(&mut main, "two");
    let (to, back) = one.last().unwrap();
    let marker = main.rewind(*to, "").unwrap().seq();
    let (left, expected) = two.last().unwrap();
    let (old, _) = store.fork(parent.id(), ForkSpec::at(*left)).unwrap();
    let main_of = |session: &Session| session.loop_by_name("main").unwrap().unwrap();
    assert_eq!(&looks(&main_of(&old)), expected);
    let (new, _) = store.fork(parent.id(), ForkSpec::at(marker)).unwrap();
    assert_eq!(&looks(&main_of(&new)), back);
    let mut child = main_of(&old);
    child.rewind(one[0].0, "").unwrap();
    assert_eq!(looks(&child), one[0].1);
    assert_eq!(&looks(&main), back);
}

#[test]
fn an_open_turn_is_closed_with_the_marker_and_what_is_ahead_is_refused() {
    let disk = SimVfs::new();
    let store = store_with(&disk, small());
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let one = turn(&mut main, "one");
    let key = || Key::new("k").unwrap();
    let mut begun = main.begin_turn(UserMessage::text("two")).unwrap();
    let keyed = begun
        .commit_step(text_step("left").key(key()))
        .unwrap()
        .seq();
    drop(begun);
    let last = session.last_seq();
    let ahead = main.rewind(last.next(), "").unwrap_err();
    let moved = CommitError::NotCommitted(Refusal::Order(OrderError::Ahead {
        to: last.next(),
        last,
    }));
    assert_eq!(ahead, moved);
    assert_eq!(session.last_seq(), last);
    disk.clear_trace();
    let syncs = disk.sync_count("seg-");
    let (to, expected) = &one[2];
    let marker = main.rewind(*to, "").unwrap();
    assert_eq!(disk.sync_count("seg-"), syncs + 1, "one batch, one sync");
    assert_eq!(&looks(&main), expected);
    assert!(session.open_turns().is_empty());
    let kinds: Vec<Kind> = (session.replay(last.next()))
        .map(|committed| committed.unwrap().event().kind())
        .collect();
    assert_eq!(kinds, [Kind::TurnInterrupted, Kind::Rewound]);
    // The marker is durable, also if the power fails now.
    drop((main, session.clone()));
    let id = session.id();
    drop(session);
    disk.power_loss(PowerLoss::DropAll);
    let store = store_with(&disk, small());
    let (session, _) = store.open_session(id, Mode::Write).unwrap();
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    assert_eq!(&looks(&main), expected);
    let event = session.replay(marker.seq()).next().unwrap().unwrap();
    assert_eq!(event.typed::<Rewound>().unwrap().body.to, to.get());
    // A step that was left is known by its key all the same.
    let mut again = main.begin_turn(UserMessage::text("two")).unwrap();
    let repeat = again.commit_step(text_step("left").key(key())).unwrap();
    assert!(repeat.is_duplicate());
    assert_eq!(repeat.seq(), keyed);
    // By hand the same rule holds.
    let rewound = Rewound {
        to: u64::MAX,
        ..Rewound::default()
    };
    let loop_id = session.loops()[0].0;
    let refused = session.commit(vec![Draft::new(rewound).in_loop(loop_id)]);
    assert!(refused.unwrap_err().is_definite());
}
