//! A group in the making: the frames of the batches that wait, laid out as they will stand on disk,
//! with blank headers.

use std::borrow::Cow;

use super::Seq;
use super::frame::{FrameKind, HEADER, frame_len};
use super::record::{LARGE, Unstamped};
use super::ticket::Settle;
use crate::identity::SessionId;

/// A frame whose header is still blank.
#[derive(Debug)]
pub(crate) struct Blank {
    pub(crate) kind: FrameKind,
    pub(crate) session: SessionId,
    pub(crate) payload_crc: u32,
    pub(crate) payload_len: u32,
    /// A large payload, which does not stand in the buffer.
    pub(crate) moved: Option<Vec<u8>>,
}

/// What one caller wants atomic.
pub(crate) struct Batch {
    /// How many frames it has.
    pub(crate) frames: usize,
    /// Its bytes on disk.
    pub(crate) length: u64,
    /// Its bytes in the buffer: all but large payloads.
    pub(crate) buffered: usize,
    pub(crate) expected: Option<Seq>,
    /// `None` when it was settled.
    pub(crate) settle: Option<Settle>,
}

/// Batches in their order. The buffers are used again, so that appends allocate nothing in the long
/// run.
#[derive(Default)]
pub(crate) struct Group {
    /// Headers (blank), payloads that are not large, and padding.
    pub(crate) bytes: Vec<u8>,
    pub(crate) blanks: Vec<Blank>,
    pub(crate) batches: Vec<Batch>,
    /// Bytes of all of it on disk.
    pub(crate) length: u64,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("batches", &self.batches.len())
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Adds a batch; its payloads are taken.
    pub(crate) fn push(
        &mut self,
        batch: &mut [Unstamped<'_>],
        expected: Option<Seq>,
        settle: Option<Settle>,
    ) {
        let mut length = 0;
        let start = self.bytes.len();
        for unstamped in batch.iter_mut() {
            let payload = std::mem::take(&mut unstamped.payload);
            let payload_len = payload.len();
            let frame_len = frame_len(payload_len as u64);
            length += frame_len;
            self.bytes.resize(self.bytes.len() + HEADER as usize, 0);
            let moved = match payload {
                Cow::Owned(owned) if owned.len() > LARGE => Some(owned),
                small => {
                    self.bytes.extend_from_slice(&small);
                    None
                }
            };
            let padding = frame_len - HEADER - payload_len as u64;
            self.bytes.resize(self.bytes.len() + padding as usize, 0);
            self.blanks.push(Blank {
                kind: unstamped.kind,
                session: unstamped.session,
                payload_crc: unstamped.payload_crc,
                payload_len: payload_len as u32,
                moved,
            });
        }
        self.length += length;
        self.batches.push(Batch {
            frames: batch.len(),
            length,
            buffered: self.bytes.len() - start,
            expected,
            settle,
        });
    }

    /// Empties it and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.blanks.clear();
        self.batches.clear();
        self.length = 0;
    }

    /// Gives back what buffers hold beyond the usual.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        self.bytes.shrink_to(bytes);
    }
}
