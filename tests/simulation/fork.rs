//! Forks of the journal that lives here: each is made as a store makes one (under another name, which it
//! changes when it is whole), by a process that may crash, from the owner's own handle or from outside;
//! and whatever happens to its parent afterwards, it stays what it was.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepwell::identity::SessionId;
use stepwell::journal::{
    Entry, ForkError, ForkPoint, FrameKind, Journal, JournalView, Lsn, NewRecord, NoCarry, Owner,
    ReadError, Seq, Workers,
};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::{FaultKind, Op, SimVfs};

use crate::site::{Site, dir, vfs};
use crate::world::World;

/// Most forks at a time.
const MOST: usize = 3;

/// A fork that is being made, or is there.
#[derive(Debug)]
pub struct Child {
    number: u64,
    /// What the parent had up to the fork point.
    taken: Vec<Entry>,
    /// Its own records, the first of which it was made with.
    own: Vec<Vec<u8>>,
    /// Whether it was told to be there: it must be found from then on.
    made: bool,
}

impl Child {
    fn name(&self) -> PathBuf {
        PathBuf::from(format!("/fork-{}", self.number))
    }

    fn making(&self) -> PathBuf {
        PathBuf::from(format!("/making-{}", self.number))
    }

    fn session(&self) -> SessionId {
        let mut bytes = [0xf0; 16];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        SessionId::from_bytes(bytes)
    }

    fn exists(&self, disk: &SimVfs) -> bool {
        let names = disk.list(Path::new("/")).unwrap();
        names
            .iter()
            .any(|entry| Path::new("/").join(&entry.name) == self.name())
    }

    /// All that it was given is there, as its own, proven, and nothing else.
    pub fn check(&self, disk: &SimVfs) {
        let view = JournalView::open(vfs(disk), &self.name());
        let view = view.unwrap_or_else(|error| panic!("VIOLATION: {self:?}: {error}"));
        assert_eq!(view.damage(), None, "VIOLATION: {}", self.number);
        let mut entries = Vec::new();
        for entry in view.read(Lsn::ZERO) {
            entries.push(entry.unwrap_or_else(|error| panic!("VIOLATION: a fork: {error}")));
        }
        let (taken, rest) = entries
            .split_at_checked(self.taken.len())
            .unwrap_or((&entries, &[]));
        assert_eq!(
            taken.len(),
            self.taken.len(),
            "VIOLATION: a fork lost something"
        );
        for (entry, before) in taken.iter().zip(&self.taken) {
            let session = match before.kind {
                FrameKind::Record => self.session(),
                _ => before.session,
            };
            let same = (entry.lsn, entry.seq, entry.kind, &entry.payload)
                == (before.lsn, before.seq, before.kind, &before.payload);
            assert!(
                same && entry.session == session && entry.proven,
                "VIOLATION: a fork has {entry:?} instead of {before:?}"
            );
        }
        let own = rest.iter().filter(|entry| entry.kind == FrameKind::Record);
        let own: Vec<_> = own.map(|entry| entry.payload.clone()).collect();
        assert_eq!(own, self.own, "VIOLATION: a fork's own records");
        let foreign = rest.iter().filter(|entry| !entry.session.is_nil());
        for entry in foreign {
            assert_eq!(entry.session, self.session(), "VIOLATION: a foreign record");
        }
        let lsns = entries.iter().map(|entry| entry.lsn.get());
        assert!(
            lsns.eq(1..=entries.len() as u64),
            "VIOLATION: a gap in a fork"
        );
    }
}

impl World {
    /// Forks the journal, or does something with a fork that is there.
    pub fn fork(&mut self) {
        if self.site.owner == Owner::Shared {
            return;
        }
        self.check_forks();
        if self.forks.len() >= MOST || !self.forks.is_empty() && self.rng.chance(40) {
            match self.rng.below(4) {
                0 => self.remove_fork(),
                _ => self.write_to_fork(),
            }
            return;
        }
        let fired = self.site.disk.faults_fired();
        let at = self.place();
        let live = self.rng.chance(50);
        let point = match &self.process {
            Some(process) if live => process.journal.fork_point(at),
            _ => match JournalView::open(vfs(&self.site.disk.new_process()), &dir()) {
                Ok(view) => view.fork_point(at),
                // It is decided elsewhere whether that is right.
                Err(_) => return,
            },
        };
        let excused = self.site.disk.faults_fired() > fired
            || self
                .process
                .as_ref()
                .is_some_and(|process| process.vfs.has_crashed());
        match point {
            Ok(point) => self.fork_at(&point, at, live),
            Err(ForkError::WithinBatch { .. }) => self.site.count("forks within a batch refused"),
            Err(ForkError::NotProven { .. } | ForkError::Empty { .. }) => {
                self.site.count("forks of what is not proven refused");
            }
            Err(error) => assert!(excused, "VIOLATION: a fork was refused: {error}"),
        }
    }

    /// A record of the books, at random, or the last that is proven.
    fn place(&mut self) -> Option<Seq> {
        let last = self.site.books().last_seq(self.sessions[0]);
        match self.rng.chance(30) {
            true => None,
            false => Some(Seq::new(1 + self.rng.below(last + 1))),
        }
    }

