//! The hub alone: no gap, no repetition, no loss of enduring events; live ones counted when lost.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]
#![cfg(feature = "runtime")]

mod runtime_support;

use proptest::prelude::*;
use runtime_support::*;
use stepwell::content::RawJson;
use stepwell::event::{Chunk, Header, HostEvent, Kind, TokenDelta};
use stepwell::identity::Coordinates;
use stepwell::runtime::{Delivery, Filter, HubOptions, Live, StartAt, Subscription};
use stepwell::store::{Draft, LoopSpec, Session};

fn small() -> HubOptions {
    HubOptions {
        recent_events: 4,
        recent_bytes: 2000,
        live_queue: 3,
        page: 3,
    }
}

fn host_event(text: &str) -> Draft {
    Draft::new(HostEvent {
        name: "test".into(),
        version: 1,
        data: RawJson::from_serialize(&text).unwrap(),
        optional: false,
    })
}

fn commit(session: &Session, count: usize) {
    for _ in 0..count {
        session.commit(vec![host_event("x")]).unwrap();
    }
}

fn delta(session: &Session, text: &str) -> Live {
    let at = Coordinates::session(session.id());
    let chunk = Chunk::Text {
        index: 0,
        text: text.into(),
    };
    let turn_index = 1;
    Live::new(Header::at(at), TokenDelta { turn_index, chunk })
}

fn text(delivery: &Delivery) -> String {
    match delivery.event().body_as::<TokenDelta>() {
        Some(TokenDelta {
            chunk: Chunk::Text { text, .. },
            ..
        }) => text.clone(),
        _ => delivery.seq().to_string(),
    }
}

async fn next_seqs(subscription: &mut Subscription, count: usize) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.len() < count {
        seqs.push(subscription.recv().await.unwrap().unwrap().seq().get());
    }
    seqs
}

