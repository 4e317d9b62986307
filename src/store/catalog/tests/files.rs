//! sled's files on a real disk: damaged, swapped, gone.

use std::fs;

use super::*;

/// A store with sessions and an index that was closed cleanly.
fn indexed(sessions: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    closed(&store, sessions);
    agrees(&store);
    settle(&store);
    drop(store);
    dir
}

fn files_of(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_of(&path)),
            false => files.push(path),
        }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Opens, and gives how many sessions the first listing had to read; all must be right, and go on.
fn listed(dir: &Path) -> usize {
    let store = Store::open(dir).unwrap();
    let read = reads(&store);
    agrees(&store);
    let id = store.sessions().unwrap()[0].id;
    retitle(&store, id, "goes on");
    agrees(&store);
    read
}

#[test]
fn an_index_that_was_closed_is_believed_by_the_next_opening() {
    let dir = indexed(20);
    for _ in 0..8 {
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(reads(&store), 0);
        assert_eq!(store.health().index, IndexHealth::Ready { behind: 0 });
        agrees(&store);
    }
    // Nothing else in its directory, and nothing of old ones.
    let mut names: Vec<_> = fs::read_dir(dir.path().join("index"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["LOCK", "sled-v1", "sled-v1.digest"]);
}

#[test]
fn damaged_files_are_never_opened_and_listings_stay_right() {
    let dir = indexed(20);
    let index = dir.path().join("index");
    let kept = dir.path().join("kept");
    fs::rename(&index, &kept).unwrap();
    let whole: Vec<PathBuf> = files_of(&kept)
        .into_iter()
        .filter(|path| fs::metadata(path).unwrap().len() > 0)
        .collect();
    assert!(whole.len() >= 3, "{whole:?}");
    let mut tried = 0;
    for path in &whole {
        let length = fs::metadata(path).unwrap().len() as usize;
        let name = path.strip_prefix(&kept).unwrap();
        let path = index.join(name);
        let mut harms: Vec<(String, Box<dyn Fn()>)> = Vec::new();
        for at in (0..8).map(|part| (length - 1) * part / 7) {
            let path = path.clone();
            let flip = move || {
                let mut bytes = fs::read(&path).unwrap();
                bytes[at] ^= 0x10;
                fs::write(&path, bytes).unwrap();
            };
            harms.push((format!("flip at {at}"), Box::new(flip)));
        }
        for to in [0, length / 2, length - 1] {
            let path = path.clone();
            let cut = move || {
                let bytes = fs::read(&path).unwrap();
                fs::write(&path, &bytes[..to]).unwrap();
            };
            harms.push((format!("cut to {to}"), Box::new(cut)));
        }
        let gone = path.clone();
        harms.push((
            "gone".into(),
            Box::new(move || fs::remove_file(&gone).unwrap()),
        ));
        let more = path.clone();
        harms.push((
            "one more file".into(),
            Box::new(move || fs::write(more.with_file_name("more"), b"x").unwrap()),
        ));
        for (what, harm) in harms {
            copy(&kept, &index);
            harm();
            let read = listed(dir.path());
            // A stray file beside the digest is nothing of the index's.
            let beside = what == "one more file" && name.parent() == Some(Path::new(""));
            if !beside {
                assert_eq!(read, 20, "{} {what}: believed", name.display());
            }
            tried += 1;
        }
        // The title has changed, so the copy that is kept is told of it.
        copy(&kept, &index);
        let store = Store::open(dir.path()).unwrap();
        assert!(reads(&store) <= 1, "without harm it is believed");
    }
    assert!(tried > 30);
}

#[test]
fn an_index_that_is_gone_cannot_be_made_or_is_anothers() {
    let dir = indexed(12);
    let index = dir.path().join("index");
    fs::remove_dir_all(&index).unwrap();
    assert_eq!(listed(dir.path()), 12);

    let other = indexed(12);
    copy(&other.path().join("index"), &index);
    assert_eq!(listed(dir.path()), 12);
    // Its entries have no sessions here: they are removed, and not shown.
    let store = Store::open(dir.path()).unwrap();
    let known = store.inner.catalog.known();
    assert_eq!(known.entries.len(), 12);
    drop(store);

    fs::remove_dir_all(&index).unwrap();
    fs::write(&index, b"in the way").unwrap();
    let store = Store::open(dir.path()).unwrap();
    agrees(&store);
    let health = store.health().index;
    assert!(matches!(health, IndexHealth::Broken { .. }), "{health:?}");
    closed(&store, 1);
    agrees(&store);
}

#[test]
fn a_second_store_goes_without() {
    let dir = indexed(5);
    let first = Store::open(dir.path()).unwrap();
    agrees(&first);
    let second = Store::open(dir.path()).unwrap();
    agrees(&second);
    assert_eq!(second.health().index, IndexHealth::Locked);
    // What one does the other lists at once.
    let id = closed(&second, 1)[0];
    retitle(&second, id, "by the second");
    agrees(&first);
    retitle(&first, id, "by the first");
    agrees(&second);
    agrees(&first);
    drop(second);
    settle(&first);
    assert_eq!(reads(&first), 0);
}

#[test]
fn nothing_is_begun_without_a_listing_nor_where_it_may_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    closed(&store, 2);
    assert_eq!(store.health().index, IndexHealth::Absent);
    drop(store);
    let index = dir.path().join("index");
    let off = StoreOptions {
        index: IndexOptions::off(),
        ..StoreOptions::default()
    };
    let without = [
        Store::open_existing(dir.path()).unwrap(),
        Store::open_with(dir.path(), off).unwrap(),
        Store::on(Arc::new(RealVfs), dir.path(), StoreOptions::default()).unwrap(),
    ];
    for store in without {
        agrees(&store);
        assert_eq!(store.health().index, IndexHealth::Off);
    }
    assert!(!index.exists());
    let store = Store::open(dir.path()).unwrap();
    agrees(&store);
    assert!(index.exists());
    drop(store);
    // Once there is one, it hears of commits without a listing.
    let store = Store::open(dir.path()).unwrap();
    let id = closed(&store, 1)[0];
    settle(&store);
    assert!(store.inner.catalog.known().entries.contains_key(&id));
}

