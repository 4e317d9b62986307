//! The calls by path.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::SimVfs;
use super::disk::{Body, Disk};
use super::fault::eperm;
use super::handle::{DEVICE, Handle, SimDir, SimFile, SimLock};
use super::names::{DirBody, parts};
use super::node::FileBody;
use super::trace::Op;
use crate::vfs::{Access, Dir, Entry, File, FileId, Holder, Lock, Vfs};

impl SimVfs {
    fn by_path<T>(
        &self,
        op: Op,
        run: impl FnOnce(&mut Disk, u64) -> io::Result<T>,
    ) -> io::Result<T> {
        let process = self.process();
        self.shared
            .call(process, op, |disk, _| run(disk, process), |_| 0)
    }

    fn open_by(
        &self,
        op: Op,
        path: Arc<Path>,
        find: impl FnOnce(&mut Disk) -> io::Result<u64>,
    ) -> io::Result<Handle> {
        let (process, id) = self.by_path(op, |disk, process| {
            let node = find(disk)?;
            Ok((process, disk.add_handle(process, node)))
        })?;
        Ok(Handle {
            shared: self.shared.clone(),
            process,
            id,
            path,
        })
    }
}

impl Vfs for SimVfs {
    fn holder(&self) -> Holder {
        Holder::simulated(u32::try_from(self.process()).unwrap_or(u32::MAX))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.by_path(Op::CreateDir { path: path.into() }, |disk, _| {
            let (dir, name) = disk.vacant(path)?;
            let node = disk.add_node(Body::Dir(DirBody::default()));
            disk.change_names(dir, vec![(name, Some(node))])
        })
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        let name: Arc<Path> = path.into();
        let handle = self.open_by(Op::OpenDir { path: name.clone() }, name, |disk| {
            let node = disk.lookup(path)?;
            disk.dir(node).map(|_| node)
        })?;
        Ok(Arc::new(SimDir { handle }))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.by_path(Op::List { path: path.into() }, |disk, _| {
            let names = &disk.dir(disk.lookup(path)?)?.cache;
            let entry = |(name, id): (&Arc<str>, &u64)| Entry {
                name: name.to_string(),
                is_dir: disk.is_dir(*id),
            };
            Ok(names.iter().map(entry).collect())
        })
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let name: Arc<Path> = path.into();
        let handle = self.open_by(Op::Create { path: name.clone() }, name, |disk| {
            create_file(disk, path)
        })?;
        Ok(Arc::new(SimFile {
            handle,
            writable: true,
        }))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn File>> {
        let name: Arc<Path> = path.into();
        let handle = self.open_by(
            Op::Open {
                path: name.clone(),
                access,
            },
            name,
            |disk| {
                let node = disk.lookup(path)?;
                disk.file(node).map(|_| node)
            },
        )?;
        Ok(Arc::new(SimFile {
            handle,
            writable: access == Access::Write,
        }))
    }

    fn hard_link(&self, original: &Path, link: &Path) -> io::Result<()> {
        let op = Op::HardLink {
            original: original.into(),
            path: link.into(),
        };
        self.by_path(op, |disk, _| {
            let node = disk.lookup(original)?;
            let (dir, name) = disk.vacant(link)?;
            if disk.is_dir(node) {
                return Err(eperm());
            }
            disk.change_names(dir, vec![(name, Some(node))])
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let op = Op::Rename {
            from: from.into(),
            path: to.into(),
        };
        self.by_path(op, |disk, _| rename(disk, from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.by_path(Op::RemoveFile { path: path.into() }, |disk, _| {
            let (dir, name) = disk.parent(path)?;
            disk.file(disk.lookup(path)?)?;
            disk.change_names(dir, vec![(name, None)])
        })
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.by_path(Op::RemoveDir { path: path.into() }, |disk, _| {
            let (dir, name) = disk.parent(path)?;
            if !disk.dir(disk.lookup(path)?)?.cache.is_empty() {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            disk.change_names(dir, vec![(name, None)])
        })
    }

    fn identity(&self, path: &Path) -> io::Result<FileId> {
        self.by_path(Op::Identity { path: path.into() }, |disk, _| {
            let node = disk.lookup(path)?;
            Ok(FileId {
                device: DEVICE,
                inode: disk.node(node)?.number,
            })
        })
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let name: Arc<Path> = path.into();
        let taken = self.by_path(Op::TryLock { path: name.clone() }, |disk, process| {
            let node = match disk.lookup(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => create_file(disk, path)?,
                found => found?,
            };
            disk.file(node)?;
            // The file is locked, not the name: who removed the name has lost the lock.
            if disk.locks.contains_key(&node) {
                return Ok(None);
            }
            let id = disk.add_handle(process, node);
            disk.locks.insert(node, id);
            Ok(Some((process, id)))
        })?;
        Ok(taken.map(|(process, id)| {
            let handle = Handle {
                shared: self.shared.clone(),
                process,
                id,
                path: name,
            };
            Box::new(SimLock { handle }) as Box<dyn Lock>
        }))
    }
}

fn create_file(disk: &mut Disk, path: &Path) -> io::Result<u64> {
    let (dir, name) = disk.vacant(path)?;
    let node = disk.add_node(Body::File(FileBody::default()));
    disk.change_names(dir, vec![(name, Some(node))])?;
    Ok(node)
}

fn rename(disk: &mut Disk, from: &Path, to: &Path) -> io::Result<()> {
    let (from_dir, from_name) = disk.parent(from)?;
    let (to_dir, to_name) = disk.parent(to)?;
    let node = disk.lookup(from)?;
    let (old_place, new_place) = (parts(from)?, parts(to)?);
    if new_place != old_place && new_place.starts_with(&old_place) && disk.is_dir(node) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if new_place != old_place && old_place.starts_with(&new_place) {
        return Err(io::ErrorKind::DirectoryNotEmpty.into());
    }
    match disk.lookup(to) {
        // Two names of one file: nothing happens, both stay.
        Ok(old) if old == node => return Ok(()),
        Ok(old) => match (disk.is_dir(node), disk.dir(old)) {
            (true, Ok(dir)) if !dir.cache.is_empty() => {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            (true, Err(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            (false, Ok(_)) => return Err(io::ErrorKind::IsADirectory.into()),
            (true, Ok(_)) | (false, Err(_)) => {}
        },
        Err(_) => {}
    }
    // The new name first, so that the file is never without one.
    if from_dir == to_dir {
        return disk.change_names(to_dir, vec![(to_name, Some(node)), (from_name, None)]);
    }
    disk.change_names(to_dir, vec![(to_name, Some(node))])?;
    disk.change_names(from_dir, vec![(from_name, None)])
}
