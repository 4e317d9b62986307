//! Faults by plan: which call fails, and in which manner.

use std::io;

use super::power::PowerLoss;
use super::trace::Op;

/// The error of every call of a process that has crashed or was killed; recognise it with
/// [`SimVfs::is_crashed`](super::SimVfs::is_crashed).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulated process has crashed or was killed: drop its handles and open again")]
pub struct Crashed;

pub(super) fn crashed() -> io::Error {
    io::Error::other(Crashed)
}

/// What happens to the call that a fault hits. A kind only hits calls that it can happen to: plain
/// errors hit any call, the others the calls that their names say.
///
/// A [`PowerLoss`] in a kind says which of the unsynced changes reach the medium all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The call fails with EIO and does nothing.
    Eio,
    /// The call fails with ENOSPC and does nothing.
    Enospc,
    /// The call fails with EDQUOT and does nothing.
    Edquot,
    /// A call that makes a file longer or writes to it fails with EFBIG and does nothing.
    Efbig,
    /// The call fails with EROFS and does nothing.
    Erofs,
    /// A call that takes a handle fails with EMFILE and does nothing.
    Emfile,
    /// The call fails with EINTR and does nothing.
    Eintr,
    /// A file gets no further name: EXDEV, and nothing is done.
    Exdev,
    /// A file gets no further name: EMLINK, and nothing is done.
    Emlink,
    /// A file gets no further name: EPERM, and nothing is done.
    Eperm,
    /// A read gives no more than this number of bytes, but at least one of those that are there.
    ShortRead(usize),
    /// A write takes no more than this number of bytes, which may be 0.
    ShortWrite(usize),
    /// A write takes this number of bytes into the page cache and fails with EIO.
    FailedWrite(usize),
    /// The process crashes at this call: a write first takes this number of bytes into the page
    /// cache, any other call does nothing.
    Crash(usize),
    /// `sync_data` fails. The page cache keeps the new contents and calls them clean: reads see
    /// them, later syncs succeed, and what did not reach the medium is lost at a power loss.
    SyncKept(PowerLoss),
    /// `sync_data` fails, and the page cache goes back to what is on the medium.
    SyncReverted(PowerLoss),
    /// `sync_data` reports success although changes were lost; the next one on that file, by
    /// whomever, reports the failure.
    SyncLate(PowerLoss),
    /// The write-back in the background fails, after a write or within a `sync_data`. The cache
    /// calls the pages clean, and the error is reported once to each open file: by the next
    /// `sync_data` of every handle that is open now (a `sync_data` that is hit fails at once).
    WriteBack(PowerLoss),
    /// [`Dir::sync`](crate::vfs::Dir::sync) fails. The names stay visible and count as synced; the
    /// failure is reported once more by every other handle now open on that directory.
    DirSync(PowerLoss),
}

impl FaultKind {
    fn can_hit(self, op: &Op) -> bool {
        match self {
            FaultKind::Eio
            | FaultKind::Enospc
            | FaultKind::Edquot
            | FaultKind::Erofs
            | FaultKind::Eintr
            | FaultKind::Crash(_) => true,
            FaultKind::Emfile => matches!(
                op,
                Op::Open { .. }
                    | Op::OpenDir { .. }
                    | Op::Create { .. }
                    | Op::List { .. }
                    | Op::TryLock { .. }
            ),
            FaultKind::Exdev | FaultKind::Emlink | FaultKind::Eperm => {
                matches!(op, Op::HardLink { .. })
            }
            FaultKind::Efbig => matches!(op, Op::Write { .. } | Op::SetLen { .. }),
            FaultKind::ShortRead(_) => matches!(op, Op::Read { .. }),
            FaultKind::ShortWrite(_) | FaultKind::FailedWrite(_) => matches!(op, Op::Write { .. }),
            FaultKind::SyncKept(_) | FaultKind::SyncReverted(_) | FaultKind::SyncLate(_) => {
                matches!(op, Op::SyncData { .. })
            }
            FaultKind::WriteBack(_) => matches!(op, Op::SyncData { .. } | Op::Write { .. }),
            FaultKind::DirSync(_) => matches!(op, Op::SyncDir { .. }),
        }
    }

