//! A short life of three sessions in one journal that ends at every call to the disk, by a kill and by
//! power losses.
//!
//! The oracle is the test's own book: what was handed over, in the order in which that was done, and how
//! much of it was acknowledged. After a crash the log has a beginning of what was handed over, which is not
//! shorter than what was acknowledged; each session has its own part of it, in order and without a gap,
//! and is hurt by nothing that happened to the others.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use stepwell::event::HostEvent;
use stepwell::identity::SessionId;
use stepwell::journal::Workers;
use stepwell::store::{Draft, Layout};
use store_support::*;

const SESSIONS: u8 = 3;

fn id(number: u8) -> SessionId {
    SessionId::from_bytes([number; 16])
}

fn shared() -> StoreOptions {
    let mut options = StoreOptions {
        layout: Layout::Shared,
        workers: Workers::manual(),
        ..options()
    };
    options.journal.first_capacity = 4096;
    options.journal.max_capacity = 4096;
    options.journal.supersede_limit = 1024;
    options
}

/// The event with this number, of which each session has its own.
fn said(number: usize) -> Vec<Draft> {
    let event = HostEvent {
        name: number.to_string(),
        version: 1,
        data: RawJson::parse(format!("\"{}\"", "x".repeat(200)).as_bytes()).unwrap(),
        optional: false,
    };
    vec![Draft::new(event)]
}

/// What was handed over, and how much of it, from the beginning on, was acknowledged.
#[derive(Debug, Default)]
struct Book {
    created: u8,
    handed: Vec<(u8, usize)>,
    acknowledged: usize,
}

impl Book {
    fn hand(&mut self, session: u8) -> usize {
        let number = self.handed.len();
        self.handed.push((session, number));
        number
    }
}

/// Lives until the disk is gone. Whether it got to its end.
fn live(disk: &SimVfs, book: &mut Book) -> bool {
    let options = shared();
    let Ok(store) = Store::on(Arc::new(disk.clone()), "/store", options.clone()) else {
        return false;
    };
    let mut sessions = Vec::new();
    for number in 1..=SESSIONS {
        let Ok(session) = store.create_session(SessionSpec::new().id(id(number))) else {
            return false;
        };
        book.created = number;
        sessions.push(session);
    }
    for round in 0..7 {
        // All in one group, so that each shares its fate with the others.
        let order = (0..SESSIONS).map(|place| (place + round) % SESSIONS + 1);
        let mut tickets = Vec::new();
        for number in order {
            let said = said(book.hand(number));
            tickets.push(sessions[usize::from(number) - 1].submit(said));
        }
        while options.workers.run_one() {}
        for ticket in tickets {
            match ticket.wait() {
                Ok(Ok(_)) => book.acknowledged += 1,
                _ => return false,
            }
        }
        // One is closed and opened again while the others go on.
        let closed = usize::from(round % SESSIONS);
        if sessions[closed].close().is_err() {
            return false;
        }
        let Ok((again, report)) = store.open_session(sessions[closed].id(), Mode::Write) else {
            return false;
        };
        assert_eq!(report.recovered, []);
        sessions[closed] = again;
    }
    drop(sessions);
    store.close().is_ok()
}

/// The numbers that the log has, with their sessions, in its order.
fn found(sessions: &[(u8, Session)]) -> Vec<(u8, usize)> {
    let mut found = Vec::new();
    for (number, session) in sessions {
        let mut next = Seq::new(1);
        for committed in session.replay(Seq::new(1)) {
            let committed = committed.unwrap();
            assert_eq!(committed.seq(), next, "session {number}");
            next = next.next();
            if let Body::HostEvent(event) = &committed.event().body {
                found.push((committed.lsn(), *number, event.name.parse().unwrap()));
            }
        }
    }
    found.sort_unstable();
    let without = |(_, session, number)| (session, number);
    found.into_iter().map(without).collect()
}

fn check(disk: &SimVfs, book: &Book, what: &str) -> Vec<(u8, usize)> {
    let store = Store::on(Arc::new(disk.clone()), "/store", shared())
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let listed = store.sessions().unwrap();
    assert!(
        listed
            .iter()
            .all(|it| it.state.as_ref().unwrap().unreadable.is_none())
    );
    let mut sessions = Vec::new();
    for number in 1..=SESSIONS {
        let opened = store.open_session(id(number), Mode::Write);
        match opened {
            Ok((session, _)) => sessions.push((number, session)),
            Err(SessionError::NotFound(_)) if number > book.created => continue,
            Err(error) => panic!("{what}: session {number}: {error}"),
        }
        let verified = store.verify(id(number)).unwrap();
        assert!(verified.is_intact(), "{what}: {:?}", verified.unreadable);
    }
    assert!(listed.len() <= sessions.len());
    let found = found(&sessions);
    assert!(
        found.len() >= book.acknowledged,
        "{what}: {found:?} of {book:?}"
    );
    assert!(
        book.handed.starts_with(&found),
        "{what}: {found:?} of {book:?}"
    );
    // All of them go on.
    for (number, session) in &sessions {
        let said = said(1000 + usize::from(*number));
        session
            .commit(said)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    found
}

#[test]
fn a_crash_at_every_call_keeps_what_was_acknowledged_of_each_session_in_order() {
    let kinds = [
        None,
        Some(PowerLoss::DropAll),
        Some(PowerLoss::KeepAll),
        Some(PowerLoss::Seeded(1)),
        Some(PowerLoss::Seeded(2)),
        Some(PowerLoss::Seeded(3)),
    ];
    let mut kept_unknown = 0;
    for calls in 0.. {
        let disk = SimVfs::new();
        disk.set_tracing(false);
        disk.crash_after(calls);
        let mut book = Book::default();
        let finished = live(&disk, &mut book);
        for kind in kinds {
            let disk = disk.snapshot();
            match kind {
                None => disk.kill(),
                Some(loss) => disk.power_loss(loss),
            }
            let what = format!("call {calls}, {kind:?}");
            let found = check(&disk, &book, &what);
            kept_unknown += usize::from(found.len() > book.acknowledged);
        }
        if finished {
            assert_eq!(book.acknowledged, book.handed.len());
            assert!(calls > 100, "{calls}");
            break;
        }
    }
    println!("{kept_unknown} crashes kept something that was not acknowledged");
    assert!(kept_unknown > 0);
}
