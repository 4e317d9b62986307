//! A disk in memory that can be killed, lose its power, fail and rot: the judge of the promises.
//!
//! [`SimVfs`] keeps two images of everything. Calls see the *page cache*; the *medium* gets the
//! contents of a file by [`File::sync_data`] and the names in a directory by [`Dir::sync`], and by
//! nothing else. A [`kill`](SimVfs::kill) leaves the page cache, a
//! [`power_loss`](SimVfs::power_loss) the medium and an arbitrary part of what was not synced:
//! each sector of 512 bytes, each length of a file and each change of a name survives apart from
//! all others, of several writes to one sector the first few.
//!
//! A disk does nothing by itself: no threads, no clock, no chance but the seeds it is given.
//!
//! Every crash of a short program, each followed by every image that a power loss can leave:
//!
//! ```
//! # use std::path::Path;
//! # use stepwell::vfs::{Vfs, sim::SimVfs};
//! fn program(disk: &SimVfs) -> std::io::Result<()> {
//!     let directory = disk.open_dir(Path::new("/"))?;
//!     let file = disk.create(Path::new("/file"))?;
//!     file.write_at(b"all or nothing", 0)?;
//!     file.sync_data()?;
//!     disk.rename(Path::new("/file"), Path::new("/done"))?;
//!     directory.sync()
//! }
//!
//! for calls in 0.. {
//!     let disk = SimVfs::new();
//!     disk.crash_after(calls);
//!     let finished = program(&disk).is_ok();
//!     for image in disk.power_loss_images() {
//!         match image.read_file("/done") {
//!             Ok(bytes) => assert_eq!(bytes, b"all or nothing"),
//!             Err(_) => assert!(!finished),
//!         }
//!     }
//!     if finished {
//!         break;
//!     }
//! }
//! ```

mod content;
mod disk;
mod fault;
mod handle;
mod names;
mod node;
mod power;
mod rest;
mod stall;
mod trace;
mod volume;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use content::SECTOR;
pub use fault::{Crashed, FaultKind};
pub use power::{ChoicePoint, Part, PowerLoss, PowerLossImages};
pub use stall::Stall;
pub use trace::{Call, Op, Outcome, TRACE_LIMIT};

#[cfg(doc)]
use crate::vfs::{Dir, File};
use disk::Disk;

type Hook = dyn Fn(&Op) + Send + Sync;

/// A simulated disk, seen by one simulated process.
///
/// A clone is the same disk and the same process: give clones to what is tested and keep one. The
/// one by which [`kill`](SimVfs::kill) or [`power_loss`](SimVfs::power_loss) is called goes on as a
/// new process; all others of the killed process, with their files, directories and locks, only
/// give [`Crashed`] from then on, so that threads left over from before cannot touch the disk.
pub struct SimVfs {
    shared: Arc<Shared>,
    process: AtomicU64,
}

struct Shared {
    disk: Mutex<Disk>,
    hook: Mutex<Option<Arc<Hook>>>,
    stalls: stall::Stalls,
}

impl SimVfs {
    /// An empty disk with the root directory `/`, no limit and no faults.
    pub fn new() -> Self {
        SimVfs::from_disk(Disk::new())
    }

    fn from_disk(mut disk: Disk) -> Self {
        let process = AtomicU64::new(disk.add_process());
        let shared = Shared {
            disk: Mutex::new(disk),
            hook: Mutex::new(None),
            stalls: stall::Stalls::default(),
        };
        SimVfs {
            shared: Arc::new(shared),
            process,
        }
    }

    fn process(&self) -> u64 {
        self.process.load(Ordering::SeqCst)
    }

    // ---- processes and crashes

    /// The same disk, seen by one more process: what a second program sees that opens it.
    pub fn new_process(&self) -> SimVfs {
        let process = AtomicU64::new(self.shared.lock().add_process());
        SimVfs {
            shared: self.shared.clone(),
            process,
        }
    }

    /// Kills the process of this handle. The page cache stays; its locks are free; whatever it had
    /// open is dead. This handle goes on as a new process.
    pub fn kill(&self) {
        let mut disk = self.shared.lock();
        disk.end_process(self.process());
        self.process.store(disk.add_process(), Ordering::SeqCst);
        drop(disk);
        self.shared.stalls.wake();
    }

    /// Cuts the power: kills all processes and leaves of the unsynced changes what `loss` says.
    /// This handle goes on as a new process.
    pub fn power_loss(&self, loss: PowerLoss) {
        self.power_loss_with(&mut loss.chooser());
    }

    /// Cuts the power and asks for every choice; an answer too high counts as the highest. The
    /// order is fixed: directories before what is in them, names in order, length before sectors.
    /// `choose` must not use this disk.
    pub fn power_loss_with(&self, choose: &mut dyn FnMut(&ChoicePoint) -> usize) {
        let mut disk = self.shared.lock();
        disk.lose_power(choose);
        self.process.store(disk.add_process(), Ordering::SeqCst);
        drop(disk);
        self.shared.stalls.wake();
    }

    /// Every image that a power loss now could leave. This disk stays as it is.
    pub fn power_loss_images(&self) -> PowerLossImages {
        PowerLossImages::new(self.snapshot())
    }

    /// The choices that a power loss now would ask for if all changes of names were kept.
    pub fn pending_choices(&self) -> Vec<ChoicePoint> {
        let mut points = Vec::new();
        self.shared.lock().copy().lose_power(&mut |point| {
            points.push(point.clone());
            point.options - 1
        });
        points
    }

    /// An independent disk with the same files, names and unsynced changes, the same capacity and
    /// no processes, locks, faults, hook or trace. Cheap: contents are shared until they change.
    pub fn snapshot(&self) -> SimVfs {
        SimVfs::from_disk(self.shared.lock().copy())
    }

