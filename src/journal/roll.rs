//! The writer between segments: preparing the next one, sealing the one before it, closing.

use super::create::{self, MakeError};
use super::directory::{OpenFile, Ownership, PublishError};
use super::error::{AppendError, CloseError, DiskError, FaultCause, NotCommitted};
use super::footer::Footer;
use super::manifest::{End, Manifest, SegmentEntry};
use super::names::SegmentName;
use super::segment::{BLOCK, FRAMES, SEAL, SLOTS, Seal, Slot, StaticHeader};
use super::spans::Span;
use super::writer::Writer;
use crate::identity::SessionId;

impl Writer {
    /// Makes the next segment the active one (W7): successor listed, seal written and synced, first
    /// frame into it.
    pub(super) fn roll(&mut self, needed: u64) -> Result<(), NotCommitted> {
        let (entry, header, file) = match self.successor.take() {
            Some(successor) => successor,
            None => self.prepare(needed)?,
        };
        self.seal()
            .map_err(|cause| NotCommitted::Faulted(self.poison(cause)))?;
        let sealed_end = self.position;
        self.file = file;
        self.name = header.name;
        self.place = entry.place();
        self.capacity = header.capacity;
        self.position = FRAMES;
        self.count = 0;
        self.footer = Footer::new(self.last);
        // Its end stands in the seal now; the next manifest names it too.
        if let Some(sealed) = self
            .ownership
            .manifest
            .segments
            .iter_mut()
            .rev()
            .find(|sealed| sealed.name != entry.name && sealed.end.is_none())
        {
            sealed.end = Some(End {
                offset: sealed_end,
                last: self.last,
            });
        }
        self.spans
            .push(Span::empty(entry, self.last), self.file.clone());
        Ok(())
    }

    /// Makes the next segment as a file of its own, zeroed and synced, and lists it (W4, W6). A full
    /// disk shows here, before a byte of a record is written.
    fn prepare(
        &mut self,
        needed: u64,
    ) -> Result<(SegmentEntry, StaticHeader, OpenFile), NotCommitted> {
        let header = StaticHeader {
            log: self.ownership.manifest.log,
            name: SegmentName {
                number: self.name.number.saturating_add(1),
                generation: 0,
                epoch: self.ownership.manifest.epoch,
            },
            capacity: self.options.capacity_after(self.capacity, needed),
        };
        let definite = |error: DiskError| {
            if error.is_full() {
                NotCommitted::StorageFull(error)
            } else {
                NotCommitted::Prepare(error)
            }
        };
        let path = self.directory.file_path(&header.name.to_string());
        let file = match create::empty_segment(&self.directory, &header) {
            Ok(file) => file,
            Err(MakeError::Sync(error)) => {
                return Err(NotCommitted::Faulted(self.poison(FaultCause::Sync(error))));
            }
            Err(other) => return Err(definite(other.disk(&path))),
        };
        let entry = SegmentEntry {
            name: header.name,
            end: None,
            log: header.log,
            session: SessionId::nil(),
        };
        let mut manifest = Manifest {
            number: self.ownership.manifest.number.saturating_add(1),
            ..self.ownership.manifest.clone()
        };
        manifest.segments.push(entry);
        let random = super::recovery::random_word().unwrap_or(self.ownership.manifest.number);
        match Ownership::publish(&self.directory, manifest, random) {
            Ok(ownership) => self.ownership = ownership,
            Err(PublishError::Disk(error)) => {
                // Not listed, so it is nothing; made again under the same name by the next try.
                let _ = self.directory.remove(&header.name.to_string());
                return Err(definite(error));
            }
            Err(PublishError::Sync(error)) => {
                let cause = FaultCause::Directory(error);
                return Err(NotCommitted::Faulted(self.poison(cause)));
            }
            Err(PublishError::Overtaken) => {
                let cause = FaultCause::Overtaken {
                    path: self.directory.path().to_owned(),
                };
                return Err(NotCommitted::Faulted(self.poison(cause)));
            }
        }
        if let Err(error) = self.ownership.remove_older(&self.directory) {
            tracing::warn!(%error, "an older manifest could not be removed; the next opening does it");
        }
        Ok((entry, header, file))
    }

    /// Footer and seal of the active segment, synced. The footer can be rebuilt, so on a full disk
    /// the segment is sealed without one.
    fn seal(&mut self) -> Result<(), FaultCause> {
        self.footer.carry = self.carry.carry(self.last);
        let bytes = self.footer.encode(&self.place);
        let offset = self.position.next_multiple_of(BLOCK);
        let footer = match self.file.write_all(&bytes, offset) {
            Ok(()) => Some((offset, bytes.len() as u32)),
            Err(error) if error.is_full() => None,
            Err(error) => return Err(FaultCause::Write(error)),
        };
        let seal = Seal {
            end: self.position,
            last: self.last,
            count: self.count,
            footer,
            epoch: self.ownership.manifest.epoch,
        };
        self.file
            .write_all(&seal.encode(&self.place), SEAL)
            .map_err(FaultCause::Write)?;
        self.file.sync().map_err(FaultCause::Sync)?;
        // The trim needs no order and no sync: behind the footer there are only zeros.
        let end = footer.map_or(self.position, |(offset, length)| offset + u64::from(length));
        if end < FRAMES + self.capacity
            && let Err(error) = self.file.set_len(end)
        {
            tracing::debug!(%error, "a sealed segment could not be trimmed");
        }
        Ok(())
    }

    /// A clean close: both slots, sync, file cut to its tail, sync (W8). After a fault nothing is
    /// written (W10).
    pub(crate) fn close(&mut self) -> Result<(), CloseError> {
        if let Some(fault) = &self.fault {
            let fault = fault.clone();
            self.lock = None;
            return Err(CloseError::Faulted(fault));
        }
        if self.lock.is_none() {
            return Ok(());
        }
        let outcome = self.close_cleanly();
        self.lock = None;
        outcome
    }

    fn close_cleanly(&mut self) -> Result<(), CloseError> {
        // An active segment above the limit is rolled, so that the next opening has little to copy
        // (W9). Without space for that it is left as it is: the next opening closes it.
        if self.position - FRAMES > self.options.supersede_limit {
            match self.roll(0) {
                Err(NotCommitted::Faulted(fault)) => return Err(CloseError::Faulted(fault)),
                Err(reason) => tracing::debug!(%reason, "closing without a roll"),
                Ok(()) => {}
            }
        }
        let written = self.write_slots(true).and_then(|()| {
            self.file.set_len(self.position)?;
            self.file.sync()
        });
        written.map_err(|error| {
            self.poison(FaultCause::Sync(error.clone()));
            CloseError::Disk(error)
        })
    }

    /// Both slots, synced.
    fn write_slots(&self, clean: bool) -> Result<(), DiskError> {
        let slot = Slot {
            watermark: self.last,
            tail: self.position,
            epoch: self.ownership.manifest.epoch,
            clean,
        };
        for offset in SLOTS {
            self.file
                .write_all(&slot.encode(&self.place, offset), offset)?;
        }
        self.file.sync()
    }

    /// Writes the witness slots of an idle journal, so that the last group is vouched for outside
    /// its block (W8).
    pub(crate) fn witness(&mut self) -> Result<(), AppendError> {
        if let Some(fault) = &self.fault {
            return Err(NotCommitted::Faulted(fault.clone()).into());
        }
        if self.lock.is_none() {
            return Err(NotCommitted::Closed.into());
        }
        self.write_slots(false)
            .map_err(|error| AppendError::Unknown(self.poison(FaultCause::Sync(error))))
    }
}
