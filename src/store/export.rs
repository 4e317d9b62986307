//! Export of a session: one event a line, in the wire form (`event::to_wire`), read and written in
//! bounded memory.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};

use super::replay::{Decoder, Order};
use super::{ReplayError, Session, Store};
use crate::event::{EncodeError, to_line};
use crate::identity::SessionId;
use crate::journal::{Damage, Entry, FrameKind, OpenError, ReadError, Seq};

/// What an export wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportReport {
    /// The session.
    pub session: SessionId,
    /// The events, one line each.
    pub events: u64,
    /// Bytes of all lines.
    pub bytes: u64,
    /// The last sequence.
    pub last_seq: Seq,
    /// The events among them that are not proven to have been acknowledged: nobody has opened the
    /// session since its process was killed.
    pub unproven: u64,
    /// Optional events of a newer version, by the code of their kind: they cannot be written.
    pub passed_over: BTreeMap<u16, u64>,
}

/// Why an export ended early. What was written before is right, and not all.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The journal could not be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// A record cannot be read; nothing behind it was written, since a gap is never joined.
    #[error("the export ends behind record {after}: {source}")]
    Unreadable {
        /// The last record that was written.
        after: Seq,
        /// Why.
        source: ReplayError,
    },
    /// The log is damaged behind the last record that was written.
    #[error("the export ends behind record {after}: {damage}")]
    Damaged {
        /// The last record that was written.
        after: Seq,
        /// How.
        damage: Damage,
    },
    /// An event has no wire form.
    #[error("the record {seq} has no wire form: {source}")]
    Encode {
        /// The record.
        seq: Seq,
        /// Why.
        source: EncodeError,
    },
    /// The output took no more.
    #[error("the output could not be written: {0}")]
    Write(ErrorKind),
}

impl Session {
    /// Writes its durable events, one a line, in their order. Blocks; for async callers there is
    /// [`Session::run`].
    ///
    /// A line is the wire form of the event ([`to_wire`](crate::event::to_wire)) with `journal_seq`,
    /// its place, and `idempotency_key`, if it has one. Opaque JSON comes back byte for byte; if it
    /// has line breaks, `record` holds the record in base64.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn export(&self, out: &mut dyn Write) -> Result<ExportReport, ExportError> {
        let entries = self.core.log.read(Seq::new(1));
        let report = Lines::new(&self.core.decoder, out).all(entries)?;
        undamaged(report, self.core.log.damage())
    }
}

impl Store {
    /// The same for a session that is not open, without its lock and without its history in memory.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn export(&self, id: SessionId, out: &mut dyn Write) -> Result<ExportReport, ExportError> {
        let view = self.journal_view(id)?;
        let report = Lines::new(&self.decoder(id), out).all(self.entries_of(id, &view))?;
        let report = undamaged(report, view.damage().cloned())?;
        match report.last_seq == Seq::ZERO {
            // Created halfway, and never acknowledged: there is no session.
            true => Err(ExportError::Journal(OpenError::NotFound {
                path: self.session_dir(id),
            })),
            false => Ok(report),
        }
    }
}

/// Nothing that can be read stands behind the last line, but something did.
fn undamaged(report: ExportReport, damage: Option<Damage>) -> Result<ExportReport, ExportError> {
    match damage {
        Some(damage) => Err(ExportError::Damaged {
            after: report.last_seq,
            damage,
        }),
        None => Ok(report),
    }
}

struct Lines<'a> {
    decoder: &'a Decoder,
    out: &'a mut dyn Write,
    report: ExportReport,
}

impl<'a> Lines<'a> {
    fn new(decoder: &'a Decoder, out: &'a mut dyn Write) -> Lines<'a> {
        Lines {
            decoder,
            out,
            report: ExportReport {
                session: decoder.session,
                events: 0,
                bytes: 0,
                last_seq: Seq::ZERO,
                unproven: 0,
                passed_over: BTreeMap::new(),
            },
        }
    }

    fn all(
        mut self,
        entries: impl Iterator<Item = Result<Entry, ReadError>>,
    ) -> Result<ExportReport, ExportError> {
        let mut order = Order::from(Seq::new(1));
        for entry in entries {
            self.entry(entry, &mut order)?;
        }
        let flushed = self.out.flush();
        flushed.map_err(|error| ExportError::Write(error.kind()))?;
        Ok(self.report)
    }

    fn entry(
        &mut self,
        entry: Result<Entry, ReadError>,
        order: &mut Order,
    ) -> Result<(), ExportError> {
        let after = self.report.last_seq;
        let unreadable = |source| ExportError::Unreadable { after, source };
        let entry = entry.map_err(|error| unreadable(error.into()))?;
        if entry.kind != FrameKind::Record {
            return Ok(());
        }
        order.take(entry.seq).map_err(unreadable)?;
        let read = self.decoder.decode(&entry).map_err(unreadable)?;
        self.report.last_seq = entry.seq;
        let Some((committed, key)) = read else {
            let code = crate::event::decode_header(&entry.payload, &self.decoder.limits);
            let code = code.map_or(0, |header| header.code);
            *self.report.passed_over.entry(code).or_default() += 1;
            return Ok(());
        };
        let seq = entry.seq;
        let line = to_line(
            committed.event(),
            seq.get(),
            key.as_ref(),
            &self.decoder.limits,
        );
        let mut line = line.map_err(|source| ExportError::Encode { seq, source })?;
        line.push('\n');
        let written = self.out.write_all(line.as_bytes());
        written.map_err(|error| ExportError::Write(error.kind()))?;
        self.report.events += 1;
        self.report.bytes += line.len() as u64;
        self.report.unproven += u64::from(!entry.proven);
        Ok(())
    }
}
