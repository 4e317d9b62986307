//! An index that panics, fails, hangs or lies.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;
use crate::store::catalog::behind::Catalog;

type Shelf = Arc<Mutex<BTreeMap<SessionId, Vec<u8>>>>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Open,
    Scan,
    Put,
    Remove,
    Tidy,
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Does {
    Works,
    Panics(At),
    Fails(At),
    Hangs(At),
    /// Whatever it does takes so long.
    Crawls(Duration),
}

struct Fake {
    shelf: Shelf,
    does: Does,
}

impl Fake {
    fn at(does: Does, at: At) -> Result<(), IndexHarm> {
        match does {
            Does::Panics(here) if here == at => panic!("the index panics at {at:?}"),
            Does::Crawls(time) if at != At::Open => std::thread::sleep(time),
            Does::Hangs(here) if here == at => std::thread::sleep(Duration::from_secs(60)),
            Does::Fails(here) if here == at => {
                return Err(IndexHarm::Engine {
                    message: "no".into(),
                });
            }
            _ => {}
        }
        Ok(())
    }
}

impl Index for Fake {
    fn scan(&mut self) -> Result<Entries, IndexHarm> {
        Fake::at(self.does, At::Scan)?;
        let shelf = self.shelf.lock().unwrap();
        Ok(shelf
            .iter()
            .map(|(id, entry)| (*id, entry.clone()))
            .collect())
    }

    fn put(&mut self, batch: &[(SessionId, Vec<u8>)]) -> Result<(), IndexHarm> {
        Fake::at(self.does, At::Put)?;
        self.shelf.lock().unwrap().extend(batch.iter().cloned());
        Ok(())
    }

    fn remove(&mut self, ids: &[SessionId]) -> Result<(), IndexHarm> {
        Fake::at(self.does, At::Remove)?;
        self.shelf.lock().unwrap().retain(|id, _| !ids.contains(id));
        Ok(())
    }

    fn tidy(&mut self) -> Result<(), IndexHarm> {
        Fake::at(self.does, At::Tidy)
    }

    fn close(self: Box<Self>) -> Result<(), IndexHarm> {
        Fake::at(self.does, At::Close)
    }
}

fn store(dir: &Path, shelf: &Shelf, does: Does) -> Store {
    patient(dir, shelf, does, Duration::from_millis(1500))
}

fn patient(dir: &Path, shelf: &Shelf, does: Does, patience: Duration) -> Store {
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
    let index = IndexOptions::default().patience(patience);
    let options = StoreOptions {
        index,
        ..StoreOptions::default()
    };
    let shelf = shelf.clone();
    let logs = Logs::of(&vfs, dir, options.limits);
    let catalog = Catalog::new(
        Box::new(move || {
            Fake::at(does, At::Open)?;
            Ok(Some(Opened {
                index: Box::new(Fake { shelf, does }),
                fresh: true,
            }))
        }),
        logs,
        index,
        false,
    );
    Store::begin(vfs, dir, options, catalog).unwrap()
}

#[test]
fn an_index_that_panics_fails_or_hangs_changes_nothing_but_speed() {
    let harms: Vec<Does> = [At::Open, At::Scan, At::Put, At::Remove, At::Tidy, At::Close]
        .into_iter()
        .flat_map(|at| [Does::Panics(at), Does::Fails(at), Does::Hangs(at)])
        .collect();
    for does in harms {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), &Shelf::default(), does);
        let ids = closed(&store, 3);
        let began = Instant::now();
        agrees(&store);
        // The second listing finds what the first one put, the third an orphan that is removed.
        agrees(&store);
        store.delete_session(ids[0]).unwrap();
        agrees(&store);
        let session = open_for_writing(&store, ids[1]);
        session.commit(said("goes on")).unwrap();
        agrees(&store);
        let (open, health) = (session.last_seq(), store.health().index);
        assert!(
            open.get() > 2 && began.elapsed() < Duration::from_secs(15),
            "{does:?}"
        );
        match does {
            Does::Panics(At::Open | At::Scan | At::Put | At::Remove) => {
                let why = IndexHarm::Panicked;
                assert_eq!(health, IndexHealth::Broken { why }, "{does:?}");
            }
            Does::Fails(At::Open | At::Scan | At::Put | At::Remove) => {
                let broken = matches!(
                    health,
                    IndexHealth::Broken {
                        why: IndexHarm::Engine { .. }
                    }
                );
                assert!(broken, "{does:?}: {health:?}");
            }
            Does::Hangs(At::Open | At::Scan | At::Put | At::Remove) => {
                assert_eq!(health, IndexHealth::TooSlow, "{does:?}");
            }
            _ => {}
        }
        // Closing waits for the index no longer than a listing does.
        let began = Instant::now();
        drop((session, store));
        assert!(began.elapsed() < Duration::from_secs(10), "{does:?}");
    }
}

