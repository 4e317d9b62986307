//! What a lone writer is compared with: loops of our own over the same bytes, as good as one can
//! write them plainly, with nothing that makes a log of them (no headers, no checksums, no end that is found again).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stepwell::vfs::{File, RealVfs, Vfs as _};

use super::BenchError;
use super::measure::{Run, drive, payload};

/// Bytes of the file that is overwritten from its beginning to its end, over and over.
const RING: u64 = 64 * 1024 * 1024;
const PIECE: usize = 1024 * 1024;

/// The file that a loop writes to.
///
/// To overwrite: already written, full of bytes other than zero, and synced; blocks that the file
/// system has nothing left to decide about. To grow: empty; every record takes new space, as it does
/// in a log that keeps what it was given.
#[derive(Debug)]
pub(super) struct Ring {
    target: Target,
    length: u64,
    /// Where the next record goes.
    position: u64,
}

#[derive(Debug, Clone)]
struct Target {
    file: Arc<dyn File>,
    path: PathBuf,
}

impl Target {
    fn create(path: &Path) -> Result<Target, BenchError> {
        let file = RealVfs.create(path).map_err(BenchError::disk(path))?;
        Ok(Target {
            file,
            path: path.to_owned(),
        })
    }

    fn write(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), BenchError> {
        while !bytes.is_empty() {
            let written = self.file.write_at(bytes, offset);
            let written = written.map_err(BenchError::disk(&self.path))?;
            bytes = bytes.get(written..).unwrap_or_default();
            offset += written as u64;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), BenchError> {
        self.file.sync_data().map_err(BenchError::disk(&self.path))
    }
}

impl Ring {
    /// Makes the file; at least `group` bytes can be written to it at once.
    pub(super) fn make(path: &Path, group: u64) -> Result<Ring, BenchError> {
        let target = Target::create(path)?;
        let length = group.next_multiple_of(PIECE as u64).max(RING);
        let piece = payload(PIECE, u64::MAX);
        for offset in (0..length).step_by(PIECE) {
            target.write(&piece, offset)?;
        }
        target.sync()?;
        Ok(Ring {
            target,
            length,
            position: 0,
        })
    }

    /// A file that grows.
    pub(super) fn growing(path: &Path) -> Result<Ring, BenchError> {
        Ok(Ring {
            target: Target::create(path)?,
            length: u64::MAX,
            position: 0,
        })
    }

    /// Gives its space back.
    pub(super) fn remove(self) -> Result<(), BenchError> {
        let path = &self.target.path;
        std::fs::remove_file(path).map_err(BenchError::disk(path))
    }

    /// One write and one sync.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        let length = bytes.len() as u64;
        if self.position + length > self.length {
            self.position = 0;
        }
        self.target.write(bytes, self.position)?;
        self.position += length;
        self.target.sync()
    }
}

/// `overwrite`, or `growing` in a file that grows: one writer, a write and a sync per record. The
/// second is what a host does that appends lines to a file.
pub(super) fn lone(ring: &mut Ring, size: usize, duration: Duration) -> Result<Run, BenchError> {
    let record = payload(size, 1);
    drive(vec![|| ring.put(&record)], duration)
}

#[cfg(test)]
impl Ring {
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// With the file open for reading only, so that the next write fails.
    pub(super) fn read_only(mut self) -> Ring {
        let path = &self.target.path;
        self.target.file = RealVfs.open(path, stepwell::vfs::Access::Read).unwrap();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loops_write_and_wrap_around() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ring");
        let mut ring = Ring::make(&path, 1).unwrap();
        let run = lone(&mut ring, 100, Duration::from_millis(10)).unwrap();
        assert_eq!(ring.position, run.appends() * 100);
        ring.position = ring.length - 99;
        ring.put(&[0; 100]).unwrap();
        assert_eq!(ring.position, 100);
        assert_eq!(path.metadata().unwrap().len(), ring.length);

        let path = dir.path().join("growing");
        let mut ring = Ring::growing(&path).unwrap();
        let run = lone(&mut ring, 100, Duration::from_millis(10)).unwrap();
        assert_eq!(path.metadata().unwrap().len(), run.appends() * 100);
        ring.remove().unwrap();
        assert!(!path.exists());
    }
}
