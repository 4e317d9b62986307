//! The storage seam: everything above talks to the disk only through [`Vfs`].
//!
//! Three rules make the seam usable as the judge of the promises: positions are always given (no
//! shared cursor, nothing is appended by the system), names and contents are made durable by two
//! different calls ([`File::sync_data`] and [`Dir::sync`]), and every error is the bare
//! [`io::Error`] of the system, so that the journal alone decides what it means.

mod holder;
#[cfg(any(unix, windows))]
mod real;
#[cfg(feature = "sim")]
pub mod sim;
// Store::in_memory needs a disk, and no more of it.
#[cfg(not(feature = "sim"))]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "without the feature nobody crashes the disk"
)]
pub(crate) mod sim;

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use holder::Holder;
#[cfg(any(unix, windows))]
pub use real::RealVfs;

/// How many handles this process may have, where the system says so.
pub(crate) fn handle_limit() -> Option<u64> {
    #[cfg(unix)]
    return rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    #[cfg(not(unix))]
    None
}

/// Whether the system's number of an error says that no handle is left.
pub(crate) fn is_out_of_handles(code: i32) -> bool {
    #[cfg(unix)]
    let codes =
        [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(rustix::io::Errno::raw_os_error);
    // ERROR_TOO_MANY_OPEN_FILES
    #[cfg(not(unix))]
    let codes = [4];
    codes.contains(&code)
}

/// The identity of a file on its disk (device and inode): two names that lead to the same file
/// have the same identity, and a file made later under the same name has another one as long as
/// somebody holds the first open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device, or 0 where the system has no such number.
    pub device: u64,
    /// The number of the file on its device.
    pub inode: u64,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The bare name. Names that are not UTF-8 are left out of listings: we never make any.
    pub name: String,
    /// Whether it names a directory. Symbolic links are never followed and count as files.
    pub is_dir: bool,
}

/// How an existing file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only; needs no write permission.
    Read,
    /// Reading and writing.
    Write,
}

/// A file system, real or simulated.
pub trait Vfs: Debug + Send + Sync + 'static {
    /// Creates one directory (mode 0700 where modes exist); `AlreadyExists` if the name is taken.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Opens a directory, to be kept for syncing the names in it.
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>>;
    /// Lists the names in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>>;
    /// Creates a file that must not exist (mode 0600 where modes exist) and opens it for reading
    /// and writing; `AlreadyExists` if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens an existing regular file. The last part of the path is not followed when it is a
    /// symbolic link.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>>;
    /// Gives a file one more name; `AlreadyExists` if that name is taken.
    fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()>;
    /// Renames a file or directory, replacing a file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes the name of a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// The identity of the file that a name leads to, by one stat.
    fn identity(&self, path: &Path) -> io::Result<FileId>;
    /// Takes the exclusive lock of a lock file, which is created if it is absent and never removed.
    /// `None` if somebody else holds it (also another handle of this process). The lock ends when
    /// the value is dropped or the process dies.
    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;
    /// The process that uses this file system: what those are told who find a lock taken.
    fn holder(&self) -> Holder {
        Holder::this_process()
    }
}

/// An open file.
pub trait File: Debug + Send + Sync + 'static {
    /// Reads at an offset; fewer bytes than asked for may come, 0 means the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at an offset; fewer bytes than given may be taken.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Makes the contents and the length durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Changes the length; new bytes are zeros.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// The identity of this open file.
    fn identity(&self) -> io::Result<FileId>;
    /// When its contents were changed last, in nanoseconds since 1970, where the system says so.
    /// Nothing rests on it alone: clocks are set, and ticks are coarse.
    fn modified(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
}

/// An open directory.
pub trait Dir: Debug + Send + Sync + 'static {
    /// Makes the names in the directory durable.
    fn sync(&self) -> io::Result<()>;
}

/// A held lock; dropping it releases it.
pub trait Lock: Debug + Send + Sync + 'static {}
