//! What is left of a deleted session: the hash of its id, so that the id is not used again, and
//! nobody learns the id from it (`docs/format.md` section 10).

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::PathBuf;

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
    let mut message = DOMAIN.to_vec();
    message.extend_from_slice(id.as_bytes());
    let words = sha256(&message);
    words.iter().map(|word| format!("{word:08x}")).collect()
}

fn is_tombstone(name: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.len() == NAME && name.bytes().all(hex)
}

/// SHA-256 (FIPS 180-4) of a message that fits one block: at most 55 bytes, of which there are 32.
fn sha256(message: &[u8]) -> [u32; 8] {
    debug_assert!(message.len() <= 55, "one block");
    let mut block = message.to_vec();
    block.push(0x80);
    block.resize(56, 0);
    block.extend_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut schedule: Vec<u32> = block
        .chunks_exact(4)
        .map(|word| {
            word.iter()
                .fold(0, |word, byte| word << 8 | u32::from(*byte))
        })
        .collect();
    while schedule.len() < 64 {
        let back = |by: usize| {
            let at = schedule.len().checked_sub(by);
            at.and_then(|at| schedule.get(at)).copied().unwrap_or(0)
        };
        let (w15, w2) = (back(15), back(2));
        let s0 = w15.rotate_right(7) ^ w15.rotate_right(18) ^ w15 >> 3;
        let s1 = w2.rotate_right(17) ^ w2.rotate_right(19) ^ w2 >> 10;
        let next = back(16)
            .wrapping_add(s0)
            .wrapping_add(back(7))
            .wrapping_add(s1);
        schedule.push(next);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = START;
    for (word, constant) in schedule.iter().zip(ROUNDS) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = e & f ^ !e & g;
        let t1 = h
            .wrapping_add(s1)
            .wrapping_add(choice)
            .wrapping_add(constant)
            .wrapping_add(*word);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = a & b ^ a & c ^ b & c;
        let t2 = s0.wrapping_add(majority);
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(t2));
    }
    let mut sums = [a, b, c, d, e, f, g, h];
    for (sum, start) in sums.iter_mut().zip(START) {
        *sum = sum.wrapping_add(start);
    }
    sums
}

const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

#[rustfmt::skip]
const ROUNDS: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(message: &[u8]) -> String {
        let words = sha256(message);
        words.iter().map(|word| format!("{word:08x}")).collect()
    }

    /// The example of the standard, and what other implementations give.
    #[test]
    fn the_hash_is_sha256() {
        assert_eq!(
            hex(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(b""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        let id = SessionId::from_bytes([0x5e; 16]);
        assert_eq!(
            name(id),
            "979ba9c4c6ca0d04fef2383364ed0379640b6dee246574902b7c7756f5d5f6c3"
        );
        assert!(is_tombstone(&name(id)));
    }
}
