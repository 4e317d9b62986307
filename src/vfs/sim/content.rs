//! The bytes of one image of a file, shared between images sector by sector.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The size of a sector in bytes: the unit that a power loss leaves old or new, never mixed.
pub const SECTOR: usize = 512;
const STEP: u64 = SECTOR as u64;

/// The contents of one sector; `None` is a sector of zeros, so that files filled with zeros ahead
/// cost nothing.
pub(super) type Sector = Option<Arc<[u8; SECTOR]>>;

/// One image of a file. Cloning it is cheap, and sectors are never changed in place: a clone, the
/// durable image and every unsynced version share what they have in common.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    length: u64,
    sectors: Arc<BTreeMap<u64, Arc<[u8; SECTOR]>>>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    pub(super) fn sector(&self, index: u64) -> Sector {
        self.sectors.get(&index).cloned()
    }

    pub(super) fn put(&mut self, index: u64, sector: Sector) {
        match sector {
            Some(bytes) => {
                Arc::make_mut(&mut self.sectors).insert(index, bytes);
            }
            None if self.sectors.contains_key(&index) => {
                Arc::make_mut(&mut self.sectors).remove(&index);
            }
            None => {}
        }
    }

    /// Sets the length; whatever lies behind it is gone for good, also if the file grows again.
    pub(super) fn set_len(&mut self, length: u64) {
        self.length = length;
        let first_gone = length.div_ceil(STEP);
        if self.sectors.range(first_gone..).next().is_some() {
            let _ = Arc::make_mut(&mut self.sectors).split_off(&first_gone);
        }
        let rest = (length % STEP) as usize;
        if rest > 0
            && let Some(sector) = self.sector(length / STEP)
        {
            let mut cut = *sector;
            if let Some(tail) = cut.get_mut(rest..) {
                tail.fill(0);
            }
            self.put(length / STEP, pack(&cut));
        }
    }

    /// Takes the length as it is, without dropping what lies behind it.
    pub(super) fn grow(&mut self, length: u64) {
        self.length = self.length.max(length);
    }

    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> usize {
        let end = self.length.min(offset.saturating_add(buffer.len() as u64));
        let Some(count) = end.checked_sub(offset).filter(|count| *count > 0) else {
            return 0;
        };
        let Some(target) = buffer.get_mut(..count as usize) else {
            return 0;
        };
        target.fill(0);
        for (index, sector) in self.sectors.range(offset / STEP..end.div_ceil(STEP)) {
            let start = index * STEP;
            let from = start.max(offset);
            let to = (start + STEP).min(end);
            let source = sector.get((from - start) as usize..(to - start) as usize);
            let place = target.get_mut((from - offset) as usize..(to - offset) as usize);
            if let (Some(source), Some(place)) = (source, place) {
                place.copy_from_slice(source);
            }
        }
        target.len()
    }

    /// The sector as it is once `bytes` stand at `within` in it.
    pub(super) fn patched(&self, index: u64, within: usize, bytes: &[u8]) -> Sector {
        let mut sector = [0; SECTOR];
        if bytes.len() < SECTOR
            && let Some(old) = self.sectors.get(&index)
        {
            sector = **old;
        }
        if let Some(place) = sector.get_mut(within..within + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        pack(&sector)
    }

    /// Replaces bytes without touching the length.
    pub(super) fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        for (index, within, piece) in pieces(offset, bytes) {
            let sector = self.patched(index, within, piece);
            self.put(index, sector);
        }
    }
}

fn pack(bytes: &[u8; SECTOR]) -> Sector {
    (*bytes != [0; SECTOR]).then(|| Arc::new(*bytes))
}

/// Cuts a write into (sector, place within it, bytes).
pub(super) fn pieces(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, usize, &[u8])> {
    let mut position = offset;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let within = (position % STEP) as usize;
        let (piece, behind) = rest.split_at_checked(rest.len().min(SECTOR - within))?;
        if piece.is_empty() {
            return None;
        }
        let index = position / STEP;
        position += piece.len() as u64;
        rest = behind;
        Some((index, within, piece))
    })
}
