//! What the seam needs from Windows.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::vfs::FileId;

/// FILE_FLAG_OPEN_REPARSE_POINT: a symbolic link is opened itself, and then is no regular file.
const OPEN_REPARSE_POINT: u32 = 0x0020_0000;
/// FILE_FLAG_BACKUP_SEMANTICS: without it no directory can be opened.
const BACKUP_SEMANTICS: u32 = 0x0200_0000;

pub(super) fn create_dir(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
}

pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OPEN_REPARSE_POINT);
    options
}

pub(super) fn open_dir(path: &Path) -> io::Result<File> {
    let dir = OpenOptions::new()
        .read(true)
        .custom_flags(BACKUP_SEMANTICS)
        .open(path)?;
    // The flag lets directories be opened, but files as well.
    if !dir.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(dir)
}

pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(buffer, offset)
}

pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(bytes, offset)
}

/// NTFS journals its names, and directories cannot be flushed.
pub(super) fn sync_dir(_: &File) -> io::Result<()> {
    Ok(())
}

/// The standard library does not give the file index, so the time of creation stands for it: files
/// made in the same 100 ns are not told apart.
pub(super) fn identity(metadata: &Metadata) -> FileId {
    FileId {
        device: 0,
        inode: metadata.creation_time(),
    }
}
