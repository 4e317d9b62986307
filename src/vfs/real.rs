//! The file system of the machine.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(all(test, unix))]
mod tests;

use std::fs::{self, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

use super::{Access, Dir, Entry, File, FileId, Lock, Vfs};

/// The file system of the machine. Errors are those of the system.
///
/// Nothing is followed that is a symbolic link, and nothing is opened that is not a regular file:
/// both give an error at once, also a named pipe that nobody writes to.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealVfs;

impl Vfs for RealVfs {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        system::create_dir(path)
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        Ok(Arc::new(RealDir(system::open_dir(path)?)))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                let is_dir = match entry.file_type() {
                    Ok(kind) => kind.is_dir(),
                    // Removed by another process since it was read.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
                entries.push(Entry { name, is_dir });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut options = system::options();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        let mut options = system::options();
        let file = options
            .read(true)
            .write(access == Access::Write)
            .open(path)?;
        regular(&file)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()> {
        fs::hard_link(original, link)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn identity(&self, path: &Path) -> io::Result<FileId> {
        Ok(system::identity(&fs::symlink_metadata(path)?))
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let mut options = system::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        regular(&file)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(RealLock { file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

fn regular(file: &fs::File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        Ok(())
    } else if kind.is_dir() {
        Err(io::ErrorKind::IsADirectory.into())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ))
    }
}

#[derive(Debug)]
struct RealFile(fs::File);

impl File for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        system::read_at(&self.0, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        system::write_at(&self.0, bytes, offset)
    }

    // The standard library repeats a sync that a signal has interrupted, which is no failed sync:
    // the system reports a write-back error only in one that ran to its end.
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn identity(&self) -> io::Result<FileId> {
        Ok(system::identity(&self.0.metadata()?))
    }

    fn modified(&self) -> io::Result<Option<u64>> {
        let modified = self.0.metadata()?.modified().ok();
        let since = modified.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        Ok(since.and_then(|since| u64::try_from(since.as_nanos()).ok()))
    }
}

#[derive(Debug)]
struct RealDir(fs::File);

impl Dir for RealDir {
    fn sync(&self) -> io::Result<()> {
        system::sync_dir(&self.0)
    }
}

/// The lock belongs to the open file, which a child process that is being started shares for a
/// moment, or for its whole life if it was forked: so it is given back in so many words. Death
/// closes the file, and the last copy of it to be closed frees the lock.
#[derive(Debug)]
struct RealLock {
    file: fs::File,
}

impl Drop for RealLock {
    fn drop(&mut self) {
        // Closing it frees it as well, if nobody else has it open.
        let _ = self.file.unlock();
    }
}

impl Lock for RealLock {}
