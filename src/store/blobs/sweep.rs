//! What crashes and failed renames left: files whose record is not known.

use std::collections::HashMap;

use super::{BlobName, Blobs};
use crate::event::{Limits, StoredBody, decode_header};
use crate::identity::EventId;
use crate::journal::Seq;
use crate::store::log::Log;

impl Blobs {
    /// Settles the files that still have their first name: one that a record names gets the name of
    /// that record, one that none names is removed. Only the log from the moment on when they were
    /// made can name them, so no more of it is read, and nothing if there are none (P13).
    ///
    /// To be called under the lock, when recovery has decided which records count: then nobody else
    /// makes a file, and none of a record can be missed. Where the log is not read without an error,
    /// or a quarantined file may name them, they stay.
    pub(in crate::store) fn sweep(&self, log: &dyn Log, limits: &Limits, is_quarantined: bool) {
        let names = match self.names() {
            Ok(names) => names,
            Err(error) => return tracing::warn!(%error, "blob files are not swept"),
        };
        let mut left: HashMap<EventId, BlobName> = names
            .into_iter()
            .filter(|name| name.is_new)
            .map(|name| (name.event, name))
            .collect();
        let Some(from) = left.values().map(|name| name.seq.next()).min() else {
            return;
        };
        match self.settle_named(log, limits, from, &mut left) {
            true if !is_quarantined => left.values().for_each(|name| self.discard(name)),
            _ => {
                for name in left.values() {
                    let path = self.path(name);
                    tracing::info!(path = %path.display(), "a blob file may be named by what cannot be read; it stays");
                }
            }
        }
    }

    /// Whether the log was read to its end, or as far as is needed.
    fn settle_named(
        &self,
        log: &dyn Log,
        limits: &Limits,
        from: Seq,
        left: &mut HashMap<EventId, BlobName>,
    ) -> bool {
        for entry in log.read(from) {
            if left.is_empty() {
                return true;
            }
            let Ok(entry) = entry else { return false };
            let Ok(record) = decode_header(&entry.payload, limits) else {
                return false;
            };
            let names_it = |name: &&BlobName| {
                matches!(record.body, StoredBody::Outside(_)) && name.seq < entry.seq
            };
            // Where ids repeat, a file that has its last name is the one of its record.
            if let Some(name) = left.get(&record.event_id).filter(names_it).copied()
                && !self.is_there(&BlobName::of(entry.seq, name.event))
            {
                left.remove(&record.event_id);
                self.settle(&name, entry.seq);
            }
        }
        true
    }
}