#[tokio::test]
async fn a_slow_subscriber_misses_no_committed_event() {
    let world = world();
    let hub = world.session.hub_with(small());
    let mut from_start = hub.subscribe(StartAt::seq(1), Filter::committed());
    let mut from_now = hub.subscribe(StartAt::now(), Filter::committed());
    commit(&world.session, 300);
    assert_eq!(
        next_seqs(&mut from_start, 302).await,
        (1..=302).collect::<Vec<_>>()
    );
    assert_eq!(
        next_seqs(&mut from_now, 300).await,
        (3..=302).collect::<Vec<_>>()
    );
    assert!(ready(&mut from_start).await.is_none());
    assert_eq!((from_start.dropped(), from_now.dropped()), (0, 0));
    commit(&world.session, 1);
    assert_eq!(next_seqs(&mut from_start, 1).await, [303]);
    let mut late = hub.subscribe(StartAt::seq(250), Filter::committed());
    assert_eq!(
        next_seqs(&mut late, 54).await,
        (250..=303).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replay_goes_over_into_live_while_others_commit() {
    let world = world();
    let hub = world.session.hub_with(small());
    let committer = std::thread::spawn({
        let session = world.session.clone();
        move || commit(&session, 400)
    });
    let mut readers = Vec::new();
    for from in [1, 2, 50, 200, 399] {
        let mut subscription = hub.subscribe(StartAt::seq(from), Filter::committed());
        readers.push(tokio::spawn(async move {
            let count = usize::try_from(403 - from).unwrap();
            let seqs = next_seqs(&mut subscription, count).await;
            assert_eq!(seqs, (from..403).collect::<Vec<_>>());
        }));
    }
    for reader in readers {
        reader.await.unwrap();
    }
    committer.join().unwrap();
}

#[derive(Debug, Clone)]
enum Act {
    Commit(usize, bool),
    Emit,
    Read(usize, usize),
    Subscribe(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (1..9_usize, any::<bool>()).prop_map(|(count, large)| Act::Commit(count, large)),
        Just(Act::Emit),
        (0..4_usize, 1..20_usize).prop_map(|(who, count)| Act::Read(who, count)),
        (0..30_u64).prop_map(Act::Subscribe),
    ];
    proptest::collection::vec(act, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the order of commits, live events and reads: every subscriber sees every committed
    /// event once and in order, and each live event that it sees between those before and behind
    /// which it was emitted.
    #[test]
    fn any_interleaving_is_without_gap_and_in_order(acts in acts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let world = world();
            let hub = world.session.hub_with(small());
            let mut watchers: Vec<(Subscription, u64)> = Vec::new();
            let mut emitted = 0;
            for act in acts {
                match act {
                    Act::Commit(count, large) => {
                        let text = "x".repeat(if large { 3000 } else { 10 });
                        let batch = (0..count).map(|_| host_event(&text)).collect();
                        world.session.commit(batch).unwrap();
                    }
                    Act::Emit => {
                        emitted += 1;
                        // It says behind what it was emitted.
                        hub.emit(delta(&world.session, &world.session.last_seq().to_string()));
                    }
                    Act::Subscribe(from) if watchers.len() < 4 => {
                        let (from, next) = match from {
                            0 => (StartAt::now(), world.session.last_seq().get() + 1),
                            from => (StartAt::seq(from), from),
                        };
                        watchers.push((hub.subscribe(from, Filter::all()), next));
                    }
                    Act::Subscribe(_) => {}
                    Act::Read(who, count) => {
                        if let Some((watcher, next)) = watchers.get_mut(who) {
                            for _ in 0..count {
                                if *next > world.session.last_seq().get() {
                                    break;
                                }
                                read(watcher, next).await;
                            }
                        }
                    }
                }
            }
            for (watcher, next) in &mut watchers {
                while *next <= world.session.last_seq().get() {
                    read(watcher, next).await;
                }
                while let Some(item) = ready(watcher).await {
                    let live = item.unwrap();
                    prop_assert_eq!(live.seq().get(), 0);
                    prop_assert!(text(&live).parse::<u64>().unwrap() < *next);
                }
                prop_assert!(watcher.dropped() <= emitted);
            }
            Ok(())
        })?;
    }
}

async fn read(watcher: &mut Subscription, next: &mut u64) {
    let delivery = watcher.recv().await.unwrap().unwrap();
    match delivery.committed() {
        Some(committed) => {
            assert_eq!(committed.seq().get(), *next);
            *next += 1;
        }
        // Everything before it has been seen (or was not asked for), nothing behind it.
        None => {
            let after: u64 = text(&delivery).parse().unwrap();
            assert!(after < *next, "{after} {next}");
            let passed = watcher.next_seq().get();
            assert!(passed == *next);
        }
    }
}

#[tokio::test]
async fn live_events_stand_between_the_committed_ones() {
    let world = world();
    let hub = world.session.hub_with(small());
    let mut slow = hub.subscribe(StartAt::seq(1), Filter::all());
    hub.emit(delta(&world.session, "a"));
    commit(&world.session, 1);
    hub.emit(delta(&world.session, "b"));
    commit(&world.session, 20);
    hub.emit(delta(&world.session, "c"));
    let mut seen = Vec::new();
    while seen.len() < 26 {
        seen.push(text(&slow.recv().await.unwrap().unwrap()));
    }
    let mut expected: Vec<String> = ["1", "2", "a", "3", "b"].map(String::from).to_vec();
    expected.extend((4..24).map(|seq| seq.to_string()));
    expected.push("c".into());
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn live_events_that_find_no_room_are_dropped_and_counted() {
    let world = world();
    let hub = world.session.hub_with(small());
    let mut slow = hub.subscribe(StartAt::now(), Filter::all());
    let mut quick = hub.subscribe(StartAt::now(), Filter::all());
    let uninterested = hub.subscribe(StartAt::now(), Filter::committed());
    for number in 0..10 {
        hub.emit(delta(&world.session, &number.to_string()));
        assert_eq!(
            text(&quick.recv().await.unwrap().unwrap()),
            number.to_string()
        );
    }
    commit(&world.session, 1);
    assert_eq!((slow.dropped(), quick.dropped()), (7, 0));
    assert_eq!(uninterested.dropped(), 0);
    let mut seen = Vec::new();
    while let Some(item) = ready(&mut slow).await {
        seen.push(text(&item.unwrap()));
    }
    assert_eq!(seen, ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn filters_pick_loops_and_let_the_session_pass() {
    let world = world();
    let other = world.session.create_loop(LoopSpec::new("other")).unwrap();
    let filter = Filter::of_loop(other.id());
    let mut events = world.session.subscribe(StartAt::seq(1), filter);
    commit(&world.session, 1);
    world
        .session
        .hub()
        .emit(delta(&world.session, "of no loop"));
    let kinds: Vec<Kind> = [
        events.recv().await,
        events.recv().await,
        events.recv().await,
    ]
    .map(|item| item.unwrap().unwrap().event().kind())
    .to_vec();
    // LoopStarted of `main` is not among them.
    assert_eq!(
        kinds,
        [Kind::SessionStarted, Kind::LoopStarted, Kind::HostEvent]
    );
    assert!(ready(&mut events).await.is_none());
}

#[tokio::test]
async fn a_dropped_read_of_the_log_loses_nothing() {
    let world = world();
    let hub = world.session.hub_with(small());
    commit(&world.session, 50);
    let mut events = hub.subscribe(StartAt::seq(1), Filter::committed());
    let mut seqs = Vec::new();
    while seqs.len() < 52 {
        // Polled once and dropped, again and again.
        if let Some(item) = ready(&mut events).await {
            seqs.push(item.unwrap().seq().get());
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(seqs, (1..=52).collect::<Vec<_>>());
}

/// Finding of an attack: a hub whose pages hold nothing spun for ever in the poll of a subscriber.
#[tokio::test]
async fn a_hub_with_pages_of_nothing_still_delivers() {
    let world = world();
    let nothing = HubOptions { page: 0, ..small() };
    world.session.hub_with(nothing);
    commit(&world.session, 12);
    let last = world.session.last_seq().get();
    let mut events = world
        .session
        .subscribe(StartAt::seq(1), Filter::committed());
    let seqs = next_seqs(&mut events, last as usize).await;
    assert_eq!(seqs, (1..=last).collect::<Vec<u64>>());
}
