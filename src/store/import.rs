//! Import of a session from lines, one event each: what an export wrote, or another engine's events.
//!
//! A session exists when its directory has its name. An import fills a directory of another name, so
//! that what is cut off is never taken for a session, and gives it the session's name at the end, by
//! one rename within one directory. A lock beside it tells who comes later whether its maker lives.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::boundary::lock;
use super::carry::LiveState;
use super::committed::Committed;
use super::purge::remove_tree;
use super::state::SessionState;
use super::{SESSIONS, Store, create_dir, list};
use crate::event::{
    Body, DecodeError, EncodeError, Event, Key, Kind, encode_record, from_line, max_line,
};
use crate::identity::{MintError, SessionId};
use crate::journal::{
    AppendError, CloseError, DiskError, Journal, NewRecord, OpenError, Operation, Owner, Placed,
};
use crate::sync::Mutex;
use crate::vfs::{Lock, Vfs};

/// The id that an imported session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImportId {
    /// The one that its lines have.
    #[default]
    Same,
    /// A fresh one, in the place of theirs everywhere: in the coordinates of the events and of their
    /// causes. Opaque JSON is not touched.
    Fresh,
    /// This one, in the same way.
    New(SessionId),
}

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportReport {
    /// The session, as it is called here.
    pub session: SessionId,
    /// Its events.
    pub events: u64,
    /// How many of them have an idempotency key. Forms of other engines have none, and then a host
    /// that repeats a commit commits it twice.
    pub keys: u64,
    /// Lines that were passed over, by the name of their kind: live kinds, and kinds of other engines.
    /// Beyond 256 names they count as `(other kinds)`.
    pub passed_over: BTreeMap<String, u64>,
    /// Whether events have other sequences than before, since lines between them were passed over.
    /// What refers to sequences (rewinds, compactions) was changed with them.
    pub renumbered: bool,
}

