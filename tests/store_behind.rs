//! Commits that name the place where they go: for hosts that decide by what they have seen.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use stepwell::identity::{AgentName, LoopId};
use stepwell::journal::Workers;
use stepwell::store::{Draft, Outcome, Ticket};
use store_support::*;

type Answer = Result<Vec<Outcome>, CommitError>;

struct World {
    disk: SimVfs,
    workers: Workers,
    session: Session,
    loops: [LoopId; 2],
}

fn opened(disk: &SimVfs, workers: &Workers) -> Store {
    let options = StoreOptions {
        workers: workers.clone(),
        ..options()
    };
    store_with(disk, options)
}

fn world() -> World {
    let (disk, workers) = (SimVfs::new(), Workers::manual());
    let made = opened(&disk, &workers).create_session(SessionSpec::new());
    let session = made.unwrap();
    let loops = ["a", "b"].map(|name| {
        let made = session.create_loop(LoopSpec::new(name));
        made.unwrap().id()
    });
    while workers.run_one() {}
    World {
        disk,
        workers,
        session,
        loops,
    }
}

fn note(text: &str) -> Draft {
    Draft::new(HostEvent {
        name: "note".into(),
        version: 1,
        data: RawJson::parse(format!("{text:?}").as_bytes()).unwrap(),
        optional: true,
    })
}

fn keyed(text: &str, key: &str) -> Draft {
    note(text).key(Key::new(key).unwrap())
}

impl World {
    fn last(&self) -> Seq {
        self.session.last_seq()
    }

    fn of(&self, index: usize, text: &str) -> Draft {
        note(text).in_loop(self.loops[index])
    }

    fn settle(&self, ticket: Ticket<Answer>) -> Answer {
        while self.workers.run_one() {}
        ticket.wait().unwrap()
    }
}

fn seqs(answer: Answer) -> Vec<u64> {
    let outcomes = answer.unwrap();
    let seqs = outcomes.iter().map(|outcome| outcome.committed().seq());
    seqs.map(Seq::get).collect()
}

fn moved(expected: Seq, actual: Seq) -> Answer {
    let moved = OrderError::Moved { expected, actual };
    Err(CommitError::NotCommitted(Refusal::Order(moved)))
}

#[test]
fn a_commit_goes_where_it_was_decided_for_or_nowhere() {
    let world = world();
    let seen = world.last();
    assert_eq!(
        seqs(world.session.commit_behind(seen, vec![note("first")])),
        [seen.get() + 1]
    );
    let now = world.last();
    let written = world.disk.used();
    assert_eq!(
        world.session.commit_behind(seen, vec![note("second")]),
        moved(seen, now)
    );
    // Also what has not been yet is no place to go.
    let ahead = Seq::new(now.get() + 1);
    assert_eq!(
        world.session.commit_behind(ahead, vec![note("third")]),
        moved(ahead, now)
    );
    assert_eq!(world.last(), now);
    assert_eq!(world.disk.used(), written);
    let batch = vec![note("second"), note("third")];
    let next = now.get() + 1;
    assert_eq!(
        seqs(world.session.commit_behind(now, batch)),
        [next, next + 1]
    );
}

#[test]
fn the_place_counts_what_is_on_its_way_to_the_disk() {
    let world = world();
    let seen = world.last();
    let flying = world.session.submit(vec![world.of(0, "flies")]);
    let stale = world
        .session
        .submit_behind(seen, vec![world.of(1, "stale")]);
    let next = Seq::new(seen.get() + 1);
    let right = world
        .session
        .submit_behind(next, vec![world.of(1, "right")]);
    // Of two that were decided by the same, one goes.
    let twin = world.session.submit_behind(next, vec![world.of(0, "twin")]);
    let free = world.session.submit(vec![world.of(0, "free")]);
    assert_eq!(seqs(world.settle(flying)), [next.get()]);
    assert_eq!(world.settle(stale), moved(seen, next));
    assert_eq!(seqs(world.settle(right)), [next.get() + 1]);
    let after = Seq::new(next.get() + 1);
    assert_eq!(world.settle(twin), moved(next, after));
    assert_eq!(seqs(world.settle(free)), [next.get() + 2]);
}

#[test]
fn a_repeat_is_a_duplicate_wherever_the_session_stands_also_after_a_restart() {
    let world = world();
    let seen = world.last();
    let batch = || vec![keyed("one", "k1"), keyed("two", "k2")];
    let first = seqs(world.session.commit_behind(seen, batch()));
    world.session.commit(vec![note("between")]).unwrap();
    let check = |session: &Session| {
        let stands = session.last_seq();
        let again = session.commit_behind(seen, batch()).unwrap();
        assert!(again.iter().all(Outcome::is_duplicate));
        assert_eq!(seqs(Ok(again)), first);
        // The same key with something else is told as that.
        let other = session.commit_behind(seen, vec![keyed("other", "k1")]);
        assert!(matches!(
            other,
            Err(CommitError::NotCommitted(Refusal::KeyReused { .. }))
        ));
        // A part of it that is known does not make the rest go elsewhere.
        let more = vec![keyed("one", "k1"), keyed("three", "k3")];
        assert_eq!(session.commit_behind(seen, more), moved(seen, stands));
        assert_eq!(session.last_seq(), stands);
    };
    check(&world.session);
    let id = world.session.id();
    let World { disk, session, .. } = world;
    drop(session);
    disk.power_loss(PowerLoss::DropAll);
    let workers = Workers::manual();
    let (session, _) = opened(&disk, &workers)
        .open_session(id, Mode::Write)
        .unwrap();
    check(&session);
}

#[test]
fn what_is_wrong_because_others_went_ahead_is_told_as_that() {
    let world = world();
    let main = world.session.loop_by_name("a").unwrap().unwrap();
    let (mut main, loop_id) = (main, world.loops[0]);
    let turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let turn_id = turn.id();
    let seen = world.last();
    let step = text_step("done").into_drafts(loop_id, turn_id, AgentName::new("a"));
    turn.commit_last_step(text_step("other")).unwrap();
    assert_eq!(
        world.session.commit_behind(seen, step),
        moved(seen, world.last())
    );
}
