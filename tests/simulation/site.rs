//! The disk and the books together: each thing that a process can do, with its answer held against
//! the books. A clone is the same site, so that one process can act within a call of another.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use stepwell::identity::SessionId;
use stepwell::journal::{
    AppendError, Entry, Journal, JournalOptions, JournalView, Lsn, NewRecord, NoCarry,
    NotCommitted, OpenError, Opening, OwnedRecord, Owner, ReadError, Reader, Receipt, Seq, Workers,
};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::SimVfs;

use crate::books::{Batch, Books, Outcome, matches};
use crate::counts::Counts;
use crate::process::Process;

pub type Record = (SessionId, Arc<[u8]>);

#[derive(Debug, Clone)]
pub struct Site {
    pub disk: SimVfs,
    pub options: JournalOptions,
    pub owner: Owner,
    pub trace: bool,
    books: Arc<Mutex<Books>>,
    counts: Arc<Mutex<Counts>>,
    flags: Arc<Flags>,
}

#[derive(Debug, Default)]
struct Flags {
    /// How often somebody began to open for writing.
    openings: AtomicU64,
    /// Whether the disk has little room.
    full: AtomicBool,
    /// Whether a sync reported success and lost something: the medium broke its promise.
    lied: AtomicBool,
}

pub fn dir() -> PathBuf {
    PathBuf::from("/journal")
}

pub fn vfs(disk: &SimVfs) -> Arc<dyn Vfs> {
    Arc::new(disk.clone())
}

impl Site {
    pub fn new(options: JournalOptions, owner: Owner, trace: bool) -> Site {
        let disk = SimVfs::new();
        disk.set_tracing(false);
        disk.create_dir(&dir()).unwrap();
        disk.open_dir(Path::new("/")).unwrap().sync().unwrap();
        Site {
            disk,
            options,
            owner,
            trace,
            books: Arc::default(),
            counts: Arc::default(),
            flags: Arc::default(),
        }
    }

    /// The same journal on another disk, with books of its own.
    pub fn on(&self, disk: SimVfs) -> Site {
        let books = self.books().clone();
        self.at(disk, books)
    }

    /// The same journal on another disk, at another moment.
    pub fn at(&self, disk: SimVfs, books: Books) -> Site {
        Site {
            disk,
            books: Arc::new(Mutex::new(books)),
            flags: Arc::default(),
            ..self.clone()
        }
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn counts(&self) -> Counts {
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn count(&self, what: &'static str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.add(what, 1);
    }

    pub fn say(&self, text: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("  {}", text());
        }
    }

    pub fn set_full(&self, bytes: Option<u64>) {
        self.flags.full.store(bytes.is_some(), Ordering::SeqCst);
        let room = bytes.map(|bytes| self.disk.used() + bytes);
        self.disk.set_capacity(room);
        self.books().gaps |= bytes.is_some();
    }

    pub fn clear_faults(&self) {
        self.disk.clear_faults();
        let mut books = self.books();
        books.gaps &= !books.unknown.is_empty() || self.is_full();
    }

    pub fn is_full(&self) -> bool {
        self.flags.full.load(Ordering::SeqCst)
    }

    pub fn lie(&self) {
        self.flags.lied.store(true, Ordering::SeqCst);
    }

    pub fn has_lied(&self) -> bool {
        self.flags.lied.load(Ordering::SeqCst)
    }

    pub fn openings(&self) -> u64 {
        self.flags.openings.load(Ordering::SeqCst)
    }

    // ---- reading

    /// All entries of a reader; `None` if a fault hit it. Damage is a violation here.
    pub fn read(&self, reader: Reader, fired: u64) -> Option<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in reader {
            match entry {
                Ok(entry) => entries.push(entry),
                Err(ReadError::Disk(_)) if self.disk.faults_fired() > fired => return None,
                Err(error) => panic!("VIOLATION: reading what is whole: {error}"),
            }
        }
        Some(entries)
    }

