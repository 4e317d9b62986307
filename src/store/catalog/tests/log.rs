//! Whatever happens to a log, an entry that was true before is not believed behind it.

use super::*;
use crate::content::UserMessage;
use crate::event::{ErrorKind, ErrorProjection};
use crate::journal::{JournalOptions, Workers};
use crate::store::{LoopSpec, StepDraft};
use crate::vfs::sim::SimVfs;

/// Every commit of a session's life: an entry that is made before one does not hold behind it, also
/// across segments, parking, closing, opening, and other processes' handles. Also where the system
/// does not say when files were changed, since nothing rests on that.
#[test]
fn no_entry_holds_behind_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    no_entry_of_a_life_holds_on(Arc::new(RealVfs), dir.path());
    no_entry_of_a_life_holds_on(Arc::new(SimVfs::new()), Path::new("/store"));
}

fn no_entry_of_a_life_holds_on(vfs: Arc<dyn Vfs>, dir: &Path) {
    let options = StoreOptions {
        journal: JournalOptions {
            first_capacity: 16 * 1024,
            max_capacity: 16 * 1024,
            ..JournalOptions::default()
        },
        // Nothing is written aside.
        workers: Workers::groups_only(),
        ..StoreOptions::default()
    };
    let store = Store::on(vfs, dir, options).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut life = Life {
        path: store.session_dir(session.id()),
        store,
        id: session.id(),
        open: Some(session.clone()),
        entry: None,
        made: 0,
        held: 0,
    };
    for number in 0..200 {
        life.step(|| drop(session.commit(said(&"x".repeat(400 + number))).unwrap()));
    }
    life.before();
    let mut agent = session.create_loop(LoopSpec::new("agent")).unwrap();
    life.after();
    life.step(|| drop(session.change(SessionChange::title("title")).unwrap()));
    for fails in [false, true] {
        life.before();
        let mut turn = agent.begin_turn(UserMessage::text("go")).unwrap();
        life.after();
        let step = StepDraft::new(crate::content::AssistantMessage::text("done"));
        life.step(|| drop(turn.commit_step(step).unwrap()));
        life.step(|| {
            if fails {
                let error = ErrorProjection::new(ErrorKind::Unknown, "no");
                drop(turn.fail(error).unwrap());
            } else {
                drop(turn.finish().unwrap());
            }
        });
    }
    drop(agent);
    session.park().unwrap();
    life.step(|| drop(session.commit(said("after parking")).unwrap()));
    life.step(|| session.close().unwrap());
    life.open = None;
    drop(session);
    let id = life.id;
    for _ in 0..3 {
        let store = life.store.clone();
        life.step(|| retitle(&store, id, "again"));
        let mut opened = None;
        let store = life.store.clone();
        life.step(|| opened = Some(open_for_writing(&store, id)));
        let session = opened.unwrap();
        life.open = Some(session.clone());
        life.step(|| drop(session.commit(said("said")).unwrap()));
        // Dropped without a close.
        life.open = None;
    }
    // The test itself tests something: entries could be made at most moments, and held until then.
    assert!(life.made > 200 && life.held == life.made, "{life:?}");
}

#[derive(Debug)]
struct Life {
    store: Store,
    path: PathBuf,
    id: SessionId,
    open: Option<Session>,
    entry: Option<Entry>,
    made: usize,
    held: usize,
}

impl Life {
    fn step(&mut self, happens: impl FnOnce()) {
        self.before();
        happens();
        self.after();
    }

    /// Makes an entry before something happens.
    fn before(&mut self) {
        // So that the last commit is proven.
        if let Some(session) = &self.open {
            session.witness().unwrap();
        }
        let store = &self.store.inner;
        let logs = Logs::of(&store.vfs, &store.dir, store.options.limits);
        let bytes = logs.entry(self.id);
        self.entry = bytes.map(|bytes| Entry::decode(self.id, &bytes).unwrap());
        if let Some(entry) = &self.entry {
            self.made += 1;
            let sessions = self.store.sessions().unwrap();
            assert_eq!(sessions[0].state.as_ref(), Ok(&entry.listed));
            self.held += usize::from(entry.fingerprint.holds(&store.vfs, &self.path));
        }
    }

    /// Holds the entry against the log behind it.
    fn after(&self) {
        let vfs = &self.store.inner.vfs;
        let held = |entry: &Entry| entry.fingerprint.holds(vfs, &self.path);
        assert!(!self.entry.as_ref().is_some_and(held), "{self:?}");
    }
}

/// While a log is written to at every moment of a reading, an entry is what was there at one moment.
#[test]
fn an_entry_made_while_commits_go_on_is_not_behind_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    let path = store.session_dir(session.id());
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
    let ends = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (session, ends) = (session.clone(), ends.clone());
        move || {
            let mut written = 0_u64;
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                session.commit(said("said")).unwrap();
                written += 1;
                if written.is_multiple_of(3) {
                    session.witness().unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    });
    let logs = Logs::of(&vfs, &store.inner.dir, store.inner.options.limits);
    let mut made = 0;
    while made < 100 {
        let Some(bytes) = logs.entry(session.id()) else {
            continue;
        };
        made += 1;
        let entry = Entry::decode(session.id(), &bytes).unwrap();
        let before = session.last_seq();
        if entry.fingerprint.holds(&vfs, &path) {
            assert!(entry.listed.last_seq >= before);
        }
    }
    ends.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
}
