//! One seed: a disk, the processes on it, the books, and what happens to them.

use std::path::Path;

use stepwell::identity::SessionId;
use stepwell::journal::{JournalOptions, JournalView, Lsn, Owner, Reader};
use stepwell::vfs::sim::{ChoicePoint, FaultKind, Part, SimVfs};

use crate::counts::Counts;
use crate::fork::Child;
use crate::process::Process;
use crate::rng::{Rng, hash, mix};
use crate::site::{Record, Site, dir};

pub struct World {
    pub site: Site,
    pub rng: Rng,
    /// The process that has the journal open and its right to it.
    pub process: Option<Process>,
    /// Processes that were overtaken and do not know it yet.
    pub stale: Vec<Process>,
    pub kept: Vec<Kept>,
    pub sessions: Vec<SessionId>,
    /// Forks of the journal, and how many were begun.
    pub forks: Vec<Child>,
    pub forked: u64,
    /// Bytes of frames that were given up, as they stood in the log.
    relics: Vec<Vec<u8>>,
    payloads: u64,
}

/// Readers and views that somebody keeps over time.
pub enum Kept {
    Reader {
        vfs: SimVfs,
        reader: Reader,
        next: u64,
        last: u64,
    },
    View {
        view: JournalView,
        /// What was acknowledged when it was opened: above that nothing is promised.
        last: u64,
    },
}

impl World {
    pub fn new(seed: u64, trace: bool) -> World {
        let mut rng = Rng::new(seed);
        let first_capacity = *rng.pick(&[4096, 4096, 8192, 16384]);
        let options = JournalOptions {
            first_capacity,
            max_capacity: first_capacity * *rng.pick(&[1, 1, 2, 4]),
            max_payload: 64 * 1024,
            supersede_limit: *rng.pick(&[0, 1024, 4096, 1 << 20]),
            quarantine_files: *rng.pick(&[0, 2, 64]),
            queue_records: *rng.pick(&[4, 4096]),
            ..JournalOptions::default()
        };
        let count = *rng.pick(&[1, 1, 1, 2, 5]);
        let sessions: Vec<SessionId> = (1..=count)
            .map(|n| SessionId::from_bytes([n; 16]))
            .collect();
        let owner = match sessions[..] {
            [session] => Owner::Session(session),
            _ => Owner::Shared,
        };
        let site = Site::new(options, owner, trace);
        site.say(|| format!("{:?}", site.options));
        if owner == Owner::Shared {
            site.count("shared journals");
        }
        World {
            site,
            rng,
            process: None,
            stale: Vec::new(),
            kept: Vec::new(),
            sessions,
            forks: Vec::new(),
            forked: 0,
            relics: Vec::new(),
            payloads: 0,
        }
    }

    /// Lives one seed to its end.
    pub fn run(seed: u64, trace: bool) -> Counts {
        let mut world = World::new(seed, trace);
        let steps = world.rng.between(30, 120);
        for _ in 0..steps {
            if !world.step() {
                world.site.count("runs that a lying medium ended");
                return world.site.counts();
            }
            world.check_bounds();
        }
        world.finish();
        world.site.counts()
    }

    /// The end of all trouble: the journal opens, takes a record, closes and opens again.
    fn finish(&mut self) {
        self.calm();
        if self.rng.chance(50) && !self.site.has_lied() {
            self.cut_power();
        } else {
            self.kill();
        }
        let vfs = self.site.disk.new_process();
        let _ = self.site.disk.break_lock(lock());
        let mut process = self.site.open(&vfs, &[]).expect("nothing is in the way");
        let batch = self.batch();
        self.site.append(&mut process, &batch, None);
        self.site.close(process);
        self.site.look();
        let mut process = self.site.open(&vfs, &[]).expect("nothing is in the way");
        self.site.append(&mut process, &batch, None);
        self.site.read_own(&process, 0);
        self.process = Some(process);
        self.read_kept(u64::MAX);
        self.outlive();
    }