    /// A look from another process, at any moment: it sees all that is acknowledged, proves no more
    /// than that, and finds no damage. `None` if there is nothing yet or a fault hit it.
    pub fn look(&self) -> Option<(JournalView, Vec<Entry>)> {
        self.count("views");
        let fired = self.disk.faults_fired();
        let reader = self.disk.new_process();
        let view = match JournalView::open(vfs(&reader), &dir()) {
            Ok(view) => view,
            Err(OpenError::NotFound { .. }) if self.books().settled.is_empty() => return None,
            Err(OpenError::Disk(_)) if self.disk.faults_fired() > fired => return None,
            Err(error) => panic!("VIOLATION: a view was refused: {error}"),
        };
        if let Some(damage) = view.damage() {
            panic!("VIOLATION: a view found damage where there is none: {damage}");
        }
        let entries = self.read(view.read(Lsn::ZERO), fired)?;
        let books = self.books();
        let kept = books
            .judge(&entries)
            .unwrap_or_else(|error| panic!("VIOLATION: a view: {error}"));
        check(
            books.judge_watermark(view.report().watermark.get()),
            "a view",
        );
        if let Some(entry) = entries.iter().rfind(|entry| entry.proven)
            && entry.lsn.get() > books.ceiling()
        {
            panic!("VIOLATION: a view calls Lsn {} proven", entry.lsn);
        }
        drop(books);
        if !kept.is_empty() {
            self.count("views that show what is not proven");
        }
        Some((view, entries))
    }

    /// The decision about a medium at rest, which every later opening must repeat.
    pub fn settle_at_rest(&self) {
        let entries = self.look().map(|(_, entries)| entries).unwrap_or_default();
        let mut books = self.books();
        let unknown = books.unknown.len();
        let kept = books.decide(&entries);
        let kept = kept.unwrap_or_else(|error| panic!("VIOLATION: at rest: {error}"));
        drop(books);
        if unknown > 0 {
            self.count(match kept {
                0 => "unknown batches dropped",
                _ => "unknown batches kept",
            });
        }
    }

    // ---- opening

    /// Opens for writing and begins with a batch of records. `None` if that failed with an excuse:
    /// a fault, a crash, a full disk, another opener. Anything else is a violation: a legal crash
    /// always opens (P5).
    pub fn open(&self, process: &SimVfs, records: &[Record]) -> Option<Process> {
        self.count("openings");
        let fired = self.disk.faults_fired();
        let floor = self.books().floor;
        let number = self.flags.openings.fetch_add(1, Ordering::SeqCst) + 1;
        let (at, options) = (vfs(process), self.options.clone());
        let opened = match Journal::open(at.clone(), &dir(), self.owner, options.clone()) {
            Err(OpenError::NotFound { .. }) if self.books().settled.is_empty() => {
                self.books().unknown.clear();
                self.count("creations");
                Journal::create(at, &dir(), self.owner, options)
            }
            other => other,
        };
        let opening = match opened {
            Ok(opening) => opening,
            Err(error) => {
                self.say(|| format!("opening failed: {error}"));
                let excused = process.has_crashed()
                    || self.disk.faults_fired() > fired
                    || (self.is_full() && matches!(error, OpenError::StorageFull(_)))
                    || self.openings() > number;
                let damage = matches!(error, OpenError::Damaged { .. });
                assert!(
                    excused && !damage,
                    "VIOLATION: a legal crash was refused: {error}"
                );
                self.count("openings that failed");
                return None;
            }
        };
        self.begin(process, opening, records, (fired, number, floor))
    }

