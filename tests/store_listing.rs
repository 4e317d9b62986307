//! A listing names every session that is there, also one that is damaged or in the wrong place.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::fs;

use stepwell::identity::SessionId;
use stepwell::journal::OpenError;
use stepwell::store::{Draft, SessionEntry};
use store_support::*;

fn said(text: &str) -> Vec<Draft> {
    vec![Draft::new(HostEvent {
        name: text.into(),
        version: 1,
        data: RawJson::empty_object(),
        optional: false,
    })]
}

/// Sessions that are closed, with some events.
fn closed(store: &Store, count: usize) -> Vec<SessionId> {
    let ids = (0..count).map(|_| {
        let session = store.create_session(SessionSpec::new().title("t")).unwrap();
        for _ in 0..20 {
            session.commit(said("said")).unwrap();
        }
        session.close().unwrap();
        session.id()
    });
    ids.collect()
}

fn entry(store: &Store, id: SessionId) -> SessionEntry {
    let entries = store.sessions().unwrap();
    entries.into_iter().find(|entry| entry.id == id).unwrap()
}

/// A cleanly closed session whose every frame was destroyed looked like one whose creation had been
/// cut off, and was not listed; so a verification of the whole store found nothing wrong.
#[test]
fn a_session_without_one_intact_record_is_listed_as_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let id = closed(&store, 1)[0];
    assert!(entry(&store, id).state.unwrap().unreadable.is_none());
    for file in fs::read_dir(store.session_dir(id)).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("seg-") {
            let mut bytes = fs::read(&path).unwrap();
            // Each frame begins with the same four bytes.
            for at in (16 * 1024..bytes.len()).step_by(8) {
                if bytes[at..].starts_with(b"SWF1") {
                    bytes[at + 8] ^= 1;
                }
            }
            fs::write(&path, bytes).unwrap();
        }
    }
    let listed = entry(&store, id).state.unwrap();
    assert!(listed.unreadable.is_some() || listed.damage.is_some());
    assert!(!store.verify(id).unwrap().is_intact());
}

/// Folders that were swapped or renamed vanished from the listing.
#[test]
fn a_session_in_the_place_of_another_is_listed_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let ids = closed(&store, 3);
    let (one, two, three) = (ids[0], ids[1], ids[2]);
    let aside = dir.path().join("aside");
    fs::rename(store.session_dir(one), &aside).unwrap();
    fs::rename(store.session_dir(two), store.session_dir(one)).unwrap();
    fs::rename(&aside, store.session_dir(two)).unwrap();
    let renamed = SessionId::new();
    fs::rename(store.session_dir(three), store.session_dir(renamed)).unwrap();
    for (expected, found) in [(one, two), (two, one), (renamed, three)] {
        assert_eq!(
            entry(&store, expected).state,
            Err(OpenError::WrongOwner {
                path: store.session_dir(expected),
                expected,
                found
            })
        );
        assert!(!store.verify(expected).unwrap().is_intact());
    }
    assert_eq!(store.sessions().unwrap().len(), 3);
}
