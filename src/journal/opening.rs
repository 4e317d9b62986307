//! Between recovery and the first append: the fence.

use std::borrow::Cow;
use std::sync::Arc;

use super::carried::{self, Carried};
use super::commit::Core;
use super::error::OpenError;
use super::frame::FrameKind;
use super::parts::Heads;
use super::progress::Watch;
use super::reader::Reader;
use super::record::{NewRecord, Receipt, Unstamped};
use super::recovery::Settled;
use super::report::RecoveryReport;
use super::rot::RotCell;
use super::session_log::SessionLog;
use super::spans::Spans;
use super::workers::Workers;
use super::writer::Writer;
use super::{Carry, Journal, JournalOptions, Lsn, Seq, bytes};
use crate::identity::SessionId;

/// A journal that is open for writing, before its fence: what is kept of the past is settled and
/// durable in a fresh file, and can be read. Dropping it gives the journal up.
#[derive(Debug)]
#[must_use = "the journal is open only after `begin`"]
pub struct Opening {
    pub(super) settled: Settled,
    pub(super) options: JournalOptions,
    pub(super) workers: Workers,
}

impl Opening {
    /// What was found and done.
    pub fn report(&self) -> &RecoveryReport {
        &self.settled.report
    }

    /// The last record of a session: its Seq, zero if it has none (or, in a journal that many share, if
    /// it cannot be read).
    pub fn last_seq(&self, session: SessionId) -> Seq {
        let settled = &self.settled;
        let tail = settled.tails.get(&session).copied();
        let tail = match settled.ownership.manifest.shared && tail.is_none() {
            true => SessionLog::of(
                settled.directory.clone(),
                settled.spans.clone(),
                session,
                Some(&settled.footer),
            )
            .tail()
            .ok(),
            false => tail,
        };
        tail.map_or(Seq::ZERO, |tail| tail.seq)
    }

    /// Reads what was kept, from an Lsn on.
    pub fn read(&self, from: Lsn) -> Reader {
        Reader::new(
            self.settled.directory.clone(),
            self.settled.spans.clone(),
            from,
            self.settled.report.last,
        )
        // Whoever takes over meanwhile removes the name of the fresh file.
        .pinned(vec![(self.settled.header.name, self.settled.file.clone())])
    }

    /// The records are read next, from this Lsn on: `watch` counts them.
    pub(crate) fn replay_begins(&self, from: Lsn, watch: &Watch) {
        watch.begin_replay(&self.settled.spans, from);
    }

    /// The newest carry record that is accepted, with the last Lsn that it speaks of.
    pub(crate) fn newest_carry<T>(
        &self,
        accept: impl Fn(Carried<'_>) -> Option<T>,
    ) -> Option<(Lsn, T)> {
        let (directory, spans) = (&self.settled.directory, &self.settled.spans);
        carried::newest(directory, spans, Lsn::new(u64::MAX), accept)
    }

    /// The last Lsn before the file that takes the next group: what lies above is read by every
    /// opening.
    pub(crate) fn finished(&self) -> Lsn {
        let active = self.settled.spans.last();
        active.map_or(Lsn::ZERO, |span| span.base)
    }

    /// Gives the last finished segment, which recovery closed, its carry record: the state as of
    /// [`Opening::finished`].
    pub(crate) fn supply_carry(&self, carry: Vec<u8>) {
        let finished = self.settled.spans.iter().rev().nth(1);
        if let Some(span) = finished {
            carried::supply(&self.settled.directory, span, carry);
        }
    }

    /// With workers that are shared with other journals, or run by hand. Without this the journal
    /// has threads of its own, started on first use.
    pub fn workers(self, workers: Workers) -> Opening {
        Opening { workers, ..self }
    }

    /// Writes the fence and the given records as one batch, and opens the journal when they are
    /// durable (W9).
    ///
    /// # Errors
    /// [`OpenError::Fence`] with the outcome of the append.
    pub fn begin(
        self,
        records: &[NewRecord<'_>],
        carry: Arc<dyn Carry>,
    ) -> Result<(Journal, Receipt), OpenError> {
        let directory = self.settled.directory.clone();
        // Every name that was made so far and counts is durable.
        directory.rest();
        let epoch = self.settled.report.epoch;
        let max_payload = self.settled.ownership.manifest.max_payload;
        let spans = Spans::new(
            self.settled.spans.clone(),
            self.settled.file.clone(),
            self.settled.header.capacity,
            self.settled.footer.clone(),
        );
        let writer = Writer::new(self.settled, spans.clone(), self.options.clone(), carry);
        let mut batch = Vec::with_capacity(records.len() + 1);
        let fence = Cow::Owned(fence_payload(epoch)?);
        batch.push(Unstamped::new(FrameKind::Fence, SessionId::nil(), fence));
        batch.extend(records.iter().map(Unstamped::record));
        let core = Core::new(
            writer,
            spans.clone(),
            max_payload,
            &self.options,
            self.workers,
        );
        let receipt = core
            .append(&mut batch, None, super::commit::WhenFull::Wait)
            .map_err(|error| OpenError::Fence(error).of_handles())?;
        let journal = Journal {
            core,
            directory,
            spans,
            rot: RotCell::default(),
            heads: Heads::new(ROWS),
            max_payload,
        };
        Ok((journal, receipt))
    }
}

/// Rows of footers that an open journal keeps.
const ROWS: usize = 1 << 16;

/// Bytes of a fence's payload.
pub(super) const FENCE_LEN: u32 = 32;

pub(super) fn fence_payload(epoch: u64) -> Result<Vec<u8>, OpenError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| OpenError::NoRandomness)?;
    let mut payload = Vec::with_capacity(32);
    bytes::put_u64(&mut payload, epoch);
    bytes::put_u32(&mut payload, std::process::id());
    bytes::put_u32(&mut payload, 0);
    payload.extend_from_slice(&random);
    Ok(payload)
}