    /// No more faults, and space again.
    pub fn calm(&mut self) {
        self.site.set_full(None);
        self.site.clear_faults();
    }

    // ---- crashes

    /// Kills whoever has the journal open.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            self.site
                .say(|| format!("epoch {} is killed", process.epoch));
            self.site.count("kills");
            process.vfs.kill();
            self.site.bury(process);
        }
        self.drop_dead();
    }

    fn drop_dead(&mut self) {
        for process in std::mem::take(&mut self.stale) {
            match process.vfs.has_crashed() {
                true => self.site.bury(process),
                false => self.stale.push(process),
            }
        }
        self.kept.retain(|kept| match kept {
            Kept::Reader { vfs, .. } => !vfs.has_crashed(),
            Kept::View { .. } => true,
        });
    }

    /// Cuts the power, and settles what the medium holds now: every opening from here on has to
    /// give the same answer.
    pub fn cut_power(&mut self) {
        for process in self.process.take().into_iter().chain(self.stale.drain(..)) {
            self.site.bury(process);
        }
        self.kept.clear();
        let seed = self.rng.next();
        self.site.say(|| format!("the power fails, {seed:#x}"));
        self.site.count("power losses");
        self.site.disk.power_loss_with(&mut loss(seed));
        self.site.clear_faults();
        self.site.settle_at_rest();
        self.check_forks();
    }

    // ---- payloads

    /// One to five records, mostly small, sometimes larger than a segment.
    pub fn batch(&mut self) -> Vec<Record> {
        let count = *self.rng.pick(&[1, 1, 1, 2, 3, 5]);
        (0..count).map(|place| self.record(place)).collect()
    }

    fn record(&mut self, place: u64) -> Record {
        let session = *self.rng.pick(&self.sessions);
        self.payloads += 1;
        let length = match self.rng.below(100) {
            0..3 => 0,
            3..40 => self.rng.between(8, 60),
            40..75 => self.rng.between(60, 400),
            75..96 => self.rng.between(400, 3000),
            _ => self.rng.between(3000, 20000),
        };
        let mut bytes = vec![0; length as usize];
        if length >= 8 {
            bytes[..8].copy_from_slice(&self.payloads.to_le_bytes());
        }
        let mut state = self.payloads;
        for byte in bytes.iter_mut().skip(8) {
            state = mix(state + 1);
            *byte = state as u8;
        }
        if length >= 100 && self.rng.chance(25) {
            self.put_images(&mut bytes);
        }
        if length >= 200 && !self.relics.is_empty() && self.rng.chance(50) {
            // Best the one that would have come next: where this record is damaged, it must not be
            // taken for what follows.
            let next = self.site.books().flying() + place + 2;
            let lsn = |relic: &&Vec<u8>| relic.get(32..40) == Some(&next.to_le_bytes()[..]);
            let fitting = self.relics.iter().find(lsn);
            let other = self.rng.pick(&self.relics);
            let relic = fitting.unwrap_or(other);
            // Frames are aligned, and so is the payload behind the header.
            for (byte, copy) in bytes[8..].iter_mut().zip(relic) {
                *byte = *copy;
            }
            self.site.count("payloads with frames that were given up");
        }
        (session, bytes.into())
    }

    /// Overwrites a payload with bytes of the log's own files: as they stand at the place where the
    /// payload will probably stand, or from anywhere.
    fn put_images(&mut self, bytes: &mut [u8]) {
        let mut files = self.site.disk.files();
        files.retain(|(path, _)| path.to_string_lossy().contains("seg-"));
        if files.is_empty() {
            return;
        }
        let file = self.rng.pick(&files).0.clone();
        let Ok(image) = self.site.disk.read_file(&file) else {
            return;
        };
        let last = self
            .process
            .as_ref()
            .and_then(|process| process.places.last());
        let last = last.map_or(0, |(_, position)| position.offset);
        let length = {
            let books = self.site.books();
            books.settled.last().map_or(0, |item| match &item.what {
                crate::books::What::Record { payload, .. } => payload.len() as u64,
                crate::books::What::Fence(_) => 32,
            })
        };
        let next = last + (80 + length).next_multiple_of(8) + 80;
        let from = match self.rng.chance(60) {
            true => next + 8,
            false => self.rng.below(image.len() as u64 / 8) * 8,
        };
        let Some(image) = image.get(from as usize..) else {
            return;
        };
        for (byte, copy) in bytes[8..].iter_mut().zip(image) {
            *byte = *copy;
        }
        self.site.count("payloads with images of frames");
    }

    /// Remembers what stands behind the last record that this process was told to be durable: frames
    /// whose outcome is unknown. If they are given up, their Lsns are used again.
    pub fn keep_relics(&mut self) {
        let Some(process) = &self.process else { return };
        let Some((_, last)) = process.places.last() else {
            return;
        };
        let path = dir().join(last.segment.to_string());
        let Ok(bytes) = self.site.disk.read_file(&path) else {
            return;
        };
        let behind = bytes.get(last.offset as usize + 80..).unwrap_or_default();
        let frames = behind
            .chunks_exact(8)
            .position(|word| word.starts_with(b"SWF1"));
        let Some(start) = frames else { return };
        // Without the first of them, which the record that holds this will be.
        for skip in 0..5 {
            let found = behind[start * 8..].chunks_exact(8).enumerate();
            let mut frames = found.filter(|(_, word)| word.starts_with(b"SWF1"));
            if let Some((at, _)) = frames.nth(skip) {
                let relic = behind[start * 8 + at * 8..].iter().take(400);
                self.relics.push(relic.copied().collect());
            }
        }
        let extra = self.relics.len().saturating_sub(20);
        self.relics.drain(..extra);
    }

    // ---- bounds

    /// The disk holds no more than the log, its unfinished segments and a bounded quarantine.
    fn check_bounds(&self) {
        let books = self.site.books();
        let frames = books.settled.iter().map(|item| match &item.what {
            crate::books::What::Record { payload, .. } => payload.len() as u64 + 88,
            crate::books::What::Fence(_) => 112,
        });
        let frames: u64 = frames.sum();
        let openings = self.site.openings();
        let mut used = 0;
        for (path, length) in self.site.disk.files() {
            if path.starts_with(dir()) && !path.starts_with(dir().join("quarantine")) {
                used += length;
            }
        }
        // A segment holds 16 KiB beside its frames; each opening may leave one more behind a crash.
        let per_segment = 20 * 1024 + self.site.options.max_capacity;
        let segments = 8 + frames / 2048 + openings;
        assert!(
            used <= 2 * frames + per_segment * segments,
            "VIOLATION: {used} bytes for {frames} bytes of frames after {openings} openings"
        );
    }

    // ---- readers over time

    /// Keeps a reader or a view for later.
    pub fn keep(&mut self) {
        if self.kept.len() >= 4 {
            self.kept.remove(0);
        }
        match &self.process {
            Some(process) if self.rng.chance(60) => {
                let from = self.rng.below(process.acknowledged + 2);
                self.kept.push(Kept::Reader {
                    vfs: process.vfs.clone(),
                    reader: process.journal.read(Lsn::new(from)),
                    next: from.max(1),
                    last: process.acknowledged,
                });
            }
            _ => {
                if let Some((view, _)) = self.site.look() {
                    let last = self.site.books().last();
                    self.kept.push(Kept::View { view, last });
                }
            }
        }
    }

    /// Reads on from what is kept: it still gives what was there when it was made.
    pub fn read_kept(&mut self, count: u64) {
        self.drop_dead();
        let mut kept = std::mem::take(&mut self.kept);
        for kept in &mut kept {
            self.site.count("reads by kept readers");
            kept.read(&self.site, count);
        }
        self.kept = kept;
    }
}

