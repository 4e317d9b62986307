//! The limits: loops of our own over the same bytes, as good as one can write them plainly, with
//! nothing that makes a log of them (no headers, no checksums, no end that is found again).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use stepwell::vfs::{File, RealVfs, Vfs as _};

use super::BenchError;
use super::measure::{Run, drive, payload};

/// Bytes of the file that is overwritten from its beginning to its end, over and over.
const RING: u64 = 64 * 1024 * 1024;
const PIECE: usize = 1024 * 1024;

/// A file that is already written, full of bytes other than zero, and synced: blocks that the file
/// system has nothing left to decide about.
#[derive(Debug)]
pub(super) struct Ring {
    target: Target,
    length: u64,
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

    /// One write and one sync.
    fn put(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        let length = bytes.len() as u64;
        if self.position + length > self.length {
            self.position = 0;
        }
        self.target.write(bytes, self.position)?;
        self.position += length;
        self.target.sync()
    }
}

/// `overwrite`: one writer, a write and a sync per record.
pub(super) fn overwrite(
    ring: &mut Ring,
    size: usize,
    duration: Duration,
) -> Result<Run, BenchError> {
    let record = payload(size, 1);
    drive(vec![|| ring.put(&record)], duration)
}

/// `growing`: one writer, a write at the end of a file that grows with it, and a sync per record. This
/// is what a host does that appends lines to a file.
pub(super) fn growing(path: &Path, size: usize, duration: Duration) -> Result<Run, BenchError> {
    let record = payload(size, 1);
    let target = Target::create(path)?;
    let mut position = 0;
    let append = || {
        target.write(&record, position)?;
        position += size as u64;
        target.sync()
    };
    let run = drive(vec![append], duration);
    std::fs::remove_file(path).map_err(BenchError::disk(path))?;
    run
}

/// Records that wait, in the order in which they came, and whose they are.
#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    seats: Vec<usize>,
    over: bool,
}

/// Where a writer waits for its acknowledgement.
#[derive(Debug, Default)]
struct Seat {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

const IDLE: u8 = 0;
const DURABLE: u8 = 1;
const LOST: u8 = 2;

/// `overwrite_group`: the writers hand copies of their records to one thread, which takes all that
/// wait, writes them with one write and one sync, and wakes their writers.
#[derive(Debug)]
struct Group {
    waiting: Mutex<Waiting>,
    work: Condvar,
    seats: Vec<Seat>,
}

pub(super) fn overwrite_group(
    ring: &mut Ring,
    writers: usize,
    size: usize,
    duration: Duration,
) -> Result<Run, BenchError> {
    let room = || Waiting {
        bytes: Vec::with_capacity(writers * size),
        seats: Vec::with_capacity(writers),
        over: false,
    };
    let group = Group {
        waiting: Mutex::new(room()),
        work: Condvar::new(),
        seats: std::iter::repeat_with(Seat::default)
            .take(writers)
            .collect(),
    };
    let works = group.seats.iter().enumerate().map(|(number, seat)| {
        let record = payload(size, number as u64 + 1);
        let group = &group;
        move || group.append(number, seat, &record)
    });
    let works = works.collect();
    thread::scope(|scope| {
        let writing = scope.spawn(|| group.serve(ring, room()));
        let run = drive(works, duration);
        group.lock().over = true;
        group.work.notify_one();
        // Its error is the cause of the writers' failure.
        writing.join().unwrap_or(Err(BenchError::Panic))?;
        run
    })
}

impl Group {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, number: usize, seat: &Seat, record: &[u8]) -> Result<(), BenchError> {
        seat.thread.get_or_init(thread::current);
        let first = {
            let mut waiting = self.lock();
            if waiting.over {
                return Err(BenchError::Stopped);
            }
            waiting.bytes.extend_from_slice(record);
            waiting.seats.push(number);
            waiting.seats.len() == 1
        };
        // Whoever came first has woken the thread already.
        if first {
            self.work.notify_one();
        }
        loop {
            match seat.state.swap(IDLE, Ordering::Acquire) {
                IDLE => thread::park(),
                DURABLE => return Ok(()),
                _ => return Err(BenchError::Stopped),
            }
        }
    }

    fn serve(&self, ring: &mut Ring, mut taken: Waiting) -> Result<(), BenchError> {
        loop {
            {
                let mut waiting = self.lock();
                while waiting.seats.is_empty() {
                    if waiting.over {
                        return Ok(());
                    }
                    let woken = self.work.wait(waiting);
                    waiting = woken.unwrap_or_else(PoisonError::into_inner);
                }
                std::mem::swap(&mut *waiting, &mut taken);
                waiting.over = taken.over;
            }
            let written = ring.put(&taken.bytes);
            self.wake(&taken.seats, if written.is_ok() { DURABLE } else { LOST });
            if written.is_err() {
                let mut waiting = self.lock();
                waiting.over = true;
                self.wake(&waiting.seats, LOST);
                return written;
            }
            taken.bytes.clear();
            taken.seats.clear();
        }
    }

    fn wake(&self, numbers: &[usize], state: u8) {
        for seat in numbers.iter().filter_map(|number| self.seats.get(*number)) {
            seat.state.store(state, Ordering::Release);
            if let Some(thread) = seat.thread.get() {
                thread.unpark();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_writes_each_record_and_tells_when_it_fails() {
        let dir = tempfile::tempdir().unwrap();
        let mut ring = Ring::make(&dir.path().join("ring"), 1).unwrap();
        let short = Duration::from_millis(20);
        let run = overwrite_group(&mut ring, 3, 100, short).unwrap();
        assert_eq!(ring.position, run.appends() * 100);
        let alone = overwrite(&mut ring, 100, short).unwrap();
        assert_eq!(ring.position, (run.appends() + alone.appends()) * 100);

        let path = dir.path().join("ring");
        ring.target.file = RealVfs.open(&path, stepwell::vfs::Access::Read).unwrap();
        let failed = overwrite_group(&mut ring, 3, 100, short);
        assert!(matches!(failed, Err(BenchError::Disk { .. })));
    }
}
