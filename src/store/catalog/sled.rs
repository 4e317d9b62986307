//! sled as an index. Everything of it is here: it may panic, so it is called where panics are caught.

use std::path::Path;

use super::{Entries, IndexHarm};
use crate::identity::SessionId;

/// A bound for its cache in bytes; sled takes it as a hint.
const CACHE: u64 = 8 * 1024 * 1024;

impl From<sled::Error> for IndexHarm {
    fn from(error: sled::Error) -> IndexHarm {
        IndexHarm::Engine {
            message: error.to_string(),
        }
    }
}

/// An open database of sled.
pub(super) struct SledIndex(sled::Db);

impl SledIndex {
    pub(super) fn open(path: &Path) -> Result<SledIndex, IndexHarm> {
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE)
            // An idle store writes nothing.
            .flush_every_ms(None);
        Ok(SledIndex(config.open()?))
    }

    /// Writes out what it has, and closes it.
    pub(super) fn finish(self) -> Result<(), IndexHarm> {
        self.0.flush()?;
        Ok(())
    }

    pub(super) fn scan(&self) -> Result<Entries, IndexHarm> {
        let mut entries = Vec::new();
        for found in self.0.iter() {
            let (key, value) = found?;
            // A key that is no id is no entry.
            if let Ok(id) = <[u8; 16]>::try_from(key.as_ref()) {
                entries.push((SessionId::from_bytes(id), value.to_vec()));
            }
        }
        Ok(entries)
    }

    pub(super) fn put(&self, batch: &[(SessionId, Vec<u8>)]) -> Result<(), IndexHarm> {
        let mut all = sled::Batch::default();
        for (id, bytes) in batch {
            all.insert(id.as_bytes(), bytes.as_slice());
        }
        Ok(self.0.apply_batch(all)?)
    }

    pub(super) fn remove(&self, ids: &[SessionId]) -> Result<(), IndexHarm> {
        let mut all = sled::Batch::default();
        for id in ids {
            all.remove(id.as_bytes());
        }
        Ok(self.0.apply_batch(all)?)
    }
}