/// Why a session was not imported. There is nothing of it in the store then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The lines could not be read.
    #[error("line {line} could not be read: {source}")]
    Read {
        /// The line, from 1.
        line: u64,
        /// Why.
        source: std::io::Error,
    },
    /// A line is no event.
    #[error("line {line}: {source}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// Why.
        source: DecodeError,
    },
    /// A line is longer than any event.
    #[error("line {line} has more than {max} bytes; no event has")]
    LineTooLong {
        /// The line, from 1.
        line: u64,
        /// Bytes that a line may have.
        max: usize,
    },
    /// A line belongs to another session. Import each session from a file of its own.
    #[error(
        "line {line} belongs to session {found}, those before it to {expected}; give each session a file of its own"
    )]
    Foreign {
        /// The line, from 1.
        line: u64,
        /// Whose lines came before.
        expected: SessionId,
        /// Whose it is.
        found: SessionId,
    },
    /// The first event does not begin a session.
    #[error(
        "line {line}: a session begins with SessionStarted, this is {found}; give the whole session"
    )]
    NotTheBeginning {
        /// The line, from 1.
        line: u64,
        /// The kind of its event.
        found: Kind,
    },
    /// The sequence of a line is not above those before it.
    #[error("line {line} has the sequence {seq}, which is not above the ones before")]
    OutOfOrder {
        /// The line, from 1.
        line: u64,
        /// Its `journal_seq`.
        seq: u64,
    },
    /// An event refers to a sequence so far back, behind so many lines that were passed over, that
    /// its new number is not known any more.
    #[error(
        "line {line} refers to the sequence {to}, too far back among lines that were passed over; leave those out of the file"
    )]
    TooFarBack {
        /// The line, from 1.
        line: u64,
        /// The sequence.
        to: u64,
    },
    /// There is no event.
    #[error("there is no event in it")]
    Empty,
    /// The id is taken.
    #[error(
        "the session {0} exists already; import under a new id (--new-id), or delete the other one"
    )]
    AlreadyExists(SessionId),
    /// The id belonged to a session that was deleted, and is not used again.
    #[error(
        "the session {0} was deleted, and its id is not used again; import under a new id (--new-id)"
    )]
    Deleted(SessionId),
    /// An event cannot be stored.
    #[error("line {line}: {source}")]
    Encode {
        /// The line, from 1.
        line: u64,
        /// Why.
        source: EncodeError,
    },
    /// No id could be made.
    #[error(transparent)]
    Mint(#[from] MintError),
    /// The journal could not be made.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The journal took no more, up to this line.
    #[error("the events up to line {line} could not be written: {source}")]
    Append {
        /// The last line that was read.
        line: u64,
        /// Why.
        source: AppendError,
    },
    /// The journal could not be closed.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// The beginning of the names of imports in the making, among the sessions.
pub(super) const MAKING: &str = "import-";
/// The end of the name of the lock beside one.
const LOCK: &str = ".lock";

impl Store {
    /// Makes a session of lines, one event each: what [`Store::export`] wrote, or another engine's
    /// events in the same form. Ids, times, causes, coordinates, names and keys are kept; calls and
    /// results need not pair. Needs memory for a few lines only. The session is durable when this
    /// returns, and is not open.
    ///
    /// Events with one id are not looked for: they are imported as they are.
    ///
    /// # Errors
    /// [`ImportError`]; there is nothing of the session then, also after a kill.
    pub fn import(&self, from: impl BufRead, id: ImportId) -> Result<ImportReport, ImportError> {
        self.sweep_imports();
        let mut lines = Lines::new(from, max_line(&self.inner.options.limits));
        let mut importing = Importing::new(self, id);
        let mut place = None;
        let imported = importing.all(&mut lines, &mut place);
        let imported = imported.and_then(|()| importing.publish(place.as_ref()));
        if let Some(place) = place {
            place.leave(self);
        }
        imported.map(|()| importing.report)
    }

    /// Removes what imports left that were killed.
    pub(super) fn sweep_imports(&self) {
        let sessions = self.inner.dir.join(SESSIONS);
        for name in list(&self.inner.vfs, &sessions).unwrap_or_default() {
            let Some(word) = name.strip_prefix(MAKING) else {
                continue;
            };
            let place = Making::at(&sessions, word.strip_suffix(LOCK).unwrap_or(word));
            match self.inner.vfs.try_lock(&place.lock) {
                Ok(Some(held)) => {
                    tracing::debug!(path = %place.dir.display(), "an import was cut off");
                    let place = Making {
                        held: Some(held),
                        ..place
                    };
                    place.leave(self);
                }
                // Its maker lives.
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "what an import left is not removed"),
            }
        }
    }
}

/// The directory of a session in the making.
#[derive(Debug)]
struct Making {
    dir: PathBuf,
    lock: PathBuf,
    held: Option<Box<dyn Lock>>,
}

impl Making {
    fn at(sessions: &Path, word: &str) -> Making {
        Making {
            dir: sessions.join(format!("{MAKING}{word}")),
            lock: sessions.join(format!("{MAKING}{word}{LOCK}")),
            held: None,
        }
    }

    /// Takes the lock first, so that nobody takes the directory for one that was left.
    fn new(store: &Store) -> Result<Making, ImportError> {
        let vfs = &store.inner.vfs;
        let sessions = store.inner.dir.join(SESSIONS);
        create_dir(vfs, &sessions)?;
        loop {
            let word = SessionId::try_new()?.to_string();
            let place = Making::at(&sessions, &word);
            let failed = |error| DiskError::new(Operation::Lock, &place.lock, &error);
            let held = vfs.try_lock(&place.lock).map_err(failed)?;
            // Who sweeps may have had the file before us, and removed it.
            if held.is_none() || vfs.identity(&place.lock).is_err() {
                continue;
            }
            create_dir(vfs, &place.dir)?;
            return Ok(Making { held, ..place });
        }
    }

