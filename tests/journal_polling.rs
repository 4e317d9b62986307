//! Following a journal from another process, by polling: what is proven, in order, at every call of
//! the writer to the disk, over rolls, closes, kills, openings again and takeovers.
//!
//! The oracle: what was given at a moment is in what every power loss at that moment leaves, and in
//! what the journal holds in the end. The writers' own books are the truth.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stepwell::journal::{
    Damage, Entry, FollowError, FrameKind, Journal, JournalFollower, JournalOptions, JournalView,
    Lsn, NoCarry, OpenError, Owner, ReadError, Workers,
};
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use support::*;

thread_local! {
    /// Whether the hook runs: what it asks the disk comes to it again.
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// A follower with what it gave.
struct Watcher {
    follower: JournalFollower,
    given: Vec<Vec<u8>>,
    next: u64,
    looks: u64,
}

impl Watcher {
    fn new(disk: &SimVfs, from: u64) -> Watcher {
        let vfs = Arc::new(disk.new_process());
        Watcher {
            follower: JournalFollower::open(vfs, &dir(), Lsn::new(from)).unwrap(),
            given: Vec::new(),
            next: from,
            looks: 0,
        }
    }

    /// Polls once; whether there was something new.
    fn look(&mut self) -> Result<bool, FollowError> {
        self.looks += 1;
        let entries = self.follower.poll()?;
        for entry in &entries {
            assert_eq!(entry.lsn.get(), self.next, "a gap or a duplicate");
            self.next += 1;
            if entry.kind == FrameKind::Record {
                self.given.push(entry.payload.clone());
            }
        }
        Ok(!entries.is_empty())
    }

    /// Polls until nothing is new.
    fn drain(&mut self) {
        while self.look().unwrap() {}
        assert!(!self.look().unwrap());
    }
}

/// Runs a look of the follower before each call of others to the disk, and checks what it gave
/// against power losses at that moment.
fn watch(disk: &SimVfs, options: &JournalOptions, watcher: &Arc<Mutex<Watcher>>) {
    let (watched, options, watcher) = (disk.clone(), options.clone(), watcher.clone());
    disk.set_hook(move |op| {
        if WATCHING.replace(true) {
            return;
        }
        let mut watcher = watcher.lock().unwrap();
        let new = match watcher.look() {
            Ok(new) => new,
            Err(error) => panic!("before {op:?}: {error}"),
        };
        if new {
            let seed = watcher.looks;
            for loss in [
                PowerLoss::DropAll,
                PowerLoss::KeepAll,
                PowerLoss::Seeded(seed),
            ] {
                let after = watched.snapshot();
                after.power_loss(loss);
                let kept = records(open(&after, &options).unwrap().read(Lsn::ZERO));
                assert!(
                    kept.starts_with(&watcher.given),
                    "before {op:?}, {loss:?}: {} given, {} kept",
                    watcher.given.len(),
                    kept.len()
                );
            }
        }
        WATCHING.set(false);
    });
}

/// A small source of choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

struct Life {
    disk: SimVfs,
    options: JournalOptions,
    workers: Workers,
    journal: Journal,
    books: Books,
}

impl Life {
    fn new(options: JournalOptions) -> Life {
        let disk = disk();
        let workers = Workers::manual();
        let owner = Owner::Session(session());
        let opening = Journal::create(vfs(&disk), &dir(), owner, options.clone()).unwrap();
        let opening = opening.workers(workers.clone());
        let journal = opening.begin(&[], Arc::new(NoCarry)).unwrap().0;
        Life {
            disk,
            options,
            workers,
            journal,
            books: Books::default(),
        }
    }

    fn reopen(&mut self, disk: SimVfs) {
        let opening = open(&disk, &self.options).unwrap();
        self.books.judge(&records(opening.read(Lsn::ZERO)));
        self.workers = Workers::manual();
        let opening = opening.workers(self.workers.clone());
        self.journal = opening.begin(&[], Arc::new(NoCarry)).unwrap().0;
        self.disk = disk;
    }

    /// Something that can happen to a journal. Gives its name.
    fn act(&mut self, dice: &mut Dice) -> &'static str {
        match dice.roll(24) {
            0 => {
                self.journal.close().unwrap();
                let disk = self.disk.clone();
                self.reopen(disk);
                "close"
            }
            1 => {
                self.disk.kill();
                let disk = self.disk.clone();
                self.reopen(disk);
                "kill"
            }
            2 => {
                // A lock file that was put back; the old writer goes on and loses.
                let new = self.disk.new_process();
                new.break_lock(dir().join("LOCK")).unwrap();
                let (old, old_workers) = (self.journal_of(&new), self.workers.clone());
                let mut stale = Books {
                    next: 1_000_000,
                    ..Books::default()
                };
                for _ in 0..1 + dice.roll(3) {
                    assert!(!stale.append(&old, 1, 500));
                    old_workers.run_one();
                }
                assert!(stale.acknowledged.is_empty());
                "takeover"
            }
            3 => {
                // A group whose write fails is unknown, and its bytes may stand.
                let write = |op: &Op| matches!(op, Op::Write { length, .. } if *length > 100);
                self.disk.fail_nth(write, 0, FaultKind::FailedWrite(700));
                let _ = self.books.append(&self.journal, 2, 600);
                self.disk.clear_faults();
                self.disk.kill();
                let disk = self.disk.clone();
                self.reopen(disk);
                "fault"
            }
            4..=7 => {
                self.workers.run_one();
                "chore"
            }
            _ => {
                let length = 100 + dice.roll(1100) as usize;
                let count = 1 + dice.roll(3) as usize;
                assert!(self.books.append(&self.journal, count, length));
                "append"
            }
        }
    }

    /// Opens on another process's view and gives the old journal.
    fn journal_of(&mut self, new: &SimVfs) -> Journal {
        let opening = open(new, &self.options).unwrap();
        self.books.judge(&records(opening.read(Lsn::ZERO)));
        let workers = Workers::manual();
        let opening = opening.workers(workers);
        let journal = opening.begin(&[], Arc::new(NoCarry)).unwrap().0;
        self.disk = new.clone();
        std::mem::replace(&mut self.journal, journal)
    }
}

