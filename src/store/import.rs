//! Import of a session from lines, one event each: what an export wrote, or another engine's events.

mod error;
mod lines;
mod numbers;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::Arc;

use super::blobs::{BlobName, Blobs};
use super::boundary::lock;
use super::carry::LiveState;
use super::committed::Committed;
use super::making::{Maker, Making};
use super::state::SessionState;
use super::{Layout, Store};
use crate::event::{
    Body, DecodeError, Event, Key, Kind, body_in, encode_record, from_line, max_line, refer_outside,
};
use crate::identity::SessionId;
use crate::journal::{Journal, NewRecord, Owner, Placed, Seq};
use crate::sync::Mutex;
pub use error::ImportError;
use lines::Lines;
use numbers::Numbers;

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
        if self.inner.layout == Layout::Shared {
            return Err(ImportError::Layout(Layout::Shared));
        }
        self.sweep_making();
        let mut lines = Lines::new(from, max_line(&self.inner.options.limits));
        let mut importing = Importing::new(self, id);
        let mut place = None;
        let imported = importing.all(&mut lines, &mut place);
        let imported = imported.and_then(|()| importing.publish(place.as_ref()));
        if let Some(place) = place {
            place.leave(self);
        }
        imported.map(|()| {
            self.inner.catalog.mark(importing.report.session);
            importing.report
        })
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
    /// Where large bodies go.
    blobs: Option<Blobs>,
    batch: Vec<Imported>,
    bytes: usize,
}

/// An event with its key and its record, of so many bytes in all.
struct Imported {
    event: Event,
    key: Option<Key>,
    payload: Vec<u8>,
    length: usize,
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
            state: Arc::new(Mutex::new(SessionState::new(&store.inner.options))),
            journal: None,
            blobs: None,
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
        self.batch.push(Imported {
            event,
            key,
            length: payload.len(),
            payload,
        });
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
        Ok(self.store.require_free(self.report.session)?)
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
        let place = match place {
            Some(place) => place,
            None => place.insert(Making::new(self.store, Maker::Import)?),
        };
        self.write_bodies(place)?;
        let payloads = self.batch.iter().map(|imported| NewRecord {
            session,
            payload: &imported.payload,
        });
        let records: Vec<NewRecord<'_>> = payloads.collect();
        let receipt = match &self.journal {
            Some(journal) => journal
                .append(&records, None)
                .map_err(|source| ImportError::Append { line, source })?,
            None => {
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
        for (imported, placed) in self.batch.drain(..).zip(placed) {
            let Imported {
                event, key, length, ..
            } = imported;
            let committed = Committed::live(event, placed.seq, placed.lsn, length);
            state.apply(&committed, key.as_ref(), Some(placed.position));
        }
        self.bytes = 0;
        Ok(())
    }

    /// Writes the large bodies of the batch, under the names of the records that they will have: nobody
    /// else appends here.
    fn write_bodies(&mut self, place: &Making) -> Result<(), ImportError> {
        let threshold = self.store.inner.options.blob_threshold;
        let last = lock(&self.state).last;
        let is_large = |imported: &Imported| {
            imported.event.kind().may_stand_outside()
                && body_in(&imported.payload).len() >= threshold
        };
        let numbered = self.batch.iter().zip(last.get() + 1..);
        let files: Vec<(BlobName, &[u8])> = numbered
            .filter(|(imported, _)| is_large(imported))
            .map(|(imported, seq)| {
                let name = BlobName::of(Seq::new(seq), imported.event.header.event_id);
                (name, body_in(&imported.payload))
            })
            .collect();
        if files.is_empty() {
            return Ok(());
        }
        let blobs = self
            .blobs
            .get_or_insert_with(|| Blobs::of(&self.store.inner.vfs, &place.dir));
        blobs.write(&files)?;
        for imported in self.batch.iter_mut().filter(|imported| is_large(imported)) {
            refer_outside(&mut imported.payload);
        }
        Ok(())
    }

    /// Closes the journal and gives it its name.
    fn publish(&mut self, place: Option<&Making>) -> Result<(), ImportError> {
        let (Some(journal), Some(place)) = (self.journal.take(), place) else {
            return Err(ImportError::Empty);
        };
        journal.close()?;
        drop(journal);
        Ok(place.publish(self.store, self.report.session)?)
    }
}
