//! Bodies that stand outside of their record, in a file of their own: the record keeps its header, and
//! in the place of the body a reference of a fixed length. Where the file is, the store knows.

use sha2::{Digest, Sha256};

use super::Kind;

/// What a record says of a body that stands outside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outside {
    /// Bytes of the body.
    pub length: u64,
    /// The SHA-256 of the body.
    pub digest: [u8; 32],
}

impl Outside {
    /// Bytes of the reference: the length (little-endian), then the digest.
    pub const BYTES: usize = 40;

    /// What a record says of this body.
    #[must_use]
    pub fn of(body: &[u8]) -> Outside {
        Outside {
            length: body.len() as u64,
            digest: Sha256::digest(body).into(),
        }
    }

    /// Whether this is the body: of this length, with this digest.
    #[must_use]
    pub fn describes(&self, body: &[u8]) -> bool {
        self.length == body.len() as u64 && *self == Outside::of(body)
    }

    pub(super) fn encode(&self) -> [u8; Outside::BYTES] {
        let mut bytes = [0; Outside::BYTES];
        let (length, digest) = bytes.split_at_mut(8);
        length.copy_from_slice(&self.length.to_le_bytes());
        digest.copy_from_slice(&self.digest);
        bytes
    }

    /// `None` unless it is exactly a reference.
    pub(super) fn decode(bytes: &[u8]) -> Option<Outside> {
        let (length, digest) = bytes.split_first_chunk::<8>()?;
        Some(Outside {
            length: u64::from_le_bytes(*length),
            digest: digest.try_into().ok()?,
        })
    }
}

/// The body of a record, or where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredBody<'a> {
    /// It stands in the record: the JSON, not checked.
    Inside(&'a [u8]),
    /// It stands in a file of its own.
    Outside(Outside),
}

impl StoredBody<'_> {
    /// Bytes of the body.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            StoredBody::Inside(body) => body.len() as u64,
            StoredBody::Outside(outside) => outside.length,
        }
    }

    /// Whether both are the same body. Where one of them stands outside the digests decide.
    #[must_use]
    pub fn is_same(&self, other: &StoredBody<'_>) -> bool {
        match (self, other) {
            (StoredBody::Inside(one), StoredBody::Inside(other)) => one == other,
            (StoredBody::Outside(one), StoredBody::Outside(other)) => one == other,
            (StoredBody::Outside(outside), StoredBody::Inside(body))
            | (StoredBody::Inside(body), StoredBody::Outside(outside)) => outside.describes(body),
        }
    }
}

impl Kind {
    /// Whether the body of such an event may stand outside of its record: what it does to the state
    /// of a session can be told from the header alone.
    #[must_use]
    pub fn may_stand_outside(self) -> bool {
        matches!(
            self,
            Kind::StepDone
                | Kind::TurnStarted
                | Kind::TurnFoldedInto
                | Kind::TurnDone
                | Kind::HostEvent
        )
    }
}