impl Kept {
    fn read(&mut self, site: &Site, count: u64) {
        let fired = site.disk.faults_fired();
        match self {
            Kept::Reader {
                vfs,
                reader,
                next,
                last,
            } => {
                for _ in 0..count {
                    match reader.next() {
                        None => {
                            assert!(*next > *last, "VIOLATION: a kept reader ends at {next}");
                            return;
                        }
                        Some(Ok(entry)) => {
                            let books = site.books();
                            let item = &books.settled[*next as usize - 1];
                            crate::site::check(
                                crate::books::matches(&entry, item),
                                "a kept reader",
                            );
                            *next += 1;
                        }
                        // Another reader of the same process may have crashed it.
                        Some(Err(_)) if site.disk.faults_fired() > fired || vfs.has_crashed() => {
                            *next = u64::MAX;
                            return;
                        }
                        Some(Err(error)) => panic!("VIOLATION: a kept reader: {error}"),
                    }
                }
            }
            Kept::View { view, last } => {
                let mut next = 1;
                for entry in view.read(Lsn::ZERO) {
                    if next > *last {
                        return;
                    }
                    match entry {
                        Ok(entry) => {
                            let books = site.books();
                            let item = &books.settled[next as usize - 1];
                            crate::site::check(crate::books::matches(&entry, item), "a kept view");
                            next += 1;
                        }
                        Err(_) if site.disk.faults_fired() > fired => {
                            // The fault may have ended its process.
                            *last = 0;
                            return;
                        }
                        Err(error) => panic!("VIOLATION: a kept view: {error}"),
                    }
                }
                assert!(next > *last, "VIOLATION: a kept view ends before {next}");
            }
        }
    }
}