    /// The error of a kind that fails the call without any other effect.
    pub(super) fn plain_error(self) -> Option<io::Error> {
        match self {
            FaultKind::Eio => Some(eio()),
            FaultKind::Enospc => Some(enospc()),
            FaultKind::Edquot => Some(edquot()),
            FaultKind::Efbig => Some(efbig()),
            FaultKind::Erofs => Some(erofs()),
            FaultKind::Emfile => Some(emfile()),
            FaultKind::Exdev => Some(system(Errno::XDEV, io::ErrorKind::CrossesDevices)),
            FaultKind::Emlink => Some(system(Errno::MLINK, io::ErrorKind::TooManyLinks)),
            FaultKind::Eperm => Some(eperm()),
            FaultKind::Eintr => Some(io::Error::from(io::ErrorKind::Interrupted)),
            _ => None,
        }
    }
}

type Filter = Box<dyn Fn(&Op) -> bool + Send + Sync>;

struct Plan {
    filter: Filter,
    skip: u64,
    lasting: bool,
    kind: FaultKind,
}

#[derive(Default)]
pub(super) struct Faults {
    plans: Vec<Plan>,
    pub(super) fired: u64,
}

impl Faults {
    pub(super) fn add(&mut self, filter: Filter, skip: u64, lasting: bool, kind: FaultKind) {
        self.plans.push(Plan {
            filter,
            skip,
            lasting,
            kind,
        });
    }

    pub(super) fn clear(&mut self) {
        self.plans.clear();
    }

    /// Counts the call in every plan and takes the first that is due.
    pub(super) fn hit(&mut self, op: &Op) -> Option<FaultKind> {
        let mut due = None;
        for (place, plan) in self.plans.iter_mut().enumerate() {
            if !plan.kind.can_hit(op) || !(plan.filter)(op) {
                continue;
            }
            if plan.skip > 0 {
                plan.skip -= 1;
            } else if due.is_none() {
                due = Some((place, plan.kind, plan.lasting));
            }
        }
        let (place, kind, lasting) = due?;
        if !lasting {
            self.plans.remove(place);
        }
        self.fired += 1;
        Some(kind)
    }
}

#[cfg(unix)]
fn system(errno: rustix::io::Errno, _: io::ErrorKind) -> io::Error {
    io::Error::from_raw_os_error(errno.raw_os_error())
}

#[cfg(unix)]
use rustix::io::Errno;

#[cfg(not(unix))]
struct Errno;

#[cfg(not(unix))]
impl Errno {
    const IO: Errno = Errno;
    const NOSPC: Errno = Errno;
    const DQUOT: Errno = Errno;
    const FBIG: Errno = Errno;
    const ROFS: Errno = Errno;
    const BADF: Errno = Errno;
    const PERM: Errno = Errno;
    const MFILE: Errno = Errno;
    const XDEV: Errno = Errno;
    const MLINK: Errno = Errno;
}

#[cfg(not(unix))]
fn system(_: Errno, kind: io::ErrorKind) -> io::Error {
    io::Error::from(kind)
}

pub(super) fn eio() -> io::Error {
    system(Errno::IO, io::ErrorKind::Other)
}

pub(super) fn enospc() -> io::Error {
    system(Errno::NOSPC, io::ErrorKind::StorageFull)
}

fn edquot() -> io::Error {
    system(Errno::DQUOT, io::ErrorKind::QuotaExceeded)
}

fn efbig() -> io::Error {
    system(Errno::FBIG, io::ErrorKind::FileTooLarge)
}

fn erofs() -> io::Error {
    system(Errno::ROFS, io::ErrorKind::ReadOnlyFilesystem)
}

fn emfile() -> io::Error {
    system(Errno::MFILE, io::ErrorKind::Other)
}

pub(super) fn ebadf() -> io::Error {
    system(Errno::BADF, io::ErrorKind::PermissionDenied)
}

pub(super) fn eperm() -> io::Error {
    system(Errno::PERM, io::ErrorKind::PermissionDenied)
}
