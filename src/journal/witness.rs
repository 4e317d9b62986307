//! Witness slots (W8): "durable up to here", outside the block of the frames that they vouch for.

use std::sync::PoisonError;
use std::time::Duration;

use super::Lsn;
use super::error::{AppendError, DiskError, FaultCause, NotCommitted};
use super::segment::{SLOTS, Slot};
use super::writer::Writer;
use crate::sync::Mutex;

/// Without a group for so long, the last one gets a slot, which is not synced: followers see it.
pub(crate) const QUIET: Duration = Duration::from_millis(20);
/// Without a group for so long, the slot is synced.
pub(crate) const IDLE: Duration = Duration::from_secs(1);

/// How long the journal has been idle, as far as its witness is concerned.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Quiet {
    /// Nobody looks: nothing was appended since the last slot was synced.
    #[default]
    Idle,
    /// At the last look this was the last record.
    Watching(Lsn),
    /// The slot of this record was written and not synced.
    Written(Lsn),
}

/// When a slot is due.
#[derive(Debug, Default)]
pub(crate) struct Witness(Mutex<Quiet>);

impl Witness {
    /// A group was written: whether somebody has to begin to look.
    pub(crate) fn begin(&self, last: Lsn) -> bool {
        let mut quiet = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = *quiet == Quiet::Idle;
        if begins {
            *quiet = Quiet::Watching(last);
        }
        begins
    }

    /// A look. `token` gives the writer, and is asked only if there is something to write.
    pub(crate) fn look<W>(&self, last: Lsn, token: impl FnOnce() -> W) -> Option<Duration>
    where
        W: std::ops::DerefMut<Target = Writer>,
    {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, again) = match seen {
            Quiet::Idle => (Quiet::Idle, None),
            Quiet::Watching(at) | Quiet::Written(at) if at != last => {
                (Quiet::Watching(last), Some(QUIET))
            }
            Quiet::Watching(at) => {
                let mut writer = token();
                if writer.parked.is_some() {
                    return None;
                }
                match writer.last == at && writer.write_slot(false).is_ok() {
                    true => (Quiet::Written(at), Some(IDLE)),
                    // Faulted, closed, or there is a new group.
                    false => (
                        Quiet::Watching(writer.last),
                        writer.writable().then_some(QUIET),
                    ),
                }
            }
            Quiet::Written(at) => {
                let mut writer = token();
                if writer.parked.is_some() {
                    return None;
                }
                match writer.last == at && writer.sync_slot().is_ok() {
                    // The token is held, so no group comes in between.
                    true => {
                        self.set(Quiet::Idle);
                        return None;
                    }
                    false => (
                        Quiet::Watching(writer.last),
                        writer.writable().then_some(QUIET),
                    ),
                }
            }
        };
        self.set(next);
        again
    }

    /// The slot of the last record was synced.
    pub(super) fn rest(&self) {
        self.set(Quiet::Idle);
    }

    fn set(&self, next: Quiet) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

impl Writer {
    /// Whether there is neither a fault nor a close.
    fn writable(&self) -> bool {
        self.fault.get().is_none() && self.lock.is_some()
    }

    fn slot(&self, clean: bool) -> Slot {
        Slot {
            watermark: self.last,
            tail: self.position,
            epoch: self.epoch,
            clean,
        }
    }

    /// Writes the slot that does not hold the last claim.
    fn write_slot(&mut self, clean: bool) -> Result<(), AppendError> {
        self.check_writable()?;
        let _owed = self.pulse.owe();
        let offset = SLOTS
            .get(self.slot % SLOTS.len())
            .copied()
            .unwrap_or(SLOTS[0]);
        self.slot += 1;
        let bytes = self.slot(clean).encode(&self.place, offset);
        self.file
            .write_all(&bytes, offset)
            .map_err(|error| AppendError::Unknown(self.poison(FaultCause::Write(error))))
    }

    fn sync_slot(&mut self) -> Result<(), AppendError> {
        self.check_writable()?;
        let _owed = self.pulse.owe();
        self.file
            .sync()
            .map_err(|error| AppendError::Unknown(self.poison(FaultCause::Sync(error))))?;
        // After a roll the file has no slot yet.
        if self.slot > 0 {
            self.vouched = self.last;
        }
        Ok(())
    }

    pub(super) fn check_writable(&self) -> Result<(), NotCommitted> {
        if let Some(fault) = self.fault.get() {
            return Err(NotCommitted::Faulted(fault.clone()));
        }
        match self.lock {
            Some(_) => Ok(()),
            None => Err(NotCommitted::Closed),
        }
    }

    /// Vouches for the last group now: a slot, synced.
    pub(crate) fn witness(&mut self) -> Result<(), AppendError> {
        if self.vouched == self.last {
            return Ok(self.check_writable()?);
        }
        self.write_slot(false)?;
        self.sync_slot()
    }

    /// Both slots with the clean flag, synced.
    pub(super) fn write_clean_slots(&mut self) -> Result<(), DiskError> {
        for offset in SLOTS {
            let bytes = self.slot(true).encode(&self.place, offset);
            self.file.write_all(&bytes, offset)?;
        }
        self.file.sync()
    }
}
