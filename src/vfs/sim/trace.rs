//! What was asked of the disk, and what came of it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::vfs::Access;

/// The number of calls that the trace keeps; older ones are forgotten, their numbers are not
/// given again.
pub const TRACE_LIMIT: usize = 1 << 16;

/// One call to the disk. The path of a call through an open file is the one it was opened by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are the arguments of the calls they are named after"
)]
pub enum Op {
    /// [`Vfs::create_dir`](crate::vfs::Vfs::create_dir).
    CreateDir { path: Arc<Path> },
    /// [`Vfs::open_dir`](crate::vfs::Vfs::open_dir).
    OpenDir { path: Arc<Path> },
    /// [`Vfs::list`](crate::vfs::Vfs::list).
    List { path: Arc<Path> },
    /// [`Vfs::create`](crate::vfs::Vfs::create).
    Create { path: Arc<Path> },
    /// [`Vfs::open`](crate::vfs::Vfs::open).
    Open { path: Arc<Path>, access: Access },
    /// [`Vfs::hard_link`](crate::vfs::Vfs::hard_link); `path` is the new name.
    HardLink {
        original: Arc<Path>,
        path: Arc<Path>,
    },
    /// [`Vfs::rename`](crate::vfs::Vfs::rename); `path` is the new name.
    Rename { from: Arc<Path>, path: Arc<Path> },
    /// [`Vfs::remove_file`](crate::vfs::Vfs::remove_file).
    RemoveFile { path: Arc<Path> },
    /// [`Vfs::remove_dir`](crate::vfs::Vfs::remove_dir).
    RemoveDir { path: Arc<Path> },
    /// [`Vfs::identity`](crate::vfs::Vfs::identity).
    Identity { path: Arc<Path> },
    /// [`Vfs::try_lock`](crate::vfs::Vfs::try_lock).
    TryLock { path: Arc<Path> },
    /// [`File::read_at`](crate::vfs::File::read_at).
    Read {
        path: Arc<Path>,
        offset: u64,
        length: usize,
    },
    /// [`File::write_at`](crate::vfs::File::write_at).
    Write {
        path: Arc<Path>,
        offset: u64,
        length: usize,
    },
    /// [`File::sync_data`](crate::vfs::File::sync_data).
    SyncData { path: Arc<Path> },
    /// [`File::set_len`](crate::vfs::File::set_len).
    SetLen { path: Arc<Path>, length: u64 },
    /// [`File::len`](crate::vfs::File::len).
    Len { path: Arc<Path> },
    /// [`File::identity`](crate::vfs::File::identity).
    FileIdentity { path: Arc<Path> },
    /// [`Dir::sync`](crate::vfs::Dir::sync).
    SyncDir { path: Arc<Path> },
}

impl Op {
    /// The path that the call is about: the new name for a link or a rename.
    pub fn path(&self) -> &Path {
        match self {
            Op::CreateDir { path }
            | Op::OpenDir { path }
            | Op::List { path }
            | Op::Create { path }
            | Op::Open { path, .. }
            | Op::HardLink { path, .. }
            | Op::Rename { path, .. }
            | Op::RemoveFile { path }
            | Op::RemoveDir { path }
            | Op::Identity { path }
            | Op::TryLock { path }
            | Op::Read { path, .. }
            | Op::Write { path, .. }
            | Op::SyncData { path }
            | Op::SetLen { path, .. }
            | Op::Len { path }
            | Op::FileIdentity { path }
            | Op::SyncDir { path } => path,
        }
    }

    /// Whether the call can change what a crash leaves behind. A crash at any other call leaves
    /// what a crash at the next call of this kind leaves.
    pub fn changes_disk(&self) -> bool {
        !matches!(
            self,
            Op::OpenDir { .. }
                | Op::List { .. }
                | Op::Open { .. }
                | Op::Identity { .. }
                | Op::Read { .. }
                | Op::Len { .. }
                | Op::FileIdentity { .. }
        )
    }

    /// Whether the call syncs a file or a directory.
    pub fn is_sync(&self) -> bool {
        matches!(self, Op::SyncData { .. } | Op::SyncDir { .. })
    }
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It succeeded; the number of bytes moved by a read or a write, else 0.
    Done(u64),
    /// It failed with an error of this kind.
    Failed(io::ErrorKind),
    /// It did not happen: the process had crashed or was killed.
    Crashed,
}

/// One line of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// Counts the calls to this disk from 0; never given twice.
    pub index: u64,
    /// The simulated process that called.
    pub process: u64,
    /// What was asked.
    pub op: Op,
    /// What came of it.
    pub outcome: Outcome,
}

#[derive(Debug, Default)]
pub(super) struct Trace {
    pub(super) off: bool,
    next: u64,
    calls: VecDeque<Call>,
    // Kept beside the calls, so that the count stays right when old calls are forgotten.
    syncs: BTreeMap<Arc<Path>, u64>,
}

impl Trace {
    pub(super) fn record(&mut self, process: u64, op: Op, outcome: Outcome) {
        let index = self.next;
        self.next += 1;
        if self.off {
            return;
        }
        if let (Op::SyncData { path } | Op::SyncDir { path }, Outcome::Done(_)) = (&op, outcome) {
            *self.syncs.entry(path.clone()).or_default() += 1;
        }
        if self.calls.len() >= TRACE_LIMIT {
            self.calls.pop_front();
        }
        self.calls.push_back(Call {
            index,
            process,
            op,
            outcome,
        });
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.iter().cloned().collect()
    }

    pub(super) fn clear(&mut self) {
        self.calls.clear();
        self.syncs.clear();
    }

    pub(super) fn sync_count(&self, pattern: &str) -> u64 {
        let hits = self
            .syncs
            .iter()
            .filter(|(path, _)| path.to_string_lossy().contains(pattern));
        hits.map(|(_, count)| count).sum()
    }
}