fn seeds() -> u64 {
    let set = std::env::var("STEPWELL_SIM_SEEDS");
    set.ok().and_then(|set| set.parse().ok()).unwrap_or(6)
}

/// A follower that looks before every call of the writers.
#[test]
fn at_every_call_it_gives_only_what_no_crash_takes_back() {
    for seed in 1..=seeds() {
        for supersede in [0, 1 << 20] {
            let mut life = Life::new(options(supersede));
            let watcher = Arc::new(Mutex::new(Watcher::new(&life.disk, 1)));
            watch(&life.disk, &life.options.clone(), &watcher);
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            for _ in 0..60 {
                life.act(&mut dice);
            }
            life.journal.close().unwrap();
            life.disk.clear_hook();
            let watcher = &mut *watcher.lock().unwrap();
            watcher.drain();
            assert!(watcher.looks > 200);
            assert_eq!(
                watcher.given, life.books.acknowledged,
                "seed {seed}, {supersede}: a close proves all of it"
            );
        }
    }
}

/// One that looks seldom, from any Lsn, and misses whole lives of segments meanwhile.
#[test]
fn one_that_looks_seldom_catches_up() {
    for seed in 1..=seeds() {
        let mut life = Life::new(options(if seed % 2 == 0 { 0 } else { 1 << 20 }));
        let mut dice = Dice(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let mut watchers = vec![Watcher::new(&life.disk, 1), Watcher::new(&life.disk, 9)];
        for _ in 0..100 {
            life.act(&mut dice);
            for watcher in &mut watchers {
                if dice.roll(12) == 0 {
                    watcher.look().unwrap();
                }
            }
        }
        life.journal.close().unwrap();
        let whole: Vec<Entry> = life.journal.read(Lsn::ZERO).map(Result::unwrap).collect();
        watchers.push(Watcher::new(&life.disk, whole.len() as u64 / 2));
        for watcher in &mut watchers {
            watcher.drain();
            let from = whole
                .iter()
                .position(|entry| entry.lsn.get() >= watcher.next);
            assert_eq!(from, None, "seed {seed}: it stopped at {}", watcher.next);
            assert!(life.books.acknowledged.ends_with(&watcher.given));
        }
        assert_eq!(watchers[0].given, life.books.acknowledged);
        assert!(watchers[2].given.len() > 5);
    }
}

/// The last group of a writer is proven by the slot that it writes when it is quiet, which needs no
/// sync; a killed writer's by the next opening.
#[test]
fn the_last_group_comes_with_the_slot_or_with_the_next_opening() {
    let mut life = Life::new(options(1 << 20));
    let mut watcher = Watcher::new(&life.disk, 1);
    for _ in 0..3 {
        assert!(life.books.append(&life.journal, 2, 100));
    }
    watcher.drain();
    assert_eq!(
        watcher.given,
        life.books.acknowledged[..4],
        "not the last group"
    );
    // Each group proves the one before it, at once.
    for _ in 0..30 {
        let before = life.books.acknowledged.len();
        assert!(life.books.append(&life.journal, 2, 700));
        watcher.drain();
        assert_eq!(watcher.given.len(), before);
    }
    let all = life.books.acknowledged.len();
    life.disk.clear_trace();
    while watcher.given.len() < all {
        assert!(life.workers.run_one());
        watcher.drain();
    }
    assert_eq!(watcher.given, life.books.acknowledged);
    assert_eq!(life.disk.sync_count(""), 0, "the slot was not synced yet");
    assert!(life.books.append(&life.journal, 1, 100));
    life.disk.kill();
    watcher.drain();
    assert_eq!(watcher.given.len(), all, "nobody vouched for it");
    let disk = life.disk.clone();
    life.reopen(disk);
    life.workers.run_one();
    watcher.drain();
    assert_eq!(watcher.given, life.books.acknowledged);
}

/// The cost of a look does not grow with the log, and it writes nothing (P13).
#[test]
fn a_look_costs_what_is_new_and_writes_nothing() {
    let mut life = Life::new(options(1 << 20));
    let mut watcher = Watcher::new(&life.disk, 1);
    let mut costs = Vec::new();
    for round in 0..40 {
        for _ in 0..5 {
            assert!(life.books.append(&life.journal, 1, 700));
        }
        while life.workers.run_one() {}
        life.disk.clear_trace();
        watcher.drain();
        let trace = life.disk.trace();
        assert!(trace.iter().all(|call| !call.op.changes_disk()));
        assert!(
            trace
                .iter()
                .all(|call| !matches!(call.op, Op::TryLock { .. }))
        );
        let bytes: usize = trace
            .iter()
            .map(|call| match call.op {
                Op::Read { length, .. } => length,
                _ => 0,
            })
            .sum();
        costs.push((round, trace.len(), bytes));
        // With nothing new.
        life.disk.clear_trace();
        assert!(!watcher.look().unwrap());
        let idle = life.disk.trace();
        assert!(idle.len() <= 4, "{idle:?}");
    }
    assert_eq!(watcher.given, life.books.acknowledged);
    let most = costs.iter().map(|(_, calls, bytes)| (*calls, *bytes)).max();
    // A segment is 16 KiB; the log is 160 KiB.
    assert!(
        costs
            .iter()
            .all(|(_, calls, bytes)| *calls < 60 && *bytes < 150_000),
        "{most:?}"
    );
    let late: usize = costs[30..].iter().map(|(_, _, bytes)| bytes).sum();
    let early: usize = costs[..10].iter().map(|(_, _, bytes)| bytes).sum();
    assert!(late < early * 2, "{early} bytes, then {late}");
}

/// Polls until there is an error.
fn end_of(watcher: &mut Watcher) -> FollowError {
    for _ in 0..20 {
        if let Err(error) = watcher.look() {
            assert_eq!(watcher.look(), Err(error.clone()), "an end stays");
            return error;
        }
    }
    panic!("no end, {} given", watcher.given.len());
}

fn files(life: &Life, prefix: &str) -> Vec<PathBuf> {
    let files = life.disk.files().into_iter().map(|(path, _)| path);
    files
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(prefix)
        })
        .collect()
}

