//! Giving bodies to a fork: further names of the parent's files, in the child's directory.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;

use super::{BlobName, Blobs, fill};
use crate::journal::{DiskError, Operation, Seq, read_full, uninterrupted, write_all};
use crate::vfs::Access;

/// Bytes that are copied at once.
const PIECE: usize = 1024 * 1024;

impl Blobs {
    /// Gives the session in this directory the files that its records up to `last` may name, durable.
    /// Where the file system gives no further name, they are copied. What is lost here is lost there.
    pub(in crate::store) fn link_for(&self, session: &Path, last: Seq) -> Result<(), DiskError> {
        let to = Blobs::of(&self.vfs, session);
        let mut dir = None;
        let mut done = HashSet::new();
        loop {
            let names = self.up_to(last)?;
            let missing: Vec<&BlobName> =
                names.iter().filter(|name| !done.contains(*name)).collect();
            if missing.is_empty() {
                break;
            }
            if dir.is_none() {
                dir = Some(to.open_dir()?);
            }
            for name in missing {
                // One that is gone was renamed or given up: the next listing tells.
                if self.link(name, &to)? {
                    done.insert(*name);
                }
            }
        }
        match dir {
            Some(dir) => to.sync(&*dir),
            None => Ok(()),
        }
    }

    /// Whether the file is there.
    fn link(&self, name: &BlobName, to: &Blobs) -> Result<bool, DiskError> {
        let (from, link) = (self.path(name), to.path(name));
        match uninterrupted(|| self.vfs.hard_link(&from, &link)) {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::NotFound => Ok(false),
                ErrorKind::CrossesDevices
                | ErrorKind::PermissionDenied
                | ErrorKind::TooManyLinks
                | ErrorKind::Unsupported => self.copy_file(&from, to, &link),
                _ => Err(DiskError::new(Operation::Link, &link, &error)),
            },
        }
    }

    /// Copies a file as it is; its digest is checked by who reads it. Whether it is there.
    fn copy_file(&self, from: &Path, to: &Blobs, path: &Path) -> Result<bool, DiskError> {
        let failed = |operation, error| DiskError::new(operation, from, &error);
        let file = match uninterrupted(|| self.vfs.open(from, Access::Read)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            opened => opened.map_err(|error| failed(Operation::Open, error))?,
        };
        let copy = to.create(path)?;
        let length =
            uninterrupted(|| file.len()).map_err(|error| failed(Operation::Length, error))?;
        // Not by the length that somebody wrote there: in pieces (P14).
        let mut piece = vec![0; PIECE];
        let mut offset = 0;
        while offset < length {
            let read = read_full(&*file, from, &mut piece, offset)?;
            let Some(bytes) = piece.get(..read).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            write_all(&*copy, path, bytes, offset)?;
            offset += read as u64;
        }
        fill(&*copy, path, &[])?;
        Ok(true)
    }
}
