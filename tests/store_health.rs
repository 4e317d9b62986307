//! What a store says of itself while its disk does not answer, is full, or has failed; and waiting
//! with a limit, which never invents an outcome.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::sync::Condvar;
use std::time::Duration;

use stepwell::journal::{ReadError, Workers};
use stepwell::store::Draft;
use store_support::*;

fn said(length: usize) -> Vec<Draft> {
    let event = HostEvent {
        name: "said".into(),
        version: 1,
        data: RawJson::parse(format!("\"{}\"", "x".repeat(length)).as_bytes()).unwrap(),
        optional: false,
    };
    vec![Draft::new(event)]
}

/// Syncs of segments stop here while it is closed.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn set(&self, closed: bool) {
        *self.0.lock().unwrap() = closed;
        self.1.notify_all();
    }

    fn pass(&self) {
        let closed = self.0.lock().unwrap();
        drop(self.1.wait_while(closed, |closed| *closed).unwrap());
    }
}

#[test]
fn a_sync_that_does_not_return_is_seen_and_nothing_is_invented() {
    let disk = SimVfs::new();
    let store = store_with(
        &disk,
        StoreOptions {
            workers: Workers::threads(),
            ..options()
        },
    );
    let session = store.create_session(SessionSpec::new()).unwrap();
    let other = store.create_session(SessionSpec::new()).unwrap();
    let before = session.last_seq();
    let (gate, at) = (Arc::new(Gate::default()), store.session_dir(session.id()));
    let closes = gate.clone();
    disk.set_hook(move |op| {
        if matches!(op, Op::SyncData { path } if path.starts_with(&at)) {
            closes.pass();
        }
    });
    gate.set(true);
    let ticket = session.submit(said(10));
    let stalled = ticket.wait_for(Duration::from_millis(60)).unwrap_err();
    assert_eq!(stalled.waited, Duration::from_millis(60));
    let health = store.health();
    assert_eq!((health.open, health.faulted.len()), (2, 0));
    let (id, waiting) = health.waiting.unwrap();
    assert_eq!(id, session.id());
    assert!(waiting >= Duration::from_millis(20), "{waiting:?}");
    assert!(session.health().unwrap().waiting.is_some());
    assert_eq!(session.last_seq(), before, "nothing is published meanwhile");
    // Others go on.
    assert!(other.commit(said(10)).is_ok());
    gate.set(false);
    let outcome = stalled.ticket.wait_for(Duration::MAX).unwrap().unwrap();
    assert_eq!(outcome.unwrap()[0].seq(), before.next());
    assert_eq!(store.health().waiting, None);
    disk.clear_hook();
}

#[test]
fn a_full_disk_and_a_fault_are_told_by_session() {
    let disk = SimVfs::new();
    let store = store(&disk);
    let full = store.create_session(SessionSpec::new()).unwrap();
    let broken = store.create_session(SessionSpec::new()).unwrap();
    let fine = store.create_session(SessionSpec::new()).unwrap();
    assert_eq!(store.health().open, 3);
    disk.set_capacity(Some(disk.used() + 4096));
    while full.commit(said(900)).is_ok() {}
    let health = store.health();
    let (id, reason) = &health.lacking[0];
    assert_eq!((*id, health.lacking.len()), (full.id(), 1));
    assert!(matches!(reason, NotCommitted::StorageFull(_)));
    disk.set_capacity(None);
    full.commit(said(900)).unwrap();
    assert_eq!(store.health().lacking, []);
    disk.fail_nth(Op::is_sync, 0, FaultKind::Eio);
    assert!(broken.commit(said(10)).is_err());
    let health = store.health();
    assert_eq!(health.faulted, [(broken.id(), broken.fault().unwrap())]);
    let (again, _) = store.reopen(&broken).unwrap();
    fine.close().unwrap();
    let health = store.health();
    assert_eq!((health.open, health.faulted), (2, Vec::new()));
    let (view, _) = store.open_session(fine.id(), Mode::Read).unwrap();
    assert_eq!(view.health(), None);
    assert_eq!(store.health().open, 2);
    drop((again, full));
    assert_eq!(store.health().open, 0);
}

/// Rot in what a writer has sealed is told and stops nobody (P6).
#[test]
fn damage_met_by_a_reader_is_in_the_health_and_commits_go_on() {
    let disk = SimVfs::new();
    let store = store_with(&disk, options());
    let session = store.create_session(SessionSpec::new()).unwrap();
    for _ in 0..40 {
        session.commit(said(8_000)).unwrap();
    }
    assert!(session.replay(Seq::new(1)).all(|event| event.is_ok()));
    assert_eq!(session.health().unwrap().damage, None);
    assert!(store.health().damaged.is_empty());
    let files = disk.files().into_iter().map(|(path, _)| path);
    let mut segments: Vec<_> = files
        .filter(|path| path.to_string_lossy().contains("/seg-"))
        .collect();
    segments.sort();
    assert!(segments.len() > 2, "{segments:?}");
    disk.flip_byte(&segments[0], 20_000).unwrap();
    // The first damage stays, whoever meets what behind it.
    disk.flip_byte(&segments[1], 20_000).unwrap();
    let errors = session.replay(Seq::new(1)).filter(Result::is_err).count();
    assert_eq!(errors, 2);
    let found = session.health().unwrap().damage.unwrap();
    assert!(
        matches!(&found, ReadError::Damaged { path, offset, .. } if *path == segments[0] && *offset <= 20_000),
        "{found:?}"
    );
    assert_eq!(store.health().damaged, [(session.id(), found)]);
    session.commit(said(10)).unwrap();
    assert_eq!(session.fault(), None);
}