/// Deleted, in any order of its files; replaced by another; without one of its files.
#[test]
fn deletion_and_loss_are_typed_ends() {
    let prepared = || {
        let mut life = Life::new(options(1 << 20));
        for _ in 0..30 {
            assert!(life.books.append(&life.journal, 1, 900));
            life.workers.run_one();
        }
        let mut watcher = Watcher::new(&life.disk, 1);
        watcher.drain();
        assert!(watcher.given.len() >= 28);
        (life, watcher)
    };
    for reverse in [false, true] {
        let (life, mut watcher) = prepared();
        let mut paths = files(&life, "");
        if reverse {
            paths.reverse();
        }
        for path in paths {
            life.disk.remove(path).unwrap();
            let _ = watcher.look();
        }
        let end = end_of(&mut watcher);
        assert_eq!(end, FollowError::Deleted { path: dir() });
    }
    let (life, mut watcher) = prepared();
    for path in files(&life, "") {
        life.disk.remove(path).unwrap();
    }
    let other = create(&life.disk.new_process(), &options(0)).unwrap();
    let _ = append(&other, &[payload(1, 10)]).unwrap();
    assert_eq!(end_of(&mut watcher), FollowError::Replaced { path: dir() });
    // A listed segment that is not there.
    let (life, _) = prepared();
    life.disk.remove(&files(&life, "seg-")[0]).unwrap();
    let end = end_of(&mut Watcher::new(&life.disk, 1));
    assert!(
        matches!(
            end,
            FollowError::Damaged {
                damage: Damage::SegmentMissing { .. },
                ..
            }
        ),
        "{end:?}"
    );
    // The manifest, damaged.
    let (life, mut watcher) = prepared();
    life.disk
        .flip_byte(&files(&life, "MANIFEST")[0], 30)
        .unwrap();
    let end = end_of(&mut Watcher {
        next: 1,
        ..Watcher::new(&life.disk, 1)
    });
    let lost = FollowError::Damaged {
        path: dir(),
        damage: Damage::ManifestLost,
    };
    assert_eq!(end, lost);
    assert!(
        !watcher.look().unwrap(),
        "one that knows where it is goes on"
    );
}