    fn begin(
        &self,
        process: &SimVfs,
        opening: Opening,
        records: &[Record],
        (fired, number, floor): (u64, u64, u64),
    ) -> Option<Process> {
        let epoch = opening.report().epoch;
        let overtaken = self.openings() > number;
        if overtaken && self.books().rank > epoch {
            // Somebody else has opened within our last call: what we read does not count.
            return None;
        }
        let entries = self.opening_entries(process, &opening, fired)?;
        {
            let mut books = self.books();
            let report = opening.report();
            assert!(
                report.watermark.get() <= books.ceiling(),
                "VIOLATION: the watermark {} is above the true one, {}",
                report.watermark,
                books.ceiling()
            );
            let unknown = books.unknown.len();
            let kept = books
                .decide(&entries)
                .unwrap_or_else(|error| panic!("VIOLATION: epoch {epoch} opened: {error}"));
            // An overtaken writer may still have acknowledged after this opening looked for claims.
            books.floor = floor;
            check(books.judge_watermark(report.watermark.get()), "an opening");
            assert!(epoch > books.rank, "VIOLATION: epoch {epoch} was there");
            books.rank = epoch;
            books.openings.insert(epoch, floor);
            if report.cut.is_some() {
                self.count("torn tails");
            }
            if unknown > 0 {
                self.count(match kept {
                    0 => "unknown batches dropped",
                    _ => "unknown batches kept",
                });
            }
            self.say(|| {
                format!(
                    "epoch {epoch}: {} kept, {kept} of {unknown} unknown batches, watermark {}",
                    entries.len(),
                    report.watermark
                )
            });
        }
        let batch = self.books().hand_over(epoch, true, records);
        let workers = Workers::manual();
        let opening = opening.workers(workers.clone());
        match opening.begin(&new_records(records), Arc::new(NoCarry)) {
            Ok((journal, receipt)) => {
                let acknowledged = batch.items.last().map_or(0, |item| item.lsn);
                self.enter(epoch, &batch, Ok(&receipt));
                let mut opened = Process {
                    vfs: process.clone(),
                    journal,
                    workers,
                    pending: Vec::new(),
                    epoch,
                    number,
                    fired,
                    poisoned: false,
                    acknowledged,
                    places: Vec::new(),
                };
                opened.note(&receipt);
                Some(opened)
            }
            Err(error) => {
                self.say(|| format!("the fence failed: {error}"));
                let refused = matches!(error, OpenError::Fence(AppendError::NotCommitted(_)));
                let outcome = match refused {
                    true => Outcome::NotCommitted,
                    false => Outcome::Unknown,
                };
                self.enter(epoch, &batch, Err(outcome));
                let excused = process.has_crashed()
                    || self.disk.faults_fired() > fired
                    || (self.is_full() && refused)
                    || self.openings() > number;
                assert!(excused, "VIOLATION: a fence failed: {error}");
                self.count("fences that failed");
                None
            }
        }
    }

