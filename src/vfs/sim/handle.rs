//! What the simulated disk hands out: open files, open directories and locks.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::Shared;
use super::disk::Disk;
use super::fault::{FaultKind, crashed, ebadf, eio, enospc};
use super::trace::Op;
use crate::vfs::{Dir, File, FileId, Lock};

/// The highest length of a file, as the system's signed offsets have it.
const LENGTH_LIMIT: u64 = i64::MAX as u64;
/// All simulated disks count as one device.
pub(super) const DEVICE: u64 = 1;

/// One open handle; it ends when it is dropped or its process dies.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) process: u64,
    pub(super) id: u64,
    pub(super) path: Arc<Path>,
}

impl Handle {
    fn call<T>(
        &self,
        op: Op,
        run: impl FnOnce(&mut Disk, u64, Option<FaultKind>) -> io::Result<T>,
        moved: impl Fn(&T) -> u64,
    ) -> io::Result<T> {
        let on_node = |disk: &mut Disk, fault| {
            let node = disk.handles.get(&self.id).ok_or_else(crashed)?.node;
            run(disk, node, fault)
        };
        self.shared.call(self.process, op, on_node, moved)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.lock().close(self.id);
    }
}

#[derive(Debug)]
pub(super) struct SimFile {
    pub(super) handle: Handle,
    pub(super) writable: bool,
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let op = Op::Read {
            path: self.handle.path.clone(),
            offset,
            length: buffer.len(),
        };
        let run = |disk: &mut Disk, node, fault| {
            let most = match fault {
                // Nothing would mean the end of the file: no disk says that in the middle of one.
                Some(FaultKind::ShortRead(most)) => most.max(1),
                _ => usize::MAX,
            };
            let wanted = buffer.len().min(most);
            let file = disk.file(node)?;
            Ok(buffer
                .get_mut(..wanted)
                .map_or(0, |buffer| file.cache.read_at(buffer, offset)))
        };
        self.handle.call(op, run, |count| *count as u64)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let op = Op::Write {
            path: self.handle.path.clone(),
            offset,
            length: bytes.len(),
        };
        let run = |disk: &mut Disk, node, fault| {
            let most = match fault {
                Some(FaultKind::ShortWrite(most) | FaultKind::FailedWrite(most)) => most,
                Some(FaultKind::Crash(most)) => most,
                _ => usize::MAX,
            };
            if !self.writable {
                return Err(ebadf());
            }
            let wanted = bytes.get(..most).unwrap_or(bytes);
            let taken = room(disk, node, wanted, offset)?;
            disk.file_mut(node)?.write(offset, taken);
            match fault {
                Some(FaultKind::FailedWrite(_)) => return Err(eio()),
                Some(FaultKind::WriteBack(loss)) => {
                    let handles = disk.handles_of(node).into_iter();
                    disk.file_mut(node)?
                        .fail_write_back(&self.handle.path, loss, handles);
                }
                _ => {}
            }
            Ok(taken.len())
        };
        self.handle.call(op, run, |count| *count as u64)
    }

    fn sync_data(&self) -> io::Result<()> {
        let op = Op::SyncData {
            path: self.handle.path.clone(),
        };
        let run = |disk: &mut Disk, node, fault| {
            // Only a failing write-back asks for the other handles: looking for them costs time.
            let others = match fault {
                Some(FaultKind::WriteBack(_)) => disk.handles_of(node),
                _ => Vec::new(),
            };
            let file = disk.file_mut(node)?;
            file.sync(self.handle.id, &self.handle.path, fault, others.into_iter())
        };
        self.handle.call(op, run, |()| 0)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let op = Op::SetLen {
            path: self.handle.path.clone(),
            length,
        };
        let run = |disk: &mut Disk, node, _| {
            if !self.writable {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            if length > LENGTH_LIMIT {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let growth = length.saturating_sub(disk.file(node)?.cache.len());
            if growth > 0 && growth > free(disk) {
                return Err(enospc());
            }
            disk.file_mut(node)?.set_len(length);
            Ok(())
        };
        self.handle.call(op, run, |()| 0)
    }

    fn len(&self) -> io::Result<u64> {
        let op = Op::Len {
            path: self.handle.path.clone(),
        };
        self.handle
            .call(op, |disk, node, _| Ok(disk.file(node)?.cache.len()), |_| 0)
    }

    fn identity(&self) -> io::Result<FileId> {
        let op = Op::FileIdentity {
            path: self.handle.path.clone(),
        };
        let run = |disk: &mut Disk, node, _| {
            Ok(FileId {
                device: DEVICE,
                inode: disk.node(node)?.number,
            })
        };
        self.handle.call(op, run, |_| 0)
    }
}

/// The bytes that the disk has room for; as many as fit, and an error if none does.
fn room<'a>(disk: &Disk, node: u64, bytes: &'a [u8], offset: u64) -> io::Result<&'a [u8]> {
    if bytes.is_empty() {
        return Ok(bytes);
    }
    let end = offset
        .checked_add(bytes.len() as u64)
        .filter(|end| *end <= LENGTH_LIMIT);
    let end = end.ok_or(io::ErrorKind::FileTooLarge)?;
    let length = disk.file(node)?.cache.len();
    if end <= length {
        return Ok(bytes);
    }
    let fits = length.saturating_add(free(disk)).saturating_sub(offset);
    match usize::try_from(fits) {
        Ok(0) => Err(enospc()),
        Ok(fits) => Ok(bytes.get(..fits).unwrap_or(bytes)),
        Err(_) => Ok(bytes),
    }
}

fn free(disk: &Disk) -> u64 {
    disk.capacity
        .map_or(u64::MAX, |capacity| capacity.saturating_sub(disk.used()))
}

#[derive(Debug)]
pub(super) struct SimDir {
    pub(super) handle: Handle,
}

impl Dir for SimDir {
    fn sync(&self) -> io::Result<()> {
        let op = Op::SyncDir {
            path: self.handle.path.clone(),
        };
        let run = |disk: &mut Disk, node, fault| {
            disk.sync_dir(self.handle.id, node, &self.handle.path, fault)
        };
        self.handle.call(op, run, |()| 0)
    }
}

#[derive(Debug)]
pub(super) struct SimLock {
    #[allow(dead_code, reason = "held for its drop")]
    pub(super) handle: Handle,
}

impl Lock for SimLock {}
