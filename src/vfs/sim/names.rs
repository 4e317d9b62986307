//! Names: how paths lead to nodes, and how changes of directories become durable.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use super::disk::{Disk, ROOT};
use super::fault::{FaultKind, eio};
use super::power::{ChoicePoint, Choose, Part};

const NAME_LIMIT: usize = 255;

pub(super) type Names = BTreeMap<Arc<str>, u64>;
/// Names of one directory that change together: to a node, or away.
pub(super) type NameChange = Vec<(Arc<str>, Option<u64>)>;

#[derive(Debug, Clone, Default)]
pub(super) struct DirBody {
    pub(super) cache: Names,
    pub(super) disk: Names,
    pub(super) pending: Vec<NameChange>,
    /// The handles that still have to report a failed sync.
    pub(super) unreported: BTreeSet<u64>,
}

impl DirBody {
    pub(super) fn stored_names(&self) -> impl Iterator<Item = u64> {
        let pending = self
            .pending
            .iter()
            .flatten()
            .filter_map(|(_, target)| *target);
        self.disk.values().copied().chain(pending)
    }
}

impl Disk {
    pub(super) fn lookup(&self, path: &Path) -> io::Result<u64> {
        let mut node = ROOT;
        for name in parts(path)? {
            node = *self.dir(node)?.cache.get(name).ok_or_else(missing)?;
        }
        Ok(node)
    }

    /// The directory of a path and the bare name in it.
    pub(super) fn parent(&self, path: &Path) -> io::Result<(u64, Arc<str>)> {
        let mut names = parts(path)?;
        let Some(last) = names.pop() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut node = ROOT;
        for name in names {
            node = *self.dir(node)?.cache.get(name).ok_or_else(missing)?;
        }
        self.dir(node)?;
        if last.len() > NAME_LIMIT {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        Ok((node, last.into()))
    }

    /// The place of a new name.
    pub(super) fn vacant(&self, path: &Path) -> io::Result<(u64, Arc<str>)> {
        if parts(path)?.is_empty() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (dir, name) = self.parent(path)?;
        if self.dir(dir)?.cache.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok((dir, name))
    }

    /// Changes names in the page cache and remembers the change until the directory is synced.
    pub(super) fn change_names(&mut self, dir: u64, change: NameChange) -> io::Result<()> {
        for (name, target) in &change {
            let names = &mut self.dir_mut(dir)?.cache;
            let old = match target {
                Some(id) => names.insert(name.clone(), *id),
                None => names.remove(name),
            };
            if let Some(id) = target {
                self.count(*id, |node| (&mut node.visible, 1));
                self.count(*id, |node| (&mut node.stored, 1));
            }
            if let Some(id) = old {
                self.count(id, |node| (&mut node.visible, -1));
            }
        }
        self.dir_mut(dir)?.pending.push(change);
        Ok(())
    }

    pub(super) fn sync_dir(
        &mut self,
        handle: u64,
        dir: u64,
        path: &Path,
        fault: Option<FaultKind>,
    ) -> io::Result<()> {
        if self.dir_mut(dir)?.unreported.remove(&handle) {
            return Err(eio());
        }
        let Some(FaultKind::DirSync(loss)) = fault else {
            return self.lose_names(dir, path, &mut |point| point.options - 1);
        };
        self.lose_names(dir, path, &mut loss.chooser())?;
        let others = self
            .handles_of(dir)
            .into_iter()
            .filter(|other| *other != handle);
        self.dir_mut(dir)?.unreported.extend(others);
        Err(eio())
    }

    /// Moves the chosen changes of a directory to the medium and forgets the others.
    pub(super) fn lose_names(
        &mut self,
        dir: u64,
        path: &Path,
        choose: &mut Choose<'_>,
    ) -> io::Result<()> {
        for change in std::mem::take(&mut self.dir_mut(dir)?.pending) {
            let Some((first, _)) = change.first() else {
                continue;
            };
            let point = ChoicePoint {
                path: path.join(&**first),
                part: Part::Name,
                options: 2,
            };
            let keep = choose(&point) > 0;
            for (name, target) in change {
                if keep {
                    self.store_name(dir, name, target)?;
                }
                if let Some(id) = target {
                    self.count(id, |node| (&mut node.stored, -1));
                }
            }
        }
        Ok(())
    }

    fn store_name(&mut self, dir: u64, name: Arc<str>, target: Option<u64>) -> io::Result<()> {
        let names = &mut self.dir_mut(dir)?.disk;
        let old = match target {
            Some(id) => names.insert(name, id),
            None => names.remove(&name),
        };
        if let Some(id) = target {
            self.count(id, |node| (&mut node.stored, 1));
        }
        if let Some(id) = old {
            self.count(id, |node| (&mut node.stored, -1));
        }
        Ok(())
    }

    /// Makes one name lead to a node, or to nothing, on the medium too: whatever was unsynced about
    /// that name is settled.
    pub(super) fn set_name_at_rest(
        &mut self,
        dir: u64,
        name: Arc<str>,
        target: Option<u64>,
    ) -> io::Result<()> {
        self.change_names(dir, vec![(name.clone(), target)])?;
        self.store_name(dir, name.clone(), target)?;
        let mut dropped = Vec::new();
        for change in &mut self.dir_mut(dir)?.pending {
            dropped.extend(change.extract_if(.., |(other, _)| *other == name));
        }
        for id in dropped.into_iter().filter_map(|(_, target)| target) {
            self.count(id, |node| (&mut node.stored, -1));
        }
        Ok(())
    }
}

pub(super) fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

/// The names of a path from the root; `.` and `..` are resolved by the text alone.
pub(super) fn parts(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
            Component::ParentDir => {
                names.pop();
            }
            Component::Normal(name) => {
                names.push(name.to_str().ok_or(io::ErrorKind::InvalidInput)?);
            }
        }
    }
    Ok(names)
}
