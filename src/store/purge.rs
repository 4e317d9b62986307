//! Removing a directory with all that is in it. Nothing is followed: a link is removed, not what it
//! leads to.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::journal::{DiskError, Operation};
use crate::vfs::{Access, Vfs};

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Removed {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl Removed {
    fn and(self, more: Removed) -> Removed {
        Removed {
            files: self.files + more.files,
            bytes: self.bytes + more.bytes,
        }
    }
}

/// How often a directory in which somebody makes files is emptied again: who finds its lock free
/// makes the lock's file.
const ATTEMPTS: usize = 8;

/// Removes all that is in a directory, the file `last` behind the others, and the directory itself.
/// Not durable before the directory around it is synced. What is gone already is no error.
pub(super) fn remove_tree(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    last: Option<&str>,
) -> Result<Removed, DiskError> {
    let mut removed = Removed::default();
    for attempt in 1.. {
        let last = last.map(|last| dir.join(last));
        removed = removed.and(empty(vfs, dir, last.as_deref())?);
        if let Some(last) = last {
            remove(vfs, &last, &mut removed)?;
        }
        match vfs.remove_dir(dir) {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && attempt < ATTEMPTS => {}
            Err(error) => return Err(DiskError::new(Operation::Remove, dir, &error)),
        }
    }
    Ok(removed)
}

/// Removes all that is in a directory, but the file `kept`.
pub(super) fn empty(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    kept: Option<&Path>,
) -> Result<Removed, DiskError> {
    let mut removed = Removed::default();
    // Each directory is met twice: to be emptied, and to be removed.
    let mut stack: Vec<(PathBuf, bool)> = vec![(dir.to_owned(), false)];
    while let Some((path, emptied)) = stack.pop() {
        if emptied {
            match vfs.remove_dir(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(DiskError::new(Operation::Remove, &path, &error));
                }
                _ => continue,
            }
        }
        let entries = match vfs.list(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            listed => listed.map_err(|error| DiskError::new(Operation::List, &path, &error))?,
        };
        if path != dir {
            stack.push((path.clone(), true));
        }
        for entry in entries {
            let inner = path.join(&entry.name);
            match entry.is_dir {
                true => stack.push((inner, false)),
                false if Some(inner.as_path()) == kept => {}
                false => remove(vfs, &inner, &mut removed)?,
            }
        }
    }
    Ok(removed)
}

fn remove(vfs: &Arc<dyn Vfs>, path: &Path, removed: &mut Removed) -> Result<(), DiskError> {
    let bytes = length(vfs, path);
    match vfs.remove_file(path) {
        Ok(()) => {
            removed.files += 1;
            removed.bytes += bytes;
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(DiskError::new(Operation::Remove, path, &error)),
    }
}

/// The length of a file; nothing for what is none, or cannot be opened.
fn length(vfs: &Arc<dyn Vfs>, path: &Path) -> u64 {
    let file = vfs.open(path, Access::Read);
    file.and_then(|file| file.len()).unwrap_or(0)
}

/// Bytes of the files in a directory and below it; what cannot be read counts nothing.
pub(super) fn size_of(vfs: &Arc<dyn Vfs>, dir: &Path) -> u64 {
    let mut bytes = 0;
    let mut stack = vec![dir.to_owned()];
    while let Some(path) = stack.pop() {
        for entry in vfs.list(&path).unwrap_or_default() {
            let inner = path.join(&entry.name);
            match entry.is_dir {
                true => stack.push(inner),
                false => bytes += length(vfs, &inner),
            }
        }
    }
    bytes
}
