//! What is left of a deleted session: the hash of its id, so that the id is not used again, and
//! nobody learns the id from it (`docs/format.md` section 10).

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::{Store, create_dir};
use crate::identity::SessionId;
use crate::journal::{DiskError, Operation};

/// The directory of the tombstones.
pub(super) const DELETED: &str = "deleted";
/// Stands before the id when it is hashed.
const DOMAIN: [u8; 16] = *b"stepwell session";
/// A tombstone on its way to its name.
const TEMPORARY: &str = ".tmp";
/// Characters of a name.
const NAME: usize = 64;

impl Store {
    fn tombstone(&self, id: SessionId) -> PathBuf {
        self.inner.dir.join(DELETED).join(name(id))
    }

    /// Whether the session was deleted; one stat.
    pub(super) fn is_deleted(&self, id: SessionId) -> Result<bool, DiskError> {
        let path = self.tombstone(id);
        match self.inner.vfs.identity(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(DiskError::new(Operation::Stat, &path, &error)),
        }
    }

    /// The names of all tombstones.
    pub(super) fn tombstones(&self) -> Result<HashSet<String>, DiskError> {
        let dir = self.inner.dir.join(DELETED);
        let entries = match self.inner.vfs.list(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(HashSet::new()),
            listed => listed.map_err(|error| DiskError::new(Operation::List, &dir, &error))?,
        };
        let names = entries.into_iter().map(|entry| entry.name);
        Ok(names.filter(|name| is_tombstone(name)).collect())
    }

    /// Makes the tombstone, durable; called with the session's lock held. One that is there already
    /// may be from somebody who was cut off before it was durable, or whose sync failed: it is made
    /// anew, so that this sync speaks of it.
    pub(super) fn make_tombstone(&self, id: SessionId) -> Result<(), DiskError> {
        self.make_tombstone_of(&name(id))
    }

    pub(super) fn make_tombstone_of(&self, name: &str) -> Result<(), DiskError> {
        let vfs = &self.inner.vfs;
        let dir = self.inner.dir.join(DELETED);
        create_dir(vfs, &dir)?;
        let handle = vfs.open_dir(&dir);
        let handle = handle.map_err(|error| DiskError::new(Operation::Open, &dir, &error))?;
        let temporary = dir.join(format!("{name}{TEMPORARY}"));
        match vfs.create(&temporary) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(DiskError::new(Operation::Create, &temporary, &error));
            }
            _ => {}
        }
        let path = dir.join(name);
        vfs.rename(&temporary, &path)
            .map_err(|error| DiskError::new(Operation::Rename, &path, &error))?;
        handle
            .sync()
            .map_err(|error| DiskError::new(Operation::SyncDirectory, &dir, &error))
    }
}

/// The name of a session's tombstone: SHA-256 over the domain and the 16 bytes of the id, in hex.
pub(super) fn name(id: SessionId) -> String {
    let hash = Sha256::new_with_prefix(DOMAIN).chain_update(id.as_bytes());
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_tombstone(name: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.len() == NAME && name.bytes().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As any other implementation names it (`docs/format.md` section 10).
    #[test]
    fn a_name_is_the_sha256_of_the_domain_and_the_id() {
        let id = SessionId::from_bytes([0x5e; 16]);
        assert_eq!(
            name(id),
            "979ba9c4c6ca0d04fef2383364ed0379640b6dee246574902b7c7756f5d5f6c3"
        );
        assert!(is_tombstone(&name(id)));
    }
}