/// Decides each choice of a power loss by itself, by the seed, the place and how often it came up,
/// so that names which the library draws at random change nothing.
pub fn loss(seed: u64) -> impl FnMut(&ChoicePoint) -> usize {
    let mut seen: std::collections::HashMap<(String, Part), u64> = Default::default();
    move |point| {
        let name = steady(&point.path);
        let times = seen.entry((name.clone(), point.part)).or_default();
        *times += 1;
        let part = match point.part {
            Part::Name => 0,
            Part::Length => 1,
            Part::Sector(number) => number + 2,
            _ => u64::MAX,
        };
        let chance = hash(name.as_bytes(), mix(seed ^ mix(part + (*times << 40))));
        let options = point.options as u64;
        let answer = match seed % 6 {
            0 => 0,
            1 => options - 1,
            2 | 3 => chance % options,
            4 if !chance.is_multiple_of(5) => 0,
            5 if !chance.is_multiple_of(5) => options - 1,
            _ => (chance / 5) % options,
        };
        answer as usize
    }
}

/// The name of a file without the part that is random.
pub fn steady(path: &Path) -> String {
    let name = path.to_string_lossy();
    match name.find("tmp-") {
        Some(at) => name.chars().take(at + 14).collect(),
        None => name.into_owned(),
    }
}

pub fn lock() -> std::path::PathBuf {
    dir().join("LOCK")
}

/// Simulation, from seed 1000000 on: a crash that hits one reader of a process ends the others too,
/// whose reads no fault has hit.
#[test]
fn a_kept_reader_may_end_with_its_process() {
    let mut world = World::new(1, false);
    let vfs = world.site.disk.new_process();
    let process = world.site.open(&vfs, &[]).unwrap();
    for _ in 0..2 {
        world.kept.push(Kept::Reader {
            vfs: vfs.clone(),
            reader: process.journal.read(Lsn::ZERO),
            next: 1,
            last: process.acknowledged,
        });
    }
    world.process = Some(process);
    world.site.disk.fail_nth(|_| true, 0, FaultKind::Crash(0));
    world.read_kept(1);
    assert!(vfs.has_crashed());
    world.kill();
}