/// Whether a word stands in the files of an index.
fn told(dir: &Path, word: &str) -> bool {
    let tells = |path: &PathBuf| {
        // A file may be on its way out.
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(word.len()).any(|at| at == word.as_bytes())
    };
    files_of(&dir.join("index")).iter().any(tells)
}

/// A store whose index was closed with this session among others.
fn with_title(title: &str) -> (tempfile::TempDir, SessionId) {
    let dir = indexed(3);
    let store = Store::open(dir.path()).unwrap();
    let session = store.create_session(SessionSpec::new().title(title));
    let session = session.unwrap();
    session.close().unwrap();
    agrees(&store);
    settle(&store);
    drop(store);
    assert!(told(dir.path(), title));
    (dir, session.id())
}

/// Whoever deletes a session: nothing of it stays in the index, and the others do.
#[test]
fn nothing_of_a_deleted_session_stays_in_the_files() {
    // By a store that uses the index: while it is open, and when it is closed at once.
    for closes in [false, true] {
        let (dir, id) = with_title("unheard-of");
        let store = Store::open(dir.path()).unwrap();
        store.delete_session(id).unwrap();
        if !closes {
            let until = Instant::now() + Duration::from_secs(20);
            while told(dir.path(), "unheard-of") {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(20));
            }
            agrees(&store);
        }
        drop(store);
        assert!(!told(dir.path(), "unheard-of"), "{closes}");
        let store = Store::open(dir.path()).unwrap();
        assert_eq!(reads(&store), 0);
    }

    // By one that has none: the index is emptied.
    let (dir, id) = with_title("unheard-of");
    let off = StoreOptions {
        index: IndexOptions::off(),
        ..StoreOptions::default()
    };
    let store = Store::open_with(dir.path(), off).unwrap();
    store.delete_session(id).unwrap();
    assert!(!told(dir.path(), "unheard-of"));
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(reads(&store), 3);
    agrees(&store);
    settle(&store);
    assert_eq!(reads(&store), 0);
    drop(store);

    // Beside one that has it: that one drops it, without a listing, when it is closed.
    let (dir, id) = with_title("unheard-of");
    let holds = Store::open(dir.path()).unwrap();
    assert_eq!(reads(&holds), 0);
    let beside = Store::open(dir.path()).unwrap();
    agrees(&beside);
    assert_eq!(beside.health().index, IndexHealth::Locked);
    beside.delete_session(id).unwrap();
    drop(holds);
    assert!(!told(dir.path(), "unheard-of"));

    // Whatever else has its name is no index, and stays.
    fs::remove_dir_all(dir.path().join("index")).unwrap();
    fs::write(dir.path().join("index"), b"in the way").unwrap();
    let other = beside.sessions().unwrap()[0].id;
    beside.delete_session(other).unwrap();
    assert_eq!(fs::read(dir.path().join("index")).unwrap(), b"in the way");
}

/// More deletions than wait in the queue of the index.
#[test]
fn many_deletions_leave_nothing_in_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let ids = closed(&store, 150);
    agrees(&store);
    settle(&store);
    for id in &ids[..149] {
        store.delete_session(*id).unwrap();
    }
    drop(store);
    assert!(told(dir.path(), "session 149"));
    assert!(!(100..149).any(|number| told(dir.path(), &format!("session {number}"))));
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(reads(&store), 0);
}
