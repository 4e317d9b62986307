//! Damage at rest: changes that no process makes. They act on the page cache and on the medium at
//! once, count as no call, and wait for no sync.
//!
//! Unsynced writes stay what they are: a sector that has one gets its written contents back when
//! the file is synced. Damage synced disks.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::SimVfs;
use super::content::Content;
use super::disk::{Body, ROOT};
use super::node::FileBody;

impl SimVfs {
    /// All files that have a visible name, with their lengths in bytes, in the order of the paths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let disk = self.shared.lock();
        let mut found = Vec::new();
        let mut work = vec![(ROOT, PathBuf::from("/"))];
        while let Some((id, path)) = work.pop() {
            match disk.node(id).map(|node| &node.body) {
                Ok(Body::File(file)) => found.push((path, file.cache.len())),
                Ok(Body::Dir(dir)) => {
                    work.extend(dir.cache.iter().map(|(name, id)| (*id, path.join(&**name))));
                }
                Err(_) => {}
            }
        }
        found.sort();
        found
    }

    /// The contents of a file as its readers see them. `NotFound` if there is none.
    pub fn read_file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.image(path.as_ref(), |file| &file.cache)
    }

    /// The contents of a file as the medium holds them. The file is found by its visible name.
    pub fn read_durable(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        self.image(path.as_ref(), |file| &file.disk)
    }

    fn image(&self, path: &Path, which: fn(&FileBody) -> &Content) -> io::Result<Vec<u8>> {
        let disk = self.shared.lock();
        let content = which(disk.file(disk.lookup(path)?)?);
        let mut bytes =
            vec![0; usize::try_from(content.len()).map_err(|_| io::ErrorKind::OutOfMemory)?];
        content.read_at(&mut bytes, 0);
        Ok(bytes)
    }

    /// Sets the contents of a file, which is made if its name is free; its directory must exist.
    pub fn put_file(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let mut content = Content::default();
        content.overwrite(0, bytes);
        content.grow(bytes.len() as u64);
        let body = FileBody::at_rest(content);
        let mut disk = self.shared.lock();
        match disk.lookup(path.as_ref()) {
            Ok(id) => *disk.file_mut(id)? = body,
            Err(_) => {
                let (dir, name) = disk.vacant(path.as_ref())?;
                let id = disk.add_node(Body::File(body));
                disk.set_name_at_rest(dir, name, Some(id))?;
            }
        }
        Ok(())
    }

    /// Lets `change` alter the bytes of a range, once in each of the two images; the range is cut
    /// to the length of each.
    pub fn corrupt(
        &self,
        path: impl AsRef<Path>,
        range: Range<u64>,
        mut change: impl FnMut(&mut [u8]),
    ) -> io::Result<()> {
        self.at_rest(path.as_ref(), |content| {
            let end = range.end.min(content.len());
            let length = end.saturating_sub(range.start);
            let mut bytes =
                vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?];
            content.read_at(&mut bytes, range.start);
            change(&mut bytes);
            bytes.truncate(length as usize);
            content.overwrite(range.start, &bytes);
            Ok(())
        })
    }

    /// Inverts one bit, 0 being the lowest of the byte.
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: u64, bit: u8) -> io::Result<()> {
        let flip = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte ^= 1 << (bit % 8));
        self.corrupt(path, offset..offset.saturating_add(1), flip)
    }

    /// Inverts all bits of one byte.
    pub fn flip_byte(&self, path: impl AsRef<Path>, offset: u64) -> io::Result<()> {
        let flip = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = !*byte);
        self.corrupt(path, offset..offset.saturating_add(1), flip)
    }

    /// Overwrites a range with zeros.
    pub fn zero(&self, path: impl AsRef<Path>, range: Range<u64>) -> io::Result<()> {
        self.corrupt(path, range, |bytes| bytes.fill(0))
    }

    /// Sets the length of a file; new bytes are zeros.
    pub fn truncate(&self, path: impl AsRef<Path>, length: u64) -> io::Result<()> {
        self.at_rest(path.as_ref(), |content| {
            content.set_len(length);
            Ok(())
        })
    }

    /// Removes the name of a file or of an empty directory, durably.
    pub fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut disk = self.shared.lock();
        let id = disk.lookup(path.as_ref())?;
        if disk.dir(id).is_ok_and(|dir| !dir.cache.is_empty()) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let (dir, name) = disk.parent(path.as_ref())?;
        disk.set_name_at_rest(dir, name, None)
    }

    /// Frees the lock of a lock file behind the back of its owner, who goes on unaware: the
    /// takeover of a lock that was lost. Nothing happens if nobody holds it.
    pub fn break_lock(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut disk = self.shared.lock();
        let id = disk.lookup(path.as_ref())?;
        disk.locks.remove(&id);
        Ok(())
    }

    fn at_rest(
        &self,
        path: &Path,
        mut change: impl FnMut(&mut Content) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut disk = self.shared.lock();
        let id = disk.lookup(path)?;
        let file = disk.file_mut(id)?;
        change(&mut file.cache)?;
        change(&mut file.disk)
    }
}
