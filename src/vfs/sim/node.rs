//! A file: its image in the page cache, its image on the medium, and the changes between them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::content::{Content, Sector, pieces};
use super::fault::{FaultKind, eio};
use super::power::{ChoicePoint, Choose, Part, PowerLoss};

/// One unsynced change of a file.
#[derive(Debug, Clone)]
enum Change {
    Length(u64),
    /// The whole sector as it was after the write.
    Sector(u64, Sector),
}

impl Change {
    fn part(&self) -> Part {
        match self {
            Change::Length(_) => Part::Length,
            Change::Sector(index, _) => Part::Sector(*index),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct FileBody {
    pub(super) cache: Content,
    pub(super) disk: Content,
    pending: Vec<Change>,
    dirty: BTreeSet<u64>,
    shrunk: bool,
    late: Option<PowerLoss>,
    /// The handles that still have to report a failed write-back.
    unreported: BTreeMap<u64, PowerLoss>,
}

impl FileBody {
    /// A file whose contents are durable.
    pub(super) fn at_rest(content: Content) -> Self {
        FileBody {
            cache: content.clone(),
            disk: content,
            ..FileBody::default()
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.cache.len() {
            self.pending.push(Change::Length(end));
        }
        for (index, within, piece) in pieces(offset, bytes) {
            let sector = self.cache.patched(index, within, piece);
            self.cache.put(index, sector.clone());
            if !self.is_repeat(index, &sector) {
                self.dirty.insert(index);
                self.pending.push(Change::Sector(index, sector));
            }
        }
        self.cache.grow(end);
    }

    /// Whether the write leaves no choice: the medium holds the sector like this, and no unsynced
    /// write to it is in between. The cache cannot tell, it may hold what a failed sync lost. This
    /// keeps a file that is filled with zeros from having a choice for each of its sectors.
    fn is_repeat(&self, index: u64, sector: &Sector) -> bool {
        !self.shrunk && !self.dirty.contains(&index) && self.disk.sector(index) == *sector
    }

    pub(super) fn set_len(&mut self, length: u64) {
        self.shrunk |= length < self.cache.len();
        if length != self.cache.len() {
            self.pending.push(Change::Length(length));
            self.cache.set_len(length);
        }
    }

    pub(super) fn sync(
        &mut self,
        handle: u64,
        path: &Path,
        fault: Option<FaultKind>,
        others: impl Iterator<Item = u64>,
    ) -> io::Result<()> {
        if let Some(loss) = self.unreported.remove(&handle).or_else(|| self.late.take()) {
            self.lose(path, &mut loss.chooser());
            return Err(eio());
        }
        match fault {
            Some(FaultKind::SyncKept(loss)) => self.lose(path, &mut loss.chooser()),
            Some(FaultKind::SyncReverted(loss)) => {
                self.lose(path, &mut loss.chooser());
                self.cache = self.disk.clone();
            }
            Some(FaultKind::SyncLate(loss)) => {
                self.lose(path, &mut loss.chooser());
                self.late = Some(loss);
                return Ok(());
            }
            Some(FaultKind::WriteBack(loss)) => {
                self.fail_write_back(path, loss, others.filter(|other| *other != handle));
            }
            _ => {
                self.lose(path, &mut PowerLoss::KeepAll.chooser());
                return Ok(());
            }
        }
        Err(eio())
    }

    pub(super) fn fail_write_back(
        &mut self,
        path: &Path,
        loss: PowerLoss,
        handles: impl Iterator<Item = u64>,
    ) {
        self.lose(path, &mut loss.chooser());
        self.unreported.extend(handles.map(|handle| (handle, loss)));
    }

    pub(super) fn forget_handle(&mut self, handle: u64) {
        self.unreported.remove(&handle);
    }

    /// Moves the chosen changes to the medium and forgets the others; the cache stays. Of each
    /// part the first so many changes are kept, in the order in which all changes were made: what
    /// a shortening took away does not come back when the file grows again.
    pub(super) fn lose(&mut self, path: &Path, choose: &mut Choose<'_>) {
        let mut keep: BTreeMap<Part, usize> = BTreeMap::new();
        for change in &self.pending {
            *keep.entry(change.part()).or_default() += 1;
        }
        for (part, count) in &mut keep {
            let options = *count + 1;
            let point = ChoicePoint {
                path: path.to_path_buf(),
                part: *part,
                options,
            };
            *count = choose(&point).min(*count);
        }
        for change in std::mem::take(&mut self.pending) {
            let Some(left) = keep.get_mut(&change.part()).filter(|left| **left > 0) else {
                continue;
            };
            *left -= 1;
            match change {
                Change::Length(length) => self.disk.set_len(length),
                Change::Sector(index, sector) => self.disk.put(index, sector),
            }
        }
        self.disk.set_len(self.disk.len());
        self.dirty.clear();
        self.shrunk = false;
    }

    /// What a power loss does to the file.
    pub(super) fn restart(&mut self, path: &Path, choose: &mut Choose<'_>) {
        self.lose(path, choose);
        self.cache = self.disk.clone();
        self.forget_failures();
    }

    pub(super) fn forget_failures(&mut self) {
        self.late = None;
        self.unreported.clear();
    }
}