    /// Removes what is there, as far as that works: it is no session in any case.
    fn leave(self, store: &Store) {
        let vfs = &store.inner.vfs;
        if let Err(error) = remove_tree(vfs, &self.dir, None) {
            tracing::debug!(%error, "what an import left is not removed");
            return;
        }
        let _ = vfs.remove_file(&self.lock);
        drop(self.held);
    }
}

/// Lines of bounded length.
struct Lines<R> {
    from: R,
    max: usize,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(from: R, max: usize) -> Lines<R> {
        Lines {
            from,
            max,
            line: Vec::new(),
            number: 0,
        }
    }

    /// Reads the next line that is not blank; false at the end.
    fn advance(&mut self) -> Result<bool, ImportError> {
        loop {
            self.line.clear();
            self.number += 1;
            if !self.fill()? {
                return Ok(false);
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn fill(&mut self) -> Result<bool, ImportError> {
        let mut any = false;
        loop {
            let read = match self.from.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.map_err(|source| ImportError::Read {
                    line: self.number,
                    source,
                })?,
            };
            if read.is_empty() {
                return Ok(any);
            }
            any = true;
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = read.get(..end.unwrap_or(read.len())).unwrap_or_default();
            let used = part.len() + usize::from(end.is_some());
            if self.line.len() + part.len() > self.max {
                return Err(ImportError::LineTooLong {
                    line: self.number,
                    max: self.max,
                });
            }
            self.line.extend_from_slice(part);
            self.from.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

/// The new numbers of sequences, where lines were passed over.
#[derive(Debug, Default)]
struct Numbers {
    /// The last old sequence.
    old: u64,
    /// The last new one.
    new: u64,
    /// From an old sequence on, how much lower the new ones are.
    steps: VecDeque<(u64, u64)>,
    /// Old sequences below this are not known any more.
    known_from: u64,
}

/// How many steps are remembered.
const STEPS: usize = 65_536;

impl Numbers {
    /// Takes a line in, with the sequence that it says it had, if it does. `None`: not in order.
    fn line(&mut self, seq: Option<u64>) -> Option<()> {
        let old = match seq {
            Some(seq) if seq <= self.old => return None,
            Some(seq) => seq,
            None => self.old.checked_add(1)?,
        };
        self.old = old;
        Some(())
    }

    /// The line is an event that is kept.
    fn keep(&mut self) {
        self.new += 1;
        let lower = self.old.saturating_sub(self.new);
        if self.steps.back().map_or(0, |(_, lower)| *lower) != lower {
            self.steps.push_back((self.old, lower));
            if self.steps.len() > STEPS {
                self.steps.pop_front();
                self.known_from = self.steps.front().map_or(0, |(from, _)| *from);
            }
        }
    }

    /// How many kept events have an old sequence up to this one; `None` if that is not known.
    fn up_to(&self, old: u64) -> Option<u64> {
        if old >= self.old {
            // What lies ahead has no number yet; it stays as far ahead as it was.
            return Some(self.new.saturating_add(1).saturating_add(old - self.old));
        }
        if old < self.known_from {
            return None;
        }
        let after = self.steps.partition_point(|(from, _)| *from <= old);
        let lower = |index: usize| self.steps.get(index).map_or(0, |(_, lower)| *lower);
        let below = match after.checked_sub(1) {
            Some(index) => old - lower(index),
            None => old,
        };
        let below = below.min(self.new);
        // In a run of lines that were passed over: the last event before it counts.
        let next = self.steps.get(after).map(|(from, lower)| from - lower - 1);
        Some(next.map_or(below, |most| below.min(most)))
    }
}

/// Names of kinds that are counted apart.
const NAMES: usize = 256;
/// Longest name that is counted apart, in bytes.
const NAME: usize = 128;

/// Records of one batch at most.
const BATCH_RECORDS: usize = 256;
/// Bytes after which a batch is written.
const BATCH_BYTES: usize = 512 * 1024;

struct Importing<'a> {
    store: &'a Store,
    wanted: ImportId,
    report: ImportReport,
    /// Whose lines they are.
    source: Option<SessionId>,
    numbers: Numbers,
    state: Arc<Mutex<SessionState>>,
    journal: Option<Journal>,
    batch: Vec<(Event, Vec<u8>)>,
    bytes: usize,
}

impl<'a> Importing<'a> {
    fn new(store: &'a Store, wanted: ImportId) -> Importing<'a> {
        Importing {
            store,
            wanted,
            report: ImportReport {
                session: SessionId::nil(),
                events: 0,
                keys: 0,
                passed_over: BTreeMap::new(),
                renumbered: false,
            },
            source: None,
            numbers: Numbers::default(),
            state: Arc::new(Mutex::new(SessionState::lean())),
            journal: None,
            batch: Vec::new(),
            bytes: 0,
        }
    }

    fn all(
        &mut self,
        lines: &mut Lines<impl BufRead>,
        place: &mut Option<Making>,
    ) -> Result<(), ImportError> {
        let limits = self.store.inner.options.limits;
        while lines.advance()? {
            let number = lines.number;
            let refused = |source| ImportError::Line {
                line: number,
                source,
            };
            let line = match from_line(&lines.line, &limits) {
                Ok(line) => line,
                // A tag that is there; without one the line is no event.
                Err(DecodeError::UnknownEventType { name }) if !name.is_empty() => {
                    self.numbers.line(None);
                    self.pass_over(name);
                    continue;
                }
                Err(error) => return Err(refused(error)),
            };
            self.numbers.line(line.seq).ok_or(ImportError::OutOfOrder {
                line: number,
                seq: line.seq.unwrap_or(u64::MAX),
            })?;
            if !line.event.kind().class().is_enduring() {
                self.pass_over(line.event.kind().name().to_owned());
                continue;
            }
            self.event(line.event, line.key, number)?;
            if self.batch.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES {
                self.write(number, place)?;
            }
        }
        if self.source.is_none() {
            return Err(ImportError::Empty);
        }
        self.write(lines.number, place)
    }

    fn pass_over(&mut self, name: String) {
        let counted = &mut self.report.passed_over;
        let apart = name.len() <= NAME && (counted.len() < NAMES || counted.contains_key(&name));
        let name = if apart {
            name
        } else {
            "(other kinds)".to_owned()
        };
        *counted.entry(name).or_default() += 1;
    }

    fn event(&mut self, mut event: Event, key: Option<Key>, line: u64) -> Result<(), ImportError> {
        let found = event.header.coordinates.session;
        match self.source {
            None => self.begin(&event, line)?,
            Some(expected) if expected != found => {
                return Err(ImportError::Foreign {
                    line,
                    expected,
                    found,
                });
            }
            Some(_) => {}
        }
        let session = self.report.session;
        event.header.coordinates.session = session;
        let cause = &mut event.header.cause.coordinates.session;
        if *cause == found {
            *cause = session;
        }
        self.renumber(&mut event.body, line)?;
        self.numbers.keep();
        self.report.renumbered |= self.numbers.old != self.numbers.new;
        let limits = &self.store.inner.options.limits;
        let payload = encode_record(&event, key.as_ref(), limits);
        let payload = payload.map_err(|source| ImportError::Encode { line, source })?;
        self.report.events += 1;
        self.report.keys += u64::from(key.is_some());
        self.bytes += payload.len();
        self.batch.push((event, payload));
        Ok(())
    }

    /// The first event: it says which session it is, and whether its id is free.
    fn begin(&mut self, event: &Event, line: u64) -> Result<(), ImportError> {
        if event.kind() != Kind::SessionStarted {
            return Err(ImportError::NotTheBeginning {
                line,
                found: event.kind(),
            });
        }
        let found = event.header.coordinates.session;
        self.source = Some(found);
        self.report.session = match self.wanted {
            ImportId::Same => found,
            ImportId::New(id) => id,
            ImportId::Fresh => SessionId::try_new()?,
        };
        self.require_free()
    }

    fn require_free(&self) -> Result<(), ImportError> {
        let id = self.report.session;
        if self.store.is_deleted(id)? {
            return Err(ImportError::Deleted(id));
        }
        match self.store.exists(id) {
            true => Err(ImportError::AlreadyExists(id)),
            false => Ok(()),
        }
    }

    /// What refers to sequences follows them.
    fn renumber(&self, body: &mut Body, line: u64) -> Result<(), ImportError> {
        let up_to = |to: u64| {
            let known = self.numbers.up_to(to);
            known.ok_or(ImportError::TooFarBack { line, to })
        };
        match body {
            Body::Rewound(rewound) => rewound.to = up_to(rewound.to)?,
            // The first one that stays; 0: none does.
            Body::ContextCompacted(compacted) => {
                if let Some(before) = compacted.keep_from.checked_sub(1) {
                    compacted.keep_from = up_to(before)?.saturating_add(1);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes the batch; the first one makes the journal.
    fn write(&mut self, line: u64, place: &mut Option<Making>) -> Result<(), ImportError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let session = self.report.session;
        let payloads = self
            .batch
            .iter()
            .map(|(_, payload)| NewRecord { session, payload });
        let records: Vec<NewRecord<'_>> = payloads.collect();
        let receipt = match &self.journal {
            Some(journal) => journal
                .append(&records, None)
                .map_err(|source| ImportError::Append { line, source })?,
            None => {
                let place = place.insert(Making::new(self.store)?);
                let carry = Arc::new(LiveState(self.state.clone()));
                let options = &self.store.inner.options;
                let opening = Journal::create(
                    self.store.inner.vfs.clone(),
                    &place.dir,
                    Owner::Session(session),
                    options.journal.clone(),
                )?;
                let opening = opening.workers(options.workers.clone());
                let (journal, receipt) = opening.begin(&records, carry)?;
                self.journal = Some(journal);
                receipt
            }
        };
        let mut state = lock(&self.state);
        let placed: Vec<Placed> = receipt.records.iter().copied().collect();
        for ((event, payload), placed) in self.batch.drain(..).zip(placed) {
            let committed = Committed::live(event, placed.seq, placed.lsn, payload.len());
            state.apply(&committed, None, None);
        }
        self.bytes = 0;
        Ok(())
    }

    /// Closes the journal and gives it its name.
    fn publish(&mut self, place: Option<&Making>) -> Result<(), ImportError> {
        let (Some(journal), Some(place)) = (self.journal.take(), place) else {
            return Err(ImportError::Empty);
        };
        journal.close()?;
        drop(journal);
        let vfs: &Arc<dyn Vfs> = &self.store.inner.vfs;
        let sessions = self.store.inner.dir.join(SESSIONS);
        let id = self.report.session;
        let name = self.store.session_dir(id);
        self.require_free()?;
        self.store.clear_half_created(id)?;
        let handle = vfs.open_dir(&sessions);
        let handle = handle.map_err(|error| DiskError::new(Operation::Open, &sessions, &error))?;
        match vfs.rename(&place.dir, &name) {
            // Somebody has created it meanwhile.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                return Err(ImportError::AlreadyExists(id));
            }
            renamed => {
                renamed.map_err(|error| DiskError::new(Operation::Rename, &name, &error))?;
            }
        }
        if let Err(error) = handle.sync() {
            // It is taken back, so that what was not said to be there is not.
            let _ = vfs.rename(&name, &place.dir);
            return Err(DiskError::new(Operation::SyncDirectory, &sessions, &error).into());
        }
        // Deleted in between: the name is hidden, and what is under it will be removed.
        match self.store.is_deleted(id)? {
            true => Err(ImportError::Deleted(id)),
            false => Ok(()),
        }
    }
}