    fn opening_entries(
        &self,
        process: &SimVfs,
        opening: &Opening,
        fired: u64,
    ) -> Option<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in opening.read(Lsn::ZERO) {
            match entry {
                Ok(entry) => entries.push(entry),
                Err(ReadError::Disk(_))
                    if process.has_crashed() || self.disk.faults_fired() > fired =>
                {
                    return None;
                }
                Err(error) => panic!("VIOLATION: reading what an opening kept: {error}"),
            }
        }
        Some(entries)
    }

    fn enter(&self, epoch: u64, batch: &Batch, result: Result<&Receipt, Outcome>) {
        self.enter_queued(epoch, batch, result, false);
    }

    fn enter_queued(
        &self,
        epoch: u64,
        batch: &Batch,
        result: Result<&Receipt, Outcome>,
        queued: bool,
    ) {
        let mut books = self.books();
        let (outcome, receipt) = match result {
            Ok(receipt) => (Outcome::Acknowledged, Some(receipt)),
            Err(outcome) => (outcome, None),
        };
        check(
            books.outcome(epoch, batch, outcome, receipt, queued),
            "an append",
        );
        drop(books);
        self.count(match outcome {
            Outcome::Acknowledged => "batches acknowledged",
            Outcome::Unknown => "batches unknown",
            Outcome::NotCommitted => "batches not committed",
        });
    }

    // ---- what a process does once it is open

    /// Appends a batch. Whoever is poisoned, overtaken, hit by a fault or short of space has an
    /// excuse to fail, and nobody else.
    pub fn append(&self, process: &mut Process, records: &[Record], expected: Option<u64>) {
        let (right, batch) = {
            let mut books = self.books();
            let last = records.first().map_or(0, |first| books.last_seq(first.0));
            (
                expected.is_none_or(|expected| expected == last),
                books.hand_over(process.epoch, false, records),
            )
        };
        let alone = process.pending.is_empty();
        let result = process
            .journal
            .append(&new_records(records), expected.map(Seq::new));
        // What was queued before has its outcome now.
        self.harvest(process);
        self.settle(process, &batch, result, (right, !alone));
        self.check_health(process);
    }

    /// Submits a batch, which waits for the next group.
    pub fn submit(&self, process: &mut Process, records: &[Record]) {
        let batch = self.books().hand_over(process.epoch, false, records);
        let owned = records.iter().map(|(session, payload)| OwnedRecord {
            session: *session,
            payload: payload.to_vec(),
        });
        self.count("batches submitted");
        let ticket = process.journal.submit(owned.collect(), None);
        process.pending.push((batch, ticket));
        self.harvest(process);
        self.check_health(process);
    }

    /// Runs a piece of what threads would do: a group of what is queued, a step of preparing the
    /// next segment, a look whether a slot is due.
    pub fn run_one(&self, process: &mut Process) {
        self.count("pieces run aside");
        let ran = process.workers.run_one();
        self.say(|| format!("epoch {} runs a piece: {ran}", process.epoch));
        self.harvest(process);
        self.check_health(process);
    }

    /// Enters the outcomes that are there.
    fn harvest(&self, process: &mut Process) {
        let mut ready = Vec::new();
        let waiting = process.pending.len();
        for (batch, mut ticket) in std::mem::take(&mut process.pending) {
            let mut context = Context::from_waker(Waker::noop());
            match Pin::new(&mut ticket).poll(&mut context) {
                Poll::Ready(result) => ready.push((batch, result)),
                Poll::Pending => process.pending.push((batch, ticket)),
            }
        }
        for (batch, result) in ready {
            let sure = match &result {
                Err(AppendError::NotCommitted(NotCommitted::Busy { .. })) => waiting < 2,
                _ => false,
            };
            self.settle(process, &batch, result, (true, !sure));
        }
    }

    /// The process is gone, and with it what it never handed to the disk.
    pub fn bury(&self, process: Process) {
        let Process {
            vfs,
            journal,
            workers,
            pending,
            epoch,
            ..
        } = process;
        if !pending.is_empty() {
            vfs.kill();
            run_out(&workers);
        }
        drop((journal, workers));
        for (batch, _) in pending {
            self.enter(epoch, &batch, Err(Outcome::NotCommitted));
        }
    }

    fn settle(
        &self,
        process: &mut Process,
        batch: &Batch,
        result: Result<Receipt, AppendError>,
        (right, queued): (bool, bool),
    ) {
        self.say(|| {
            let outcome = match &result {
                Ok(receipt) => format!("ok at {}", receipt.first),
                Err(error) => error.to_string(),
            };
            format!("epoch {}, batch {}: {outcome}", process.epoch, batch.id)
        });
        let excused = process.is_excused(self);
        match result {
            Ok(receipt) => {
                assert!(
                    !process.poisoned,
                    "VIOLATION: a poisoned journal acknowledges"
                );
                assert!(right || queued, "VIOLATION: a wrong position was accepted");
                self.enter_queued(process.epoch, batch, Ok(&receipt), queued);
                process.acknowledged = receipt.first.get() + batch.items.len() as u64 - 1;
                process.note(&receipt);
            }
            Err(AppendError::NotCommitted(reason)) => {
                self.enter(process.epoch, batch, Err(Outcome::NotCommitted));
                let fair = match &reason {
                    NotCommitted::WrongPosition { .. } => !right || queued || excused,
                    NotCommitted::StorageFull(_) => self.is_full() || excused,
                    NotCommitted::Busy { .. } => queued,
                    _ => excused,
                };
                assert!(fair, "VIOLATION: an append was refused: {reason}");
                process.poisoned |= matches!(reason, NotCommitted::Faulted(_));
            }
            Err(AppendError::Unknown(fault)) => {
                self.enter(process.epoch, batch, Err(Outcome::Unknown));
                assert!(excused, "VIOLATION: an append failed: {fault}");
                process.poisoned = true;
            }
        }
    }

    /// A fault may come from what is done aside; once it is there it stays.
    fn check_health(&self, process: &mut Process) {
        let faulted = process.journal.fault().is_some();
        assert!(
            faulted || !process.poisoned,
            "VIOLATION: a fault went away again"
        );
        assert!(
            !faulted || process.is_excused(self),
            "VIOLATION: a fault without a cause: {:?}",
            process.journal.fault()
        );
        process.poisoned = faulted;
    }

    pub fn witness(&self, process: &mut Process) {
        let result = process.journal.witness();
        self.say(|| format!("epoch {} witnesses: {result:?}", process.epoch));
        match result {
            // Between its write and its sync nobody checks the right: what an overtaken writer says
            // stands in a file that does not count.
            Ok(()) => {
                assert!(!process.poisoned, "VIOLATION: a poisoned journal witnesses");
                self.count("witnesses");
                if process.epoch == self.books().rank && self.openings() == process.number {
                    self.books().witness(process.acknowledged);
                }
            }
            Err(error) => {
                assert!(
                    process.is_excused(self),
                    "VIOLATION: a witness failed: {error}"
                );
                process.poisoned |= process.journal.fault().is_some();
            }
        }
        self.check_health(process);
    }

    /// Closes cleanly, if it can.
    pub fn close(&self, mut process: Process) {
        let was_poisoned = process.poisoned;
        let owner = process.epoch == self.books().rank;
        self.books().closing = owner;
        let result = process.journal.close();
        self.books().closing = false;
        self.harvest(&mut process);
        self.say(|| format!("epoch {} closes: {result:?}", process.epoch));
        match result {
            Ok(()) => {
                assert!(!was_poisoned, "VIOLATION: a poisoned journal closed");
                self.count("clean closes");
                if process.epoch == self.books().rank && self.openings() == process.number {
                    self.books().witness(process.acknowledged);
                }
            }
            Err(error) => assert!(
                process.is_excused(self) || process.poisoned,
                "VIOLATION: a close failed: {error}"
            ),
        }
        let after = process.journal.append(&[], None);
        assert!(after.is_err(), "VIOLATION: a closed journal takes appends");
        run_out(&process.workers);
        self.bury(process);
    }

    /// Reads all from the process's own handle: exactly what it was told, also after a fault and
    /// after it was overtaken (P8).
    pub fn read_own(&self, process: &Process, from: u64) {
        let fired = self.disk.faults_fired();
        self.count("reads by a writer");
        let mut next = from.max(1);
        for entry in process.journal.read(Lsn::new(from)) {
            match entry {
                Ok(entry) => {
                    let books = self.books();
                    let item = books.settled.get(next as usize - 1).expect("acknowledged");
                    check(matches(&entry, item), "a writer's own read");
                    assert!(entry.proven);
                    next += 1;
                }
                Err(ReadError::Disk(_))
                    if process.vfs.has_crashed() || self.disk.faults_fired() > fired =>
                {
                    return;
                }
                Err(error) => panic!("VIOLATION: epoch {}'s own read: {error}", process.epoch),
            }
        }
        assert!(
            next == process.acknowledged + 1 || from > process.acknowledged,
            "VIOLATION: a writer reads up to {} of {}",
            next - 1,
            process.acknowledged
        );
    }
}

/// The queue holds its journal: whoever runs it by hand has to run it to its end, or neither is ever
/// let go of.
fn run_out(workers: &Workers) {
    for _ in 0..100 {
        if !workers.run_one() {
            break;
        }
    }
}

pub fn check(result: Result<(), String>, what: &str) {
    if let Err(error) = result {
        panic!("VIOLATION: {what}: {error}");
    }
}

fn new_records(records: &[Record]) -> Vec<NewRecord<'_>> {
    records
        .iter()
        .map(|(session, payload)| NewRecord {
            session: *session,
            payload,
        })
        .collect()
}
