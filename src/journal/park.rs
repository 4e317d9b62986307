//! Parking: an idle journal holds one file handle, its lock, until it is used again.
//!
//! Before the files are closed, the last record gets a witness slot, synced: nothing of ours is left
//! in the page cache that a later handle would not hear of, and the slot tells the very file from an
//! older copy that was put in its place meanwhile. The right to write stays, with the lock; the proof
//! of it (W12) is renewed before anything is written.

use std::io;
use std::sync::Arc;

use super::directory::OpenFile;
use super::error::{AppendError, DiskError, FaultCause, NotCommitted};
use super::prepare::definite;
use super::segment::{CLAIM_LEN, SLOTS, Slot};
use super::writer::Writer;
use crate::vfs::{Access, File, FileId};

/// What is remembered of a file that was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parked {
    identity: FileId,
}

impl Writer {
    /// Closes all files but the lock.
    pub(crate) fn park(&mut self) -> Result<(), AppendError> {
        self.check_writable()?;
        if self.parked.is_some() {
            return Ok(());
        }
        let _owed = self.pulse.owe();
        self.witness()?;
        let identity = self.file.identity();
        let identity = identity.map_err(NotCommitted::Prepare)?;
        self.preparer.park();
        self.asked = self.preparer.has_successor();
        self.spans.unpin(|_| true);
        self.file.close();
        self.parked = Some(Parked { identity });
        Ok(())
    }

    /// Opens the files again if they are closed. Nothing is written here, so a failure is definite.
    pub(super) fn come_back(&mut self) -> Result<(), NotCommitted> {
        let Some(parked) = self.parked else {
            return Ok(());
        };
        self.check_writable()?;
        match self.open_again(parked) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let path = self.directory.path().to_owned();
                let fault = self.poison(FaultCause::Overtaken { path });
                Err(NotCommitted::Faulted(fault))
            }
            Err(error) => Err(definite(error)),
        }
    }

    /// Whether this process still has the right to write, and the file is the one that was closed.
    fn open_again(&mut self, parked: Parked) -> Result<bool, DiskError> {
        let Some(file) = self.directory.open_segment(&self.name, Access::Write)? else {
            return Ok(false);
        };
        let mut vouched = false;
        for offset in SLOTS {
            let mut claim = [0; CLAIM_LEN];
            file.read_full(&mut claim, offset)?;
            let slot = Slot::decode(&claim, &self.place, offset);
            vouched |= slot.is_some_and(|slot| {
                (slot.watermark, slot.tail, slot.epoch) == (self.last, self.position, self.epoch)
            });
        }
        if !vouched || file.identity()? != parked.identity {
            return Ok(false);
        }
        if !self.preparer.right.come_back(&self.directory)? {
            return Ok(false);
        }
        self.spans.pin(self.name, file.clone());
        self.file = file;
        self.parked = None;
        Ok(true)
    }
}

impl OpenFile {
    /// Closes the file, as far as it is held here. It keeps its path.
    pub(crate) fn close(&mut self) {
        self.file = Arc::new(Closed);
    }
}

/// Stands for a file that was closed: every call fails.
#[derive(Debug)]
struct Closed;

fn closed<T>() -> io::Result<T> {
    Err(io::ErrorKind::NotConnected.into())
}

impl File for Closed {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        closed()
    }
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        closed()
    }
    fn sync_data(&self) -> io::Result<()> {
        closed()
    }
    fn set_len(&self, _: u64) -> io::Result<()> {
        closed()
    }
    fn len(&self) -> io::Result<u64> {
        closed()
    }
    fn identity(&self) -> io::Result<FileId> {
        closed()
    }
}
