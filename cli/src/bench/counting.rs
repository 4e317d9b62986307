//! A file system that counts what goes through it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stepwell::vfs::{Access, Dir, Entry, File, FileId, Lock, RealVfs, Vfs};

/// What was counted since the beginning.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Syncs of files.
    pub(super) syncs: u64,
    /// Bytes that were written.
    pub(super) bytes: u64,
    /// Segments that were made.
    pub(super) segments: u64,
}

impl Counts {
    /// What came since `earlier`.
    pub(super) fn since(self, earlier: Counts) -> Counts {
        Counts {
            syncs: self.syncs - earlier.syncs,
            bytes: self.bytes - earlier.bytes,
            segments: self.segments - earlier.segments,
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    syncs: AtomicU64,
    bytes: AtomicU64,
    segments: AtomicU64,
}

/// The file system of the machine, counted. Next to a write and a sync an addition is nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct CountingVfs {
    counters: Arc<Counters>,
}

impl CountingVfs {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            syncs: self.counters.syncs.load(Relaxed),
            bytes: self.counters.bytes.load(Relaxed),
            segments: self.counters.segments.load(Relaxed),
        }
    }

    fn counted(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(CountedFile {
            file,
            counters: Arc::clone(&self.counters),
        })
    }
}

impl Vfs for CountingVfs {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealVfs.create_dir(path)
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        RealVfs.open_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        RealVfs.list(path)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let file = RealVfs.create(path)?;
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with("seg-")) {
            self.counters.segments.fetch_add(1, Relaxed);
        }
        Ok(self.counted(file))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        Ok(self.counted(RealVfs.open(path, access)?))
    }

    fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()> {
        RealVfs.hard_link(original, link)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealVfs.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        RealVfs.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        RealVfs.remove_dir(path)
    }

    fn identity(&self, path: &Path) -> io::Result<FileId> {
        RealVfs.identity(path)
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        RealVfs.try_lock(path)
    }
}

#[derive(Debug)]
struct CountedFile {
    file: Arc<dyn File>,
    counters: Arc<Counters>,
}

impl File for CountedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let written = self.file.write_at(bytes, offset)?;
        self.counters.bytes.fetch_add(written as u64, Relaxed);
        Ok(written)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.counters.syncs.fetch_add(1, Relaxed);
        self.file.sync_data()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn identity(&self) -> io::Result<FileId> {
        self.file.identity()
    }
}
