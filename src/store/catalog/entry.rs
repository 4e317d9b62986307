//! An entry of the catalog, as bytes: a version, a checksum that the id goes into, and JSON.

use serde::{Deserialize, Serialize};

use crate::identity::{SessionId, Timestamp};
use crate::journal::{Fingerprint, Seq};
use crate::store::listed::{Listed, SessionStatus};
use crate::store::metadata::Metadata;
use crate::store::state::ForkedFrom;

const VERSION: u8 = 1;
/// Version and checksum.
const HEAD: usize = 5;
/// Largest entry in bytes; a session that would need more is read each time.
const MAX: usize = 256 * 1024;

/// What a listing said of a session, and what its log was like then.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) fingerprint: Fingerprint,
    /// Whole: no damage is kept here, it is found anew each time.
    pub(super) listed: Listed,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    fingerprint: Fingerprint,
    metadata: Metadata,
    created: Option<Timestamp>,
    last_active: Option<Timestamp>,
    status: u8,
    last_seq: u64,
    turns: u64,
    steps: u64,
    open_turns: usize,
    pending_gates: usize,
    forked: Option<(SessionId, u64)>,
    bytes: u64,
}

/// The statuses by their number in an entry.
const STATUSES: [SessionStatus; 5] = [
    SessionStatus::Idle,
    SessionStatus::Active,
    SessionStatus::Interrupted,
    SessionStatus::Failed,
    SessionStatus::Stopped,
];

impl Entry {
    /// `None` if it is larger than an entry may be.
    pub(super) fn encode(self, id: SessionId) -> Option<Vec<u8>> {
        let listed = self.listed;
        let status = STATUSES.iter().position(|known| *known == listed.status)?;
        let written = Written {
            fingerprint: self.fingerprint,
            metadata: listed.metadata,
            created: listed.created,
            last_active: listed.last_active,
            status: u8::try_from(status).ok()?,
            last_seq: listed.last_seq.get(),
            turns: listed.turns,
            steps: listed.steps,
            open_turns: listed.open_turns,
            pending_gates: listed.pending_gates,
            forked: listed.forked_from.map(ForkedFrom::parts),
            bytes: listed.bytes,
        };
        let body = serde_json::to_vec(&written).ok()?;
        let mut bytes = vec![VERSION];
        bytes.extend(checksum(id, &body).to_le_bytes());
        bytes.extend(body);
        (bytes.len() <= MAX).then_some(bytes)
    }

    /// `None` for what is no entry of this session in this version.
    pub(super) fn decode(id: SessionId, bytes: &[u8]) -> Option<Entry> {
        let (head, body) = bytes.split_at_checked(HEAD)?;
        let (version, crc) = head.split_first()?;
        let intact = crc == checksum(id, body).to_le_bytes();
        if *version != VERSION || !intact || bytes.len() > MAX {
            return None;
        }
        let written: Written = serde_json::from_slice(body).ok()?;
        let listed = Listed {
            metadata: written.metadata,
            created: written.created,
            last_active: written.last_active,
            status: *STATUSES.get(usize::from(written.status))?,
            last_seq: Seq::new(written.last_seq),
            turns: written.turns,
            steps: written.steps,
            open_turns: written.open_turns,
            pending_gates: written.pending_gates,
            forked_from: written.forked.map(ForkedFrom::of_parts),
            bytes: written.bytes,
            damage: None,
            unreadable: None,
        };
        Some(Entry {
            fingerprint: written.fingerprint,
            listed,
        })
    }
}

fn checksum(id: SessionId, body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[VERSION]);
    crc.update(id.as_bytes());
    crc.update(body);
    crc.finalize()
}
