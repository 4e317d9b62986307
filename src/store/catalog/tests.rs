//! Whatever an index does, a listing says what it says without one.

#[cfg(feature = "index-sled")]
mod files;
mod liars;
mod log;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::content::RawJson;
use crate::event::HostEvent;
use crate::store::{
    Draft, Filter, Mode, Page, Session, SessionChange, SessionEntry, SessionSpec, Store,
    StoreOptions,
};
use crate::vfs::RealVfs;

fn said(text: &str) -> Vec<Draft> {
    vec![Draft::new(HostEvent {
        name: text.into(),
        version: 1,
        data: RawJson::empty_object(),
        optional: false,
    })]
}

/// Sessions that are closed.
fn closed(store: &Store, count: usize) -> Vec<SessionId> {
    let ids = (0..count).map(|number| {
        let spec = SessionSpec::new().title(format!("session {number}"));
        let session = store.create_session(spec).unwrap();
        session.commit(said("said")).unwrap();
        session.close().unwrap();
        session.id()
    });
    ids.collect()
}

fn open_for_writing(store: &Store, id: SessionId) -> Session {
    store.open_session(id, Mode::Write).unwrap().0
}

fn retitle(store: &Store, id: SessionId, title: &str) {
    let session = open_for_writing(store, id);
    session.change(SessionChange::title(title)).unwrap();
    session.close().unwrap();
}

/// The listing of everything, by id.
fn listing(store: &Store) -> Vec<SessionEntry> {
    let mut entries = store.list(&Filter::new(), &Page::all()).unwrap().entries;
    entries.sort_by_key(|entry| entry.id);
    entries
}

/// That a listing says what it says without an index.
#[track_caller]
fn agrees(store: &Store) {
    assert_eq!(listing(store), store.sessions().unwrap());
}

/// A listing; how many sessions it had to read, since their entries did not hold.
#[track_caller]
fn reads(store: &Store) -> usize {
    let mut known = store.inner.catalog.known();
    assert!(known.wanted(), "{:?}", store.health().index);
    store.gather(&mut known).unwrap();
    let read = known.fresh.len();
    store.inner.catalog.learn(known);
    read
}

/// Waits until the index has taken in all that it was told.
#[track_caller]
fn settle(store: &Store) {
    let until = Instant::now() + Duration::from_secs(20);
    while store.health().index != (IndexHealth::Ready { behind: 0 }) {
        assert!(Instant::now() < until, "{:?}", store.health().index);
        std::thread::sleep(Duration::from_millis(10));
    }
}
