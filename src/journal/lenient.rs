//! A disk as a repair sees it: it is only read, and a block that cannot be read is damage like any
//! other (row 1), so it reads as zeros and is noted.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::segment::BLOCK;
use crate::sync::Mutex;
use crate::vfs::{Access, Dir, Entry, File, FileId, Lock, Vfs};

/// Bytes that the disk would not give.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadableBlock {
    /// The file.
    pub path: PathBuf,
    /// Where.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Most blocks that are noted.
const MAX_NOTED: usize = 10_000;

#[derive(Debug, Clone, Default)]
struct Notes(Arc<Mutex<Vec<UnreadableBlock>>>);

impl Notes {
    fn add(&self, block: UnreadableBlock) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A log is read several times.
        if let Err(at) = notes.binary_search(&block)
            && notes.len() < MAX_NOTED
        {
            notes.insert(at, block);
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Lenient {
    inner: Arc<dyn Vfs>,
    notes: Notes,
}

impl Lenient {
    pub(crate) fn new(inner: Arc<dyn Vfs>) -> Lenient {
        Lenient {
            inner,
            notes: Notes::default(),
        }
    }

    /// What could not be read so far, in order.
    pub(crate) fn unreadable(&self) -> Vec<UnreadableBlock> {
        let notes = self.notes.0.lock();
        notes.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::PermissionDenied.into())
}

impl Vfs for Lenient {
    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        self.inner.open_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.inner.list(path)
    }

    fn create(&self, _path: &Path) -> io::Result<Arc<dyn File>> {
        refused()
    }

    fn open(&self, path: &Path, _access: Access) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(LenientFile {
            inner: self.inner.open(path, Access::Read)?,
            path: path.to_owned(),
            notes: self.notes.clone(),
        }))
    }

    fn hard_link(&self, _original: &Path, _link: &Path) -> io::Result<()> {
        refused()
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_dir(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn identity(&self, path: &Path) -> io::Result<FileId> {
        self.inner.identity(path)
    }

    fn try_lock(&self, _path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        refused()
    }
}

struct LenientFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    notes: Notes,
}

impl fmt::Debug for LenientFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LenientFile").field(&self.path).finish()
    }
}

impl LenientFile {
    /// Reads at most to the end of a block; zeros if the disk does not give it.
    fn read_block(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = self.inner.len()?;
        let inside = length.saturating_sub(offset).min(BLOCK - offset % BLOCK);
        let take = usize::try_from(inside)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let part = buffer.get_mut(..take).unwrap_or_default();
        match self.inner.read_at(part, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(_) => {
                part.fill(0);
                let start = offset - offset % BLOCK;
                self.notes.add(UnreadableBlock {
                    path: self.path.clone(),
                    offset: start,
                    bytes: length.saturating_sub(start).min(BLOCK),
                });
                Ok(take)
            }
            read => read,
        }
    }
}

impl File for LenientFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.inner.read_at(buffer, offset) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                self.read_block(buffer, offset)
            }
            read => read,
        }
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<usize> {
        refused()
    }

    fn sync_data(&self) -> io::Result<()> {
        refused()
    }

    fn set_len(&self, _length: u64) -> io::Result<()> {
        refused()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn identity(&self) -> io::Result<FileId> {
        self.inner.identity()
    }
}
