//! The directory of a journal: its files by name, and the publication of manifests (W6, W12).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::error::{DiskError, Operation};
use super::manifest::{MAX_LEN, Manifest, ManifestFound};
use super::names::{self, Name, SegmentName};
use super::progress::Watch;
use crate::sync::Mutex;
use crate::vfs::{Access, Dir, File, FileId, Vfs};

/// Runs one disk call again as long as it is only interrupted.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Writes all bytes at an offset; short writes and interruptions are continued (W3).
pub(crate) fn write_all(
    file: &dyn File,
    path: &Path,
    mut bytes: &[u8],
    mut offset: u64,
) -> Result<(), DiskError> {
    while !bytes.is_empty() {
        let failed =
            |error: &std::io::Error| DiskError::new(Operation::Write, path, error).at(offset);
        let written =
            uninterrupted(|| file.write_at(bytes, offset)).map_err(|error| failed(&error))?;
        let rest = bytes.get(written..).filter(|_| written > 0);
        let Some(rest) = rest else {
            return Err(failed(&std::io::ErrorKind::WriteZero.into()));
        };
        bytes = rest;
        offset += written as u64;
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends; gives the number of bytes read.
pub(crate) fn read_full(
    file: &dyn File,
    path: &Path,
    buffer: &mut [u8],
    offset: u64,
) -> Result<usize, DiskError> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(filled as u64);
        let read = uninterrupted(|| file.read_at(rest, at))
            .map_err(|error| DiskError::new(Operation::Read, path, &error).at(at))?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    Ok(filled)
}

/// An open file with its path, for errors that say where.
#[derive(Debug, Clone)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn File>,
    pub(crate) path: PathBuf,
    /// Who is told what is read of it.
    pub(crate) watch: Watch,
}

impl OpenFile {
    pub(crate) fn write_all(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        write_all(&*self.file, &self.path, bytes, offset)
    }

    pub(crate) fn read_full(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        let read = read_full(&*self.file, &self.path, buffer, offset)?;
        if self.watch.read(read as u64) {
            return Ok(read);
        }
        // Told as what it is by who began the reading.
        let ended = std::io::ErrorKind::Other.into();
        Err(DiskError::new(Operation::Read, &self.path, &ended).at(offset))
    }

    /// A sync is never run again, not even when it was only interrupted (P8).
    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        self.file
            .sync_data()
            .map_err(|error| DiskError::new(Operation::Sync, &self.path, &error))
    }

    pub(crate) fn len(&self) -> Result<u64, DiskError> {
        uninterrupted(|| self.file.len())
            .map_err(|error| DiskError::new(Operation::Length, &self.path, &error))
    }

    pub(crate) fn set_len(&self, length: u64) -> Result<(), DiskError> {
        uninterrupted(|| self.file.set_len(length))
            .map_err(|error| DiskError::new(Operation::Length, &self.path, &error))
    }

    pub(crate) fn identity(&self) -> Result<FileId, DiskError> {
        uninterrupted(|| self.file.identity())
            .map_err(|error| DiskError::new(Operation::Stat, &self.path, &error))
    }
}

/// The directory of a journal. Its handle is opened before a name is made and kept until that name
/// is durable, so a failed sync is noticed here, whoever else syncs the directory (W6). While there
/// is no such name it is not held.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
    handle: Arc<Mutex<Option<Arc<dyn Dir>>>>,
    watch: Watch,
}

impl Directory {
    pub(crate) fn open(vfs: Arc<dyn Vfs>, path: &Path) -> Result<Directory, DiskError> {
        let handle = uninterrupted(|| vfs.open_dir(path))
            .map_err(|error| DiskError::new(Operation::Open, path, &error))?;
        Ok(Directory {
            vfs,
            path: path.to_owned(),
            handle: Arc::new(Mutex::new(Some(handle))),
            watch: Watch::default(),
        })
    }

