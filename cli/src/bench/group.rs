//! What many writers are compared with: one thread writes for all.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::BenchError;
use super::limit::Ring;
use super::measure::{Run, drive, payload};

/// `overwrite_group`, or `growing_group` in a file that grows: the writers hand copies of their records to one thread, which takes all that
/// wait, writes them with one write and one sync, and wakes their writers.
#[derive(Debug)]
struct Group {
    waiting: Mutex<Waiting>,
    work: Condvar,
    answered: Mutex<Answered>,
    /// Where the writers of a group wait, by its number; those of the next one are not woken with
    /// them. One call of the system wakes all: on two cores this is a quarter faster than to wake
    /// each writer by itself.
    answers: [Condvar; 2],
}

/// Records of the group that collects.
#[derive(Debug)]
struct Waiting {
    group: u64,
    bytes: Vec<u8>,
    over: bool,
}

#[derive(Debug)]
struct Answered {
    /// Groups below this number are durable.
    durable: u64,
    failed: bool,
}

pub(super) fn grouped(
    ring: &mut Ring,
    writers: usize,
    size: usize,
    duration: Duration,
) -> Result<Run, BenchError> {
    let room = writers * size;
    let group = Group {
        waiting: Mutex::new(Waiting {
            group: 0,
            bytes: Vec::with_capacity(room),
            over: false,
        }),
        work: Condvar::new(),
        answered: Mutex::new(Answered {
            durable: 0,
            failed: false,
        }),
        answers: [Condvar::new(), Condvar::new()],
    };
    let works = (1..=writers).map(|seed| {
        let record = payload(size, seed as u64);
        let group = &group;
        move || group.append(&record)
    });
    let works = works.collect();
    thread::scope(|scope| {
        let writing = scope.spawn(|| group.serve(ring, Vec::with_capacity(room)));
        let run = drive(works, duration);
        lock(&group.waiting).over = true;
        group.work.notify_one();
        // Its error is the cause of the writers' failure.
        writing.join().unwrap_or(Err(BenchError::Panic))?;
        run
    })
}

impl Group {
    fn append(&self, record: &[u8]) -> Result<(), BenchError> {
        let (number, first) = {
            let mut waiting = lock(&self.waiting);
            let first = waiting.bytes.is_empty();
            waiting.bytes.extend_from_slice(record);
            (waiting.group, first)
        };
        // Whoever came first has woken the thread already.
        if first {
            self.work.notify_one();
        }
        let mut answered = lock(&self.answered);
        while answered.durable <= number && !answered.failed {
            answered = wait(self.answer(number), answered);
        }
        match answered.failed {
            true => Err(BenchError::Stopped),
            false => Ok(()),
        }
    }

    fn answer(&self, number: u64) -> &Condvar {
        let [even, odd] = &self.answers;
        if number.is_multiple_of(2) { even } else { odd }
    }

    fn serve(&self, ring: &mut Ring, mut taken: Vec<u8>) -> Result<(), BenchError> {
        loop {
            let number = {
                let mut waiting = lock(&self.waiting);
                while waiting.bytes.is_empty() {
                    if waiting.over {
                        return Ok(());
                    }
                    waiting = wait(&self.work, waiting);
                }
                std::mem::swap(&mut waiting.bytes, &mut taken);
                waiting.group += 1;
                waiting.group - 1
            };
            if let Err(error) = ring.put(&taken) {
                lock(&self.answered).failed = true;
                self.answers.iter().for_each(Condvar::notify_all);
                return Err(error);
            }
            taken.clear();
            lock(&self.answered).durable = number + 1;
            self.answer(number).notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_is_written_once_and_a_failure_reaches_all() {
        let dir = tempfile::tempdir().unwrap();
        let mut ring = Ring::make(&dir.path().join("ring"), 1).unwrap();
        let short = Duration::from_millis(20);
        let run = grouped(&mut ring, 3, 100, short).unwrap();
        assert_eq!(ring.position(), run.appends() * 100);
        let failed = grouped(&mut ring.read_only(), 3, 100, short);
        assert!(matches!(failed, Err(BenchError::Disk { .. })));
    }
}