    fn fork_at(&mut self, point: &ForkPoint, at: Option<Seq>, live: bool) {
        let fired = self.site.disk.faults_fired();
        let mut taken = Vec::new();
        for entry in point.read(Lsn::ZERO) {
            match entry {
                Ok(entry) => taken.push(entry),
                Err(ReadError::Disk(_)) if self.site.disk.faults_fired() > fired => return,
                Err(error) => panic!("VIOLATION: reading what a fork takes: {error}"),
            }
        }
        let last = taken.last().expect("a fork point has a record");
        assert_eq!(last.lsn, point.lsn(), "VIOLATION: the fork point");
        assert_eq!(
            last.batch.0 + 1,
            last.batch.1,
            "VIOLATION: half a batch is forked"
        );
        assert!(
            at.is_none_or(|at| at == point.seq()),
            "VIOLATION: another fork point"
        );
        if live {
            // The owner's own handle: acknowledged, and so in the books.
            assert!(
                last.lsn.get() <= self.site.books().last(),
                "VIOLATION: more than there is"
            );
        }
        self.forked += 1;
        let child = Child {
            number: self.forked,
            taken,
            own: vec![format!("fork {}", self.forked).into_bytes()],
            made: false,
        };
        let maker = self.site.disk.new_process();
        if self.rng.chance(40) {
            maker.crash_after(self.rng.below(40));
        }
        if self.rng.chance(15) {
            let kind = *self
                .rng
                .pick(&[FaultKind::Exdev, FaultKind::Emlink, FaultKind::Eperm]);
            let skip = self.rng.below(3);
            let shared = |op: &Op| matches!(op, Op::HardLink { original, .. } if original.starts_with(dir()) && !op.path().starts_with(dir()));
            self.site.disk.fail_nth(shared, skip, kind);
        }
        let fired = self.site.disk.faults_fired();
        let outcome = make(&self.site, &maker, point, &child);
        self.site
            .say(|| format!("fork {} at {}: {outcome:?}", child.number, point.lsn()));
        let excused =
            maker.has_crashed() || self.site.disk.faults_fired() > fired || self.site.is_full();
        assert!(
            outcome.is_ok() || excused,
            "VIOLATION: a fork failed: {outcome:?}"
        );
        let child = Child {
            made: outcome.is_ok(),
            ..child
        };
        self.site.count(match (outcome.is_ok(), live) {
            (false, _) => "forks cut off",
            (true, true) => "forks of the owner",
            (true, false) => "forks from outside",
        });
        if maker.has_crashed() {
            maker.kill();
        }
        self.forks.push(child);
        self.check_forks();
    }

    /// Each is whole, or was never said to be there and is not.
    pub fn check_forks(&mut self) {
        let disk = self.site.disk.new_process();
        let mut left = Vec::new();
        for child in std::mem::take(&mut self.forks) {
            if child.exists(&disk) {
                child.check(&disk);
                self.site.count("forks found whole");
                left.push(child);
                continue;
            }
            assert!(!child.made, "VIOLATION: the fork {} is lost", child.number);
            clear(&disk, &child.making());
        }
        self.forks = left;
    }

    /// A fork goes its own way, and closes or not.
    fn write_to_fork(&mut self) {
        if self.site.is_full() {
            return;
        }
        let index = self.rng.below(self.forks.len() as u64) as usize;
        let payloads: Vec<Vec<u8>> = (0..self.rng.between(1, 6))
            .map(|_| vec![self.rng.next() as u8; self.rng.below(1500) as usize])
            .collect();
        let closes = self.rng.chance(50);
        let child = &mut self.forks[index];
        let (session, path) = (child.session(), child.name());
        let process = vfs(&self.site.disk.new_process());
        let options = self.site.options.clone();
        let opening = Journal::open(process, &path, Owner::Session(session), options);
        let opening = opening.unwrap_or_else(|error| panic!("VIOLATION: a fork: {error}"));
        let opening = opening.workers(Workers::manual());
        let (journal, _) = opening
            .begin(&[], Arc::new(NoCarry))
            .expect("nothing is in the way");
        for payload in payloads {
            let appended = journal.append(
                &[NewRecord {
                    session,
                    payload: &payload,
                }],
                None,
            );
            assert!(appended.is_ok(), "VIOLATION: {appended:?}");
            child.own.push(payload);
        }
        // Without it the last group is not proven to others.
        journal.witness().expect("nothing is in the way");
        if closes {
            journal.close().expect("nothing is in the way");
        }
        self.site.count("forks written to");
    }

    fn remove_fork(&mut self) {
        let index = self.rng.below(self.forks.len() as u64) as usize;
        let child = self.forks.swap_remove(index);
        clear(&self.site.disk.new_process(), &child.name());
        self.site.count("forks removed");
    }

    /// Without their parent they are what they were.
    pub fn outlive(&mut self) {
        self.check_forks();
        let orphaned = self.site.disk.snapshot();
        clear(&orphaned, &dir());
        for child in &self.forks {
            child.check(&orphaned);
            self.site.count("forks that outlived their parent");
        }
    }
}

/// As a store makes it: whole under another name, then under its own.
fn make(site: &Site, maker: &SimVfs, point: &ForkPoint, child: &Child) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    maker.create_dir(&child.making()).map_err(text)?;
    let (path, session) = (child.making(), child.session());
    let first = &[child.own[0].as_slice()];
    let made = point.fork(vfs(maker), &path, session, &site.options, first, Vec::new());
    made.map_err(|error| error.to_string())?;
    let root = maker.open_dir(Path::new("/")).map_err(text)?;
    maker.rename(&child.making(), &child.name()).map_err(text)?;
    root.sync().map_err(text)
}

/// Removes a directory of files, durably.
fn clear(disk: &SimVfs, path: &Path) {
    let Ok(entries) = disk.list(path) else { return };
    for entry in entries {
        let inner = path.join(&entry.name);
        match entry.is_dir {
            true => clear(disk, &inner),
            false => disk.remove_file(&inner).unwrap(),
        }
    }
    disk.remove_dir(path).unwrap();
    let parent = path.parent().unwrap();
    disk.open_dir(parent).unwrap().sync().unwrap();
}
