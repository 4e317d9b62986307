//! The thread of the index: everything of it happens here, and nothing that it does harms others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::behind::{Job, Shared, lock};
use super::{Entries, Index, IndexHarm, IndexHealth, Logs, Opened, Opener};

/// Entries that are put at once.
pub(super) const BATCH: usize = 256;
/// How often sessions that were written to are looked at. One that was quiet for so long is proven to
/// its end: its log has got its witness slot.
const ROUND: Duration = Duration::from_secs(2);
/// For how long closing takes in what it has yet to.
const LAST: Duration = Duration::from_secs(1);

/// Runs something of the index: a panic is a harm like any other.
fn contained<T>(run: impl FnOnce() -> Result<T, IndexHarm>) -> Result<T, IndexHarm> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(IndexHarm::Panicked))
}

/// The life of the thread.
pub(super) fn run(shared: &Shared, jobs: &Receiver<Job>, opener: Opener, logs: &Logs) {
    let ended = match contained(opener) {
        Ok(None) => IndexHealth::Locked,
        Err(why) => IndexHealth::Broken { why },
        Ok(Some(Opened { index, fresh })) => {
            {
                let mut state = lock(&shared.state);
                if state.health == IndexHealth::Opening {
                    state.health = match fresh {
                        true => IndexHealth::Rebuilding { behind: 0 },
                        false => IndexHealth::Ready { behind: 0 },
                    };
                }
            }
            let mut index = index;
            let served = contained(|| serve(shared, jobs, &mut *index, logs));
            let ended = match served {
                Ok(()) => contained(|| index.close()),
                Err(why) => {
                    // What it would do when it is dropped is as little trusted.
                    let _ = contained(|| {
                        drop(index);
                        Ok(())
                    });
                    Err(why)
                }
            };
            match ended {
                Ok(()) => IndexHealth::Absent,
                Err(why) => IndexHealth::Broken { why },
            }
        }
    };
    if let IndexHealth::Broken { why } = &ended {
        tracing::warn!(%why, "the index is not used; listings read the logs instead");
    }
    shared.ends(ended);
    shared.done.fetch_add(1, Ordering::AcqRel);
}

fn serve(
    shared: &Shared,
    jobs: &Receiver<Job>,
    index: &mut dyn Index,
    logs: &Logs,
) -> Result<(), IndexHarm> {
    let mut looked = Instant::now();
    let mut removed = false;
    loop {
        let job = match shared.is_dirty() || removed {
            false => jobs.recv().map_err(RecvTimeoutError::from),
            true => jobs.recv_timeout(ROUND.saturating_sub(looked.elapsed())),
        };
        match job {
            Ok(Job::Wake) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Job::Scan(promise)) => promise.fulfil(index.scan()?),
            Ok(Job::Remove(ids)) => {
                index.remove(&ids)?;
                removed = true;
            }
            Ok(Job::Put { entries, whole }) => {
                for batch in entries.chunks(BATCH) {
                    index.put(batch)?;
                    shared.queued.fetch_sub(batch.len(), Ordering::AcqRel);
                    shared.done.fetch_add(1, Ordering::AcqRel);
                }
                if whole {
                    shared.is_filled();
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                catch_up(shared, index, logs, true)?;
                return sweep(shared, index, logs);
            }
        }
        shared.done.fetch_add(1, Ordering::AcqRel);
        if looked.elapsed() >= ROUND {
            catch_up(shared, index, logs, false)?;
            // Many deletions are tidied up behind once.
            if std::mem::take(&mut removed) {
                index.tidy()?;
            }
            looked = Instant::now();
        }
    }
}

/// Takes in sessions that were written to. Those that are being written to wait, since what is read of
/// them holds no longer than until the next commit.
fn catch_up(
    shared: &Shared,
    index: &mut dyn Index,
    logs: &Logs,
    last: bool,
) -> Result<(), IndexHarm> {
    // Closing is not held up for long: what is not taken in is read by the next listing.
    let until = Instant::now() + LAST;
    for some in shared.due(last).chunks(BATCH) {
        if last && Instant::now() > until {
            break;
        }
        let entries = some.iter().filter_map(|id| Some((*id, logs.entry(*id)?)));
        let entries: Entries = entries.collect();
        if !entries.is_empty() {
            index.put(&entries)?;
        }
        shared.queued.fetch_sub(some.len(), Ordering::AcqRel);
        shared.done.fetch_add(1, Ordering::AcqRel);
    }
    Ok(())
}

/// Forgets what other processes deleted, or what a listing put that had read it before it was deleted.
fn sweep(shared: &Shared, index: &mut dyn Index, logs: &Logs) -> Result<(), IndexHarm> {
    let entries = index.scan()?;
    let gone = logs.gone(entries.iter().map(|(id, _)| *id));
    if !gone.is_empty() {
        index.remove(&gone)?;
    }
    index.tidy()?;
    shared.done.fetch_add(1, Ordering::AcqRel);
    Ok(())
}