/// An index that is slower than its budget is left alone, and health says so; one that takes as long in
/// all, but gets something done, is not.
#[test]
fn an_index_that_is_slow_beyond_its_budget_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let crawling = store(
        dir.path(),
        &Shelf::default(),
        Does::Crawls(Duration::from_millis(2500)),
    );
    closed(&crawling, 5);
    agrees(&crawling);
    assert_eq!(crawling.health().index, IndexHealth::TooSlow);
    // Nothing waits for it any more, and commits never did.
    let began = Instant::now();
    for _ in 0..5 {
        agrees(&crawling);
    }
    let session = crawling.create_session(SessionSpec::new()).unwrap();
    for _ in 0..20 {
        session.commit(said("said")).unwrap();
    }
    drop(session);
    drop(crawling);
    assert!(began.elapsed() < Duration::from_millis(1500), "waited");

    let dir = tempfile::tempdir().unwrap();
    let shelf = Shelf::default();
    let crawls = Does::Crawls(Duration::from_secs(3));
    let store = patient(dir.path(), &shelf, crawls, Duration::from_secs(5));
    closed(&store, 2);
    agrees(&store);
    // Behind the putting of what the first one read this one waits in vain, but not for nothing.
    agrees(&store);
    settle(&store);
    assert_eq!(reads(&store), 0);
}

#[test]
fn what_a_lying_index_says_is_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = Shelf::default();
    let made = store(dir.path(), &shelf, Does::Works);
    let ids = closed(&made, 8);
    agrees(&made);
    settle(&made);
    assert_eq!(reads(&made), 0, "the entries hold");
    let old = shelf.lock().unwrap().clone();
    assert_eq!(old.len(), 8);

    // What was true once, of what is no more, of others, of nobody, and no entries at all.
    retitle(&made, ids[0], "another");
    made.delete_session(ids[1]).unwrap();
    let fresh = closed(&made, 1)[0];
    drop(made);
    {
        let mut lies = shelf.lock().unwrap();
        *lies = old.clone();
        lies.remove(&ids[2]);
        lies.insert(ids[3], old[&ids[4]].clone());
        lies.insert(ids[4], b"no entry".to_vec());
        lies.insert(ids[5], old[&ids[5]][..30].to_vec());
        lies.insert(SessionId::new(), old[&ids[6]].clone());
        lies.insert(fresh, old[&ids[6]].clone());
    }
    let store = store(dir.path(), &shelf, Does::Works);
    agrees(&store);
    let said = listing(&store);
    assert!(said.iter().all(|entry| entry.id != ids[1]));
    assert_eq!(said.len(), 8);
    // What was wrong was put right, and what has no session is gone.
    settle(&store);
    assert_eq!(reads(&store), 0);
    assert_eq!(shelf.lock().unwrap().len(), 8);
}

/// Commits are taken in behind, without a listing; and then nothing happens any more.
#[test]
fn commits_are_taken_in_when_they_pause() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = Shelf::default();
    let store = store(dir.path(), &shelf, Does::Works);
    agrees(&store);
    let session = store.create_session(SessionSpec::new()).unwrap();
    for _ in 0..50 {
        session.commit(said("said")).unwrap();
    }
    assert!(matches!(
        store.health().index,
        IndexHealth::Ready { behind: 1 }
    ));
    settle(&store);
    let entry = shelf.lock().unwrap()[&session.id()].clone();
    let entry = Entry::decode(session.id(), &entry).unwrap();
    assert_eq!(entry.listed.last_seq, session.last_seq());
    session.change(SessionChange::title("t")).unwrap();
    settle(&store);
    assert_eq!(reads(&store), 0);
    session.close().unwrap();
    settle(&store);
    let imported = {
        let mut lines = Vec::new();
        store.export(session.id(), &mut lines).unwrap();
        store
            .import(lines.as_slice(), crate::store::ImportId::Fresh)
            .unwrap()
            .session
    };
    settle(&store);
    assert!(shelf.lock().unwrap().contains_key(&imported));
    store.delete_session(imported).unwrap();
    settle(&store);
    agrees(&store);
    assert_eq!(reads(&store), 0);
    assert!(!shelf.lock().unwrap().contains_key(&imported));
}

#[test]
fn an_entry_reads_back_and_every_flip_and_cut_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = Shelf::default();
    let store = store(dir.path(), &shelf, Does::Works);
    let id = closed(&store, 1)[0];
    agrees(&store);
    settle(&store);
    let bytes = shelf.lock().unwrap()[&id].clone();
    let entry = Entry::decode(id, &bytes).unwrap();
    assert_eq!(Ok(entry.listed.clone()), listing(&store)[0].state);
    assert_eq!(entry.encode(id), Some(bytes.clone()));
    assert!(Entry::decode(SessionId::new(), &bytes).is_none());
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            assert!(Entry::decode(id, &bad).is_none(), "byte {at}");
        }
        assert!(Entry::decode(id, &bytes[..at]).is_none(), "cut at {at}");
    }
}