/// A flipped byte or a zeroed block, anywhere in frames that were acknowledged: the follower gives
/// what comes before and then says what cannot be read; it neither skips it nor waits for ever.
#[test]
fn damage_is_named_and_nothing_is_skipped() {
    for seed in 1..=30 {
        for opened_again in [false, true] {
            let mut dice = Dice(u64::wrapping_mul(seed, 0x5851_f42d_4c95_7f2d));
            let mut life = Life::new(options(1 << 20));
            for _ in 0..20 + dice.roll(20) {
                assert!(life.books.append(&life.journal, 1, 700));
                life.workers.run_one();
            }
            let entries: Vec<Entry> = life.journal.read(Lsn::ZERO).map(Result::unwrap).collect();
            // Not the last group, which is in the window.
            let victim = dice.roll(entries.len() as u64 - 1) as usize;
            let hurt = entries[victim].position;
            let file = dir().join(hurt.segment.to_string());
            match dice.roll(3) {
                0 => life.disk.flip_byte(&file, hurt.offset + dice.roll(80)),
                1 => life.disk.flip_byte(&file, hurt.offset + 80),
                _ => life.disk.zero(&file, hurt.offset..hurt.offset + 40),
            }
            .unwrap();
            if opened_again {
                // Refused, and nothing but the epoch is new then; a sealed segment is not read.
                life.disk.kill();
                let _ = open(&life.disk, &life.options).map(|opening| drop(begin(opening)));
            }
            let mut watcher = Watcher::new(&life.disk, 1);
            let end = end_of(&mut watcher);
            let FollowError::Read(ReadError::Damaged {
                first,
                offset,
                path,
                ..
            }) = &end
            else {
                panic!("seed {seed}: {end:?}");
            };
            assert_eq!(first.get(), victim as u64 + 1, "seed {seed}: {end:?}");
            if !opened_again {
                assert_eq!((*offset, path), (hurt.offset, &file));
            }
            assert_eq!(watcher.next, first.get(), "all before it was given");
        }
    }
}