    /// Lets this process crash after `calls` further calls of it that can change the disk
    /// ([`Op::changes_disk`]): the next one does not happen, and it and all later calls of any kind
    /// give [`Crashed`] until [`kill`](SimVfs::kill) or [`power_loss`](SimVfs::power_loss).
    pub fn crash_after(&self, calls: u64) {
        if let Some(process) = self.shared.lock().processes.get_mut(&self.process()) {
            process.calls_left = Some(calls);
        }
    }

    /// Whether the process of this handle has crashed or was killed.
    pub fn has_crashed(&self) -> bool {
        self.shared
            .lock()
            .processes
            .get(&self.process())
            .is_none_or(|process| process.crashed)
    }

    /// Whether an error says that the process has crashed or was killed.
    pub fn is_crashed(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Crashed>())
    }

    // ---- faults and space

    /// Lets one call fail, by whatever process: of the calls that `filter` picks and that `kind`
    /// can happen to, the one after `skip` others. Each plan counts by itself; of several that are
    /// due the oldest takes the call and the others wait. `filter` must not use this disk.
    pub fn fail_nth(
        &self,
        filter: impl Fn(&Op) -> bool + Send + Sync + 'static,
        skip: u64,
        kind: FaultKind,
    ) {
        self.shared
            .lock()
            .faults
            .add(Box::new(filter), skip, false, kind);
    }

    /// Like [`fail_nth`](SimVfs::fail_nth), for that call and all later ones that `filter` picks,
    /// until [`clear_faults`](SimVfs::clear_faults).
    pub fn fail_from(
        &self,
        filter: impl Fn(&Op) -> bool + Send + Sync + 'static,
        skip: u64,
        kind: FaultKind,
    ) {
        self.shared
            .lock()
            .faults
            .add(Box::new(filter), skip, true, kind);
    }

    /// Forgets all plans of faults. Failures that wait for being reported stay.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// The number of calls that a fault has hit so far.
    pub fn faults_fired(&self) -> u64 {
        self.shared.lock().faults.fired
    }

    /// Limits the sum of the lengths of all files, in bytes. A write that no longer fits takes
    /// what does, one of which nothing fits fails with `StorageFull`, as does a `set_len`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.lock().capacity = bytes;
    }

    /// The sum of the lengths of all files that have a name or are open, in bytes.
    pub fn used(&self) -> u64 {
        self.shared.lock().used()
    }

    // ---- observation

    /// The last [`TRACE_LIMIT`] calls, those that failed included.
    pub fn trace(&self) -> Vec<Call> {
        self.shared.lock().trace.calls()
    }

    /// Forgets the trace and the counts of syncs; calls are numbered on.
    pub fn clear_trace(&self) {
        self.shared.lock().trace.clear();
    }

    /// Whether calls are recorded, which they are at first. Turn it off where the disk is not there
    /// to be watched.
    pub fn set_tracing(&self, on: bool) {
        self.shared.lock().trace.off = !on;
    }

    /// The number of successful syncs of files and directories whose path contains `pattern`, since
    /// the trace was cleared.
    pub fn sync_count(&self, pattern: &str) -> u64 {
        self.shared.lock().trace.sync_count(pattern)
    }

    /// Calls `hook` before every call to the disk, in the thread of the caller and without holding
    /// the disk: it may block, look at the disk and take snapshots. Calls by the hook itself come
    /// to the hook again.
    pub fn set_hook(&self, hook: impl Fn(&Op) + Send + Sync + 'static) {
        *self.shared.hook() = Some(Arc::new(hook));
    }

    /// Takes the hook away. It may still be running in other threads.
    pub fn clear_hook(&self) {
        *self.shared.hook() = None;
    }
}

impl Clone for SimVfs {
    fn clone(&self) -> Self {
        SimVfs {
            shared: self.shared.clone(),
            process: AtomicU64::new(self.process()),
        }
    }
}

impl Default for SimVfs {
    fn default() -> Self {
        SimVfs::new()
    }
}

impl fmt::Debug for SimVfs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SimVfs")
            .field("process", &self.process())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    // A panic of a test in a filter or a choice leaves the disk whole enough to be looked at.
    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hook(&self) -> MutexGuard<'_, Option<Arc<Hook>>> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call of a process: hook, stall, crash, fault, the thing itself, trace.
    fn call<T>(
        &self,
        process: u64,
        op: Op,
        run: impl FnOnce(&mut Disk, Option<FaultKind>) -> io::Result<T>,
        moved: impl Fn(&T) -> u64,
    ) -> io::Result<T> {
        let hook = self.hook().clone();
        if let Some(hook) = hook {
            hook(&op);
        }
        self.stalls.pass(&op, || self.lock().lives(process));
        let mut disk = self.lock();
        let result = if disk.admits(process, &op) {
            match disk.faults.hit(&op) {
                None => run(&mut disk, None),
                Some(fault @ FaultKind::Crash(_)) => {
                    if matches!(op, Op::Write { .. }) {
                        // It dies within the call: what came of it nobody hears.
                        let _ = run(&mut disk, Some(fault));
                    }
                    disk.crash(process);
                    Err(fault::crashed())
                }
                Some(fault) => match fault.plain_error() {
                    Some(error) => Err(error),
                    None => run(&mut disk, Some(fault)),
                },
            }
        } else {
            Err(fault::crashed())
        };
        let outcome = match &result {
            Ok(value) => Outcome::Done(moved(value)),
            Err(error) if SimVfs::is_crashed(error) => Outcome::Crashed,
            Err(error) => Outcome::Failed(error.kind()),
        };
        disk.trace.record(process, op, outcome);
        result
    }
}
