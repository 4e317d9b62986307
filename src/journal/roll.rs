//! The writer between segments: moving to the next one, sealing the one before it, closing.

use std::time::{Duration, Instant};

use super::Lsn;
use super::error::{CloseError, FaultCause, NotCommitted};
use super::footer::Footer;
use super::manifest::End;
use super::segment::{BLOCK, FRAMES, SEAL, Seal};
use super::spans::Span;
use super::writer::Writer;
use crate::contain::{Panicked, contained};

/// A segment that was filled in less than this has the next but one asked for at once.
const HURRY: Duration = Duration::from_secs(1);

impl Writer {
    /// Makes the next segment the active one (W7): successor listed, seal written and synced, first
    /// frame into it. A full disk shows here, before a byte of a record is written (W4).
    pub(super) fn roll(&mut self, needed: u64) -> Result<(), NotCommitted> {
        let successor = self.preparer.take(self.successor(needed))?;
        let trim = self
            .seal()
            .map_err(|cause| NotCommitted::Faulted(self.poison(cause)))?;
        // Its end stands in the seal now; the next manifest names it too.
        let end = End {
            offset: self.position,
            last: self.last,
        };
        let sealed = std::mem::replace(&mut self.file, successor.file);
        self.preparer.sealed(self.name, end, sealed, trim);
        self.name = successor.header.name;
        self.place = successor.entry.place();
        self.capacity = successor.header.capacity;
        self.position = FRAMES;
        self.count = 0;
        self.slot = 0;
        self.vouched = Lsn::ZERO;
        self.asked = false;
        self.hurried = self.begun.elapsed() < HURRY;
        self.begun = Instant::now();
        let span = Span::empty(successor.entry, self.last);
        self.spans
            .push(span, self.file.clone(), self.capacity, self.shared);
        Ok(())
    }

    /// Footer and seal of the active segment, synced. The footer can be rebuilt, so on a full disk
    /// the segment is sealed without one. Gives the length to which the file can be cut later.
    fn seal(&mut self) -> Result<Option<u64>, FaultCause> {
        let mut footer = self.spans.footer().unwrap_or(Footer::new(self.last));
        match &mut footer.parts {
            Some(parts) => {
                for (session, part) in parts {
                    part.state = said(|| self.carry.state_of(*session));
                }
            }
            None => footer.carry = said(|| self.carry.carry(self.last)),
        }
        let bytes = footer.encode(&self.place);
        let offset = self.position.next_multiple_of(BLOCK);
        let written = match self.file.write_all(&bytes, offset) {
            Ok(()) => Some((offset, bytes.len() as u32)),
            Err(error) if error.is_full() => None,
            Err(error) => return Err(FaultCause::Write(error)),
        };
        let seal = Seal {
            end: self.position,
            last: self.last,
            count: self.count,
            footer: written,
            epoch: self.epoch,
        };
        self.file
            .write_all(&seal.encode(&self.place), SEAL)
            .map_err(FaultCause::Write)?;
        self.file.sync().map_err(FaultCause::Sync)?;
        let end = written.map_or(self.position, |(offset, length)| offset + u64::from(length));
        Ok((end < FRAMES + self.capacity).then_some(end))
    }

    /// A clean close: both slots, sync, file cut to its tail, sync (W8). After a fault nothing is
    /// written (W10).
    pub(crate) fn close(&mut self) -> Result<(), CloseError> {
        if let Some(fault) = self.fault.get() {
            let fault = fault.clone();
            self.lock = None;
            return Err(CloseError::Faulted(fault));
        }
        if self.lock.is_none() {
            return Ok(());
        }
        let _owed = self.pulse.owe();
        let outcome = match self.come_back() {
            Ok(()) => self.close_cleanly(),
            Err(NotCommitted::Faulted(fault)) => Err(CloseError::Faulted(fault)),
            // The slot of the park vouches for the last record already.
            Err(reason) => {
                tracing::warn!(%reason, "a parked journal was closed without a clean mark");
                self.preparer.stop();
                Ok(())
            }
        };
        self.lock = None;
        outcome
    }

    fn close_cleanly(&mut self) -> Result<(), CloseError> {
        // An active segment above the limit is rolled, so that the next opening has little to copy
        // (W9), and one whose successor is there, so that no unused space stays behind. Without
        // space for that it is left as it is: the next opening closes it.
        let large = self.position - FRAMES > self.options.supersede_limit;
        if large || self.preparer.has_successor() {
            match self.roll(0) {
                Err(NotCommitted::Faulted(fault)) => return Err(CloseError::Faulted(fault)),
                Err(reason) => tracing::debug!(%reason, "closing without a roll"),
                Ok(()) => {}
            }
        }
        self.preparer.stop();
        let written = self.write_clean_slots().and_then(|()| {
            self.file.set_len(self.position)?;
            self.file.sync()
        });
        written.map_err(|error| {
            self.poison(FaultCause::Sync(error.clone()));
            CloseError::Disk(error)
        })
    }
}

/// A state of the layer above. A layer that panics says nothing; an opening reads more then.
fn said(state: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    contained(state).unwrap_or_else(|Panicked(detail)| {
        tracing::error!(detail, "the carry record of a segment panicked");
        Vec::new()
    })
}