/// A disk that fails now and then ends nothing.
#[test]
fn a_failed_call_can_be_tried_again() {
    let mut life = Life::new(options(1 << 20));
    for _ in 0..30 {
        assert!(life.books.append(&life.journal, 1, 900));
        life.workers.run_one();
    }
    life.journal.close().unwrap();
    let mut told = 0;
    for skip in 0..60 {
        let mut watcher = Watcher::new(&life.disk, 1);
        let before = life.disk.faults_fired();
        life.disk.fail_nth(|_| true, skip, FaultKind::Eio);
        let mut failed = 0;
        while watcher.given.len() < life.books.acknowledged.len() {
            match watcher.look() {
                Ok(_) => {}
                Err(FollowError::Disk(_)) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        // One that comes behind the last record is told by the next look.
        assert!(failed <= life.disk.faults_fired() - before);
        told += failed;
        life.disk.clear_faults();
        assert_eq!(watcher.given, life.books.acknowledged);
    }
    assert!(told > 10, "{told}");
}

/// A view follows too, and the blocking form waits. The writer is another thread on the machine's
/// own disk, which rolls and opens again meanwhile.
#[test]
fn on_a_real_disk_it_follows_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let real: Arc<dyn stepwell::vfs::Vfs> = Arc::new(stepwell::vfs::RealVfs);
    let path = folder.path();
    let owner = Owner::Session(session());
    let options = options(1 << 20);
    let opening = Journal::create(real.clone(), path, owner, options.clone()).unwrap();
    let mut journal = opening.begin(&[], Arc::new(NoCarry)).unwrap().0;
    let follower = JournalView::open(real.clone(), path)
        .unwrap()
        .follow(Lsn::ZERO);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for entry in follower.every(Duration::from_millis(2)) {
            let entry = entry.unwrap();
            if entry.kind == FrameKind::Record && sender.send(entry.payload).is_err() {
                return;
            }
        }
    });
    let mut written = Vec::new();
    for round in 0..4 {
        for number in 0..40 {
            let bytes = payload(round * 100 + number, 900);
            let _ = append(&journal, std::slice::from_ref(&bytes)).unwrap();
            written.push(bytes);
        }
        if round % 2 == 0 {
            journal.close().unwrap();
        }
        drop(journal);
        let opening = loop {
            match Journal::open(real.clone(), path, owner, options.clone()) {
                // A thread that does something aside still has the last one.
                Err(OpenError::Locked { .. }) => std::thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        journal = opening.begin(&[], Arc::new(NoCarry)).unwrap().0;
    }
    // The last step arrives by the slot, 20 ms after it.
    let begun = Instant::now();
    let mut seen = Vec::new();
    while seen.len() < written.len() {
        seen.push(receiver.recv_timeout(Duration::from_secs(20)).unwrap());
    }
    assert_eq!(seen, written);
    assert!(begun.elapsed() < Duration::from_secs(10));
}