    /// Whose files are watched.
    pub(crate) fn watched(self, watch: Watch) -> Directory {
        Directory { watch, ..self }
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The same for who makes no names: no handle stays open.
    pub(crate) fn open_to_read(vfs: Arc<dyn Vfs>, path: &Path) -> Result<Directory, DiskError> {
        let directory = Directory::open(vfs, path)?;
        directory.rest();
        Ok(directory)
    }

    /// The handle, opened if it is not held.
    fn hold(&self) -> Result<Arc<dyn Dir>, DiskError> {
        let mut held = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = &*held {
            return Ok(handle.clone());
        }
        let handle = uninterrupted(|| self.vfs.open_dir(&self.path))
            .map_err(|error| DiskError::new(Operation::Open, &self.path, &error))?;
        Ok(held.insert(handle).clone())
    }

    /// Gives the handle back: every name that was made and counts is durable.
    pub(crate) fn rest(&self) {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn vfs(&self) -> &Arc<dyn Vfs> {
        &self.vfs
    }

    pub(crate) fn file_path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        self.hold()?
            .sync()
            .map_err(|error| DiskError::new(Operation::SyncDirectory, &self.path, &error))
    }

    /// The files of the journal, by name.
    pub(crate) fn names(&self) -> Result<Vec<(String, Name)>, DiskError> {
        let entries = uninterrupted(|| self.vfs.list(&self.path))
            .map_err(|error| DiskError::new(Operation::List, &self.path, &error))?;
        Ok(entries
            .into_iter()
            .filter(|entry| !entry.is_dir)
            .map(|entry| {
                let name = names::parse(&entry.name);
                (entry.name, name)
            })
            .collect())
    }

    /// The same at a moment when failing would leave an outcome unknown: if another thread took the
    /// handle that was meant for it, it is waited for, a few seconds.
    fn names_after_all(&self) -> Result<Vec<(String, Name)>, DiskError> {
        let mut left = 500;
        loop {
            match self.names() {
                Err(error) if error.is_out_of_handles() && left > 0 => {
                    left -= 1;
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                listed => return listed,
            }
        }
    }

    /// Opens a file; `None` if the name is absent.
    pub(crate) fn open_file(
        &self,
        name: &str,
        access: Access,
    ) -> Result<Option<OpenFile>, DiskError> {
        let path = self.file_path(name);
        match uninterrupted(|| self.vfs.open(&path, access)) {
            Ok(file) => {
                let watch = self.watch.clone();
                Ok(Some(OpenFile { file, path, watch }))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DiskError::new(Operation::Open, &path, &error)),
        }
    }

    pub(crate) fn open_segment(
        &self,
        name: &SegmentName,
        access: Access,
    ) -> Result<Option<OpenFile>, DiskError> {
        self.open_file(&name.to_string(), access)
    }

    /// Whether a name is there, by one stat: no handle is used for it.
    pub(crate) fn exists(&self, name: &str) -> Result<bool, DiskError> {
        let path = self.file_path(name);
        match uninterrupted(|| self.vfs.identity(&path)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(DiskError::new(Operation::Stat, &path, &error)),
        }
    }

    pub(crate) fn create_file(&self, name: &str) -> Result<OpenFile, DiskError> {
        self.hold()?;
        let path = self.file_path(name);
        let file = uninterrupted(|| self.vfs.create(&path))
            .map_err(|error| DiskError::new(Operation::Create, &path, &error))?;
        let watch = self.watch.clone();
        Ok(OpenFile { file, path, watch })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), DiskError> {
        let path = self.file_path(name);
        match uninterrupted(|| self.vfs.remove_file(&path)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(DiskError::new(Operation::Remove, &path, &error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn link(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.hold()?;
        let (original, link) = (self.file_path(from), self.file_path(to));
        uninterrupted(|| self.vfs.hard_link(&original, &link))
            .map_err(|error| DiskError::new(Operation::Link, &link, &error))
    }

    /// Gives a file of another directory one more name, in this one.
    pub(crate) fn link_of(&self, other: &Directory, name: &str) -> Result<(), DiskError> {
        self.hold()?;
        let (original, link) = (other.file_path(name), self.file_path(name));
        uninterrupted(|| self.vfs.hard_link(&original, &link))
            .map_err(|error| DiskError::new(Operation::Link, &link, &error))
    }

    /// The highest manifest, read; `None` if there is none.
    pub(crate) fn highest_manifest(&self) -> Result<Option<(u64, ManifestFound)>, DiskError> {
        loop {
            let highest = self
                .names()?
                .into_iter()
                .filter_map(|(_, name)| match name {
                    Name::Manifest(number) => Some(number),
                    _ => None,
                })
                .max();
            let Some(number) = highest else {
                return Ok(None);
            };
            let Some(file) = self.open_file(&names::manifest(number), Access::Read)? else {
                // A newer owner has removed it since the listing: there is a higher one now.
                continue;
            };
            return Ok(Some((number, read_manifest(&file, number)?)));
        }
    }
}

fn read_manifest(file: &OpenFile, number: u64) -> Result<ManifestFound, DiskError> {
    let length = file.len()?;
    if length > MAX_LEN {
        return Ok(ManifestFound::Bad);
    }
    let mut bytes = vec![0; length as usize];
    let read = file.read_full(&mut bytes, 0)?;
    Ok(Manifest::decode(
        bytes.get(..read).unwrap_or_default(),
        number,
    ))
}

/// Why a manifest was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublishError {
    /// Another process published a manifest of this number or a higher one (W6).
    Overtaken,
    /// A sync failed, or the listing after the link: the manifest may or may not count.
    Sync(DiskError),
    /// Nothing was published.
    Disk(DiskError),
}

/// The last manifest that this process published, which is its right to acknowledge (W12).
#[derive(Debug)]
pub(crate) struct Ownership {
    pub(crate) manifest: Manifest,
    /// Held open, so that the identity of the file cannot be given to another. `None` while the
    /// journal is parked: nothing is acknowledged then.
    #[allow(dead_code, reason = "held for its identity")]
    file: Option<OpenFile>,
    path: PathBuf,
    identity: FileId,
}

impl Ownership {
    /// Publishes a manifest under the number after `manifest.number` says (W6): temp file, sync,
    /// directory sync, hard link that fails if the name exists, listing, directory sync.
    pub(crate) fn publish(
        directory: &Directory,
        manifest: Manifest,
        random: u64,
    ) -> Result<Ownership, PublishError> {
        let temporary = names::temporary(manifest.epoch, random);
        let name = names::manifest(manifest.number);
        let file = directory
            .create_file(&temporary)
            .map_err(PublishError::Disk)?;
        let identity = (|| {
            file.write_all(&manifest.encode(), 0)
                .map_err(PublishError::Disk)?;
            file.sync().map_err(PublishError::Sync)?;
            file.identity().map_err(PublishError::Disk)
        })();
        let identity = match identity {
            Ok(identity) => identity,
            Err(error) => {
                // The name was never linked, so removing it destroys nothing.
                let _ = directory.remove(&temporary);
                return Err(error);
            }
        };
        // IMPORTANT: this also makes the names of the files durable that the manifest lists (W6).
        directory.sync().map_err(PublishError::Sync)?;
        // The listing below needs a handle, and is too late to fail for the lack of one: this one is
        // given back for it.
        let spare = uninterrupted(|| directory.vfs.open_dir(&directory.path));
        let spare = spare.map_err(|error| {
            let _ = directory.remove(&temporary);
            PublishError::Disk(DiskError::new(Operation::Open, &directory.path, &error))
        })?;
        match directory.link(&temporary, &name) {
            Ok(()) => drop(spare),
            Err(error) => {
                let _ = directory.remove(&temporary);
                // NotFound: a new owner swept the temp file, since its epoch is below the new one.
                return Err(match error.kind {
                    std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotFound => {
                        PublishError::Overtaken
                    }
                    _ => PublishError::Disk(error),
                });
            }
        }
        // A higher number means that ours had been freed by an owner who went on: it is not ours.
        let names = directory.names_after_all().map_err(PublishError::Sync)?;
        let higher = names
            .iter()
            .any(|(_, other)| matches!(other, Name::Manifest(number) if *number > manifest.number));
        if higher {
            let _ = directory.remove(&name);
            let _ = directory.remove(&temporary);
            return Err(PublishError::Overtaken);
        }
        directory.sync().map_err(PublishError::Sync)?;
        // A left-over temp name is swept by the next opening.
        let _ = directory.remove(&temporary);
        Ok(Ownership {
            manifest,
            file: Some(file),
            path: directory.file_path(&name),
            identity,
        })
    }

    /// The same right with its file closed, for the time in which nothing is acknowledged.
    pub(crate) fn parked(&self) -> Ownership {
        Ownership {
            manifest: self.manifest.clone(),
            file: None,
            path: self.path.clone(),
            identity: self.identity,
        }
    }

    /// The right of before, with its file open again; `None` if it has gone. The identity of a file
    /// that was not held proves nothing by itself, so the contents count, and that no higher manifest
    /// was published: every opening publishes one, which is removed only for a still higher one.
    pub(crate) fn back(&self, directory: &Directory) -> Result<Option<Ownership>, DiskError> {
        let name = names::manifest(self.manifest.number);
        let Some(file) = directory.open_file(&name, Access::Read)? else {
            return Ok(None);
        };
        let ours = file.identity()? == self.identity
            && read_manifest(&file, self.manifest.number)?
                == ManifestFound::Good(self.manifest.clone());
        let higher = |(_, other): &(String, Name)| matches!(other, Name::Manifest(number) if *number > self.manifest.number);
        if !ours || directory.names()?.iter().any(higher) {
            return Ok(None);
        }
        Ok(Some(Ownership {
            file: Some(file),
            ..self.parked()
        }))
    }

    /// Whether the name of the own manifest still leads to that very file (W12).
    pub(crate) fn still_holds(&self, directory: &Directory) -> Result<bool, DiskError> {
        match uninterrupted(|| directory.vfs.identity(&self.path)) {
            Ok(identity) => Ok(identity == self.identity),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(DiskError::new(Operation::Stat, &self.path, &error)),
        }
    }

    /// Removes all manifests below the own one. On opening this comes before the scan and is
    /// followed by a directory sync: it ends the right of predecessors to acknowledge (W12).
    pub(crate) fn remove_older(&self, directory: &Directory) -> Result<(), DiskError> {
        for (name, parsed) in directory.names()? {
            if matches!(parsed, Name::Manifest(number) if number < self.manifest.number) {
                directory.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes segments, footers and temp files that are not listed and whose name carries an epoch
    /// below the own: a file of a newer owner is never swept (W6).
    pub(crate) fn sweep(&self, directory: &Directory) -> Result<(), DiskError> {
        let names: HashSet<SegmentName> = self
            .manifest
            .segments
            .iter()
            .map(|entry| entry.name)
            .collect();
        let listed = |name: &SegmentName| names.contains(name);
        for (name, parsed) in directory.names()? {
            let stale = match parsed {
                Name::Segment(segment) => segment.epoch < self.manifest.epoch && !listed(&segment),
                Name::Footer(segment) => segment.epoch < self.manifest.epoch && !listed(&segment),
                Name::Temporary { epoch } => epoch < self.manifest.epoch,
                Name::Manifest(_) | Name::Other => false,
            };
            if stale {
                directory.remove(&name)?;
            }
        }
        Ok(())
    }
}
