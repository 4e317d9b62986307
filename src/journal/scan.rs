//! Reading the frames of one segment file, in bounded memory.

use super::directory::OpenFile;
use super::error::DiskError;
use super::frame::{self, ALIGN, HEADER, Header, Place};
use super::names::SegmentName;
use super::{FrameKind, Lsn};

/// Bytes that are read from the disk at once.
const WINDOW: usize = 256 * 1024;

/// Bytes that are read at once where one frame is wanted.
const ONE_FRAME: usize = 8 * 1024;

/// Bytes that are read at once where frames stand far from each other.
const FEW_FRAMES: usize = 1024;

/// A window into a file: gives byte strings at offsets and reads ahead.
pub(crate) struct Window {
    file: OpenFile,
    buffer: Vec<u8>,
    start: u64,
    filled: usize,
    ahead: usize,
}

impl Window {
    /// For reading on and on.
    pub(crate) fn new(file: OpenFile) -> Window {
        Window {
            file,
            buffer: Vec::new(),
            start: 0,
            filled: 0,
            ahead: WINDOW,
        }
    }

    /// For one frame.
    pub(crate) fn for_one(file: OpenFile) -> Window {
        Window {
            ahead: ONE_FRAME,
            ..Window::new(file)
        }
    }

    /// For frames that stand far from each other.
    pub(crate) fn for_few(file: OpenFile) -> Window {
        Window {
            ahead: FEW_FRAMES,
            ..Window::new(file)
        }
    }

    /// Forgets what was read, so that the next read asks the disk again.
    pub(crate) fn forget(&mut self) {
        self.filled = 0;
    }

    /// The bytes at an offset; fewer than asked for where the file ends.
    pub(crate) fn get(&mut self, offset: u64, length: usize) -> Result<&[u8], DiskError> {
        let inside = offset >= self.start
            && offset.saturating_add(length as u64)
                <= self.start.saturating_add(self.filled as u64);
        if !inside {
            let mut want = length.max(self.ahead);
            // A large frame is read for itself; the buffer grows only by what the file really has,
            // so a wild length costs no more than the file is long.
            if self.buffer.len() < want {
                let available = self.file.len()?.saturating_sub(offset);
                want = usize::try_from(available).unwrap_or(usize::MAX).min(want);
            }
            let kept = self.buffer.len().min(self.ahead);
            self.buffer.resize(want.max(kept), 0);
            let target = self.buffer.get_mut(..want).unwrap_or_default();
            self.start = offset;
            self.filled = 0;
            self.filled = self.file.read_full(target, offset)?;
        }
        let from = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let until = from.saturating_add(length).min(self.filled);
        Ok(self.buffer.get(from..until).unwrap_or_default())
    }
}

/// A frame that a scan found, with its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) offset: u64,
    pub(crate) header: Header,
}

impl Found {
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.header.frame_len())
    }
}

/// What stands at a position.
pub(crate) enum At {
    /// A frame with both checksums right.
    Frame(Header),
    /// A header that was written for this place, with a damaged payload.
    DamagedPayload(Header),
    /// Nothing that was written for this place.
    Nothing,
}

/// Looks at one position, up to the limit that a frame may not pass.
pub(crate) fn look(
    window: &mut Window,
    place: &Place,
    offset: u64,
    limit: u64,
) -> Result<At, DiskError> {
    let head = window.get(offset, HEADER as usize)?;
    let Some(header) = frame::decode_header(head, place, offset) else {
        return Ok(At::Nothing);
    };
    if offset.saturating_add(header.frame_len()) > limit {
        return Ok(At::DamagedPayload(header));
    }
    let rest = window.get(offset + HEADER, (header.frame_len() - HEADER) as usize)?;
    if frame::payload_is_intact(&header, rest) {
        Ok(At::Frame(header))
    } else {
        Ok(At::DamagedPayload(header))
    }
}

/// The frames of a segment up to the first position that fails.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Scan {
    pub(crate) frames: Vec<Found>,
    /// *p*: the first position that fails.
    pub(crate) position: u64,
    /// *n*: the Lsn expected there.
    pub(crate) expected: Lsn,
}

/// Scans from the first frame: a position holds a frame if both checksums are right for (log,
/// segment, offset), its Lsn is the expected one and its epoch is not lower than that of the frame
/// before (`docs/guarantees.md` 2).
pub(crate) fn scan(
    window: &mut Window,
    place: &Place,
    from: u64,
    base: Lsn,
    limit: u64,
) -> Result<Scan, DiskError> {
    let found = Scan {
        frames: Vec::new(),
        position: from,
        expected: base.next(),
    };
    scan_on(window, place, found, limit)
}

/// Goes on behind the frames of an earlier scan.
fn scan_on(
    window: &mut Window,
    place: &Place,
    mut found: Scan,
    limit: u64,
) -> Result<Scan, DiskError> {
    let mut epoch = found.frames.last().map_or(0, |frame| frame.header.epoch);
    while let At::Frame(header) = look(window, place, found.position, limit)? {
        if header.lsn != found.expected || header.epoch < epoch {
            break;
        }
        epoch = header.epoch;
        let frame = Found {
            offset: found.position,
            header,
        };
        found.position = frame.end();
        found.expected = header.next_lsn();
        found.frames.push(frame);
    }
    Ok(found)
}

/// Scans once more what an earlier scan found, from the group on that holds the highest Lsn which its
/// frames vouch for. What stands before that group was durable when it was read, and nobody writes
/// to it again; what follows may have changed meanwhile, or gone with a failed sync
/// (`docs/guarantees.md` 2).
pub(crate) fn scan_again(
    window: &mut Window,
    place: &Place,
    from: u64,
    base: Lsn,
    first: &Scan,
    limit: u64,
) -> Result<Scan, DiskError> {
    let frames = first.frames.iter();
    let vouched = frames.map(|frame| frame.header.watermark).max();
    let group = first
        .frames
        .iter()
        .find(|frame| Some(frame.header.lsn) == vouched)
        .map_or(base, |frame| frame.header.watermark);
    let mut found = Scan {
        frames: first.frames.clone(),
        position: from,
        expected: base.next(),
    };
    found.frames.retain(|frame| frame.header.lsn <= group);
    if let Some(last) = found.frames.last() {
        (found.position, found.expected) = (last.end(), last.header.next_lsn());
    }
    scan_on(window, place, found, limit)
}

/// The headers that were written for their place, at any aligned offset from `from` on, also with
/// damaged payloads.
pub(crate) fn search_headers(
    window: &mut Window,
    place: &Place,
    from: u64,
    limit: u64,
) -> Result<Vec<Found>, DiskError> {
    let mut found = Vec::new();
    let mut offset = from;
    while let Some(at) = next_magic(window, offset, limit)? {
        let head = window.get(at, HEADER as usize)?;
        if let Some(header) = frame::decode_header(head, place, at) {
            found.push(Found { offset: at, header });
        }
        offset = at + ALIGN;
    }
    Ok(found)
}

/// The next aligned offset where a header may stand: one that begins like a header.
fn next_magic(window: &mut Window, from: u64, limit: u64) -> Result<Option<u64>, DiskError> {
    let mut offset = from.next_multiple_of(ALIGN);
    while offset.saturating_add(HEADER) <= limit {
        let want = usize::try_from(limit - offset).map_or(WINDOW, |left| left.min(WINDOW));
        let bytes = window.get(offset, want)?;
        if bytes.len() < HEADER as usize {
            break;
        }
        let words = bytes.chunks_exact(ALIGN as usize);
        let length = (bytes.len() - words.remainder().len()) as u64;
        if let Some(index) = { words }.position(frame::begins) {
            let at = offset + index as u64 * ALIGN;
            return Ok((at.saturating_add(HEADER) <= limit).then_some(at));
        }
        offset += length;
    }
    Ok(None)
}

/// The offset behind the last byte that is not zero, from `from` on; `from` if all are zero.
pub(crate) fn last_nonzero(window: &mut Window, from: u64, limit: u64) -> Result<u64, DiskError> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut offset = from;
    let mut last = from;
    while offset < limit {
        let want = usize::try_from(limit - offset)
            .unwrap_or(WINDOW)
            .min(WINDOW);
        let bytes = window.get(offset, want)?;
        if bytes.is_empty() {
            break;
        }
        // Whole blocks of zeros are passed over at the speed of memory.
        for (index, block) in bytes.chunks(ZEROS.len()).enumerate() {
            if ZEROS.get(..block.len()) != Some(block)
                && let Some(byte) = block.iter().rposition(|byte| *byte != 0)
            {
                last = offset + (index * ZEROS.len() + byte) as u64 + 1;
            }
        }
        offset += bytes.len() as u64;
    }
    Ok(last)
}

/// Where reading goes on behind damage: the next header that was written for its place, with an Lsn
/// from `least` on. Its payload is checked when it is read, so each byte is checked once (P14).
pub(crate) fn next_header(
    window: &mut Window,
    name: &SegmentName,
    place: &Place,
    from: u64,
    least: Lsn,
    limit: u64,
) -> Result<Option<Found>, DiskError> {
    let mut next = from;
    while let Some(offset) = next_magic(window, next, limit)? {
        let head = window.get(offset, HEADER as usize)?;
        if let Some(header) = frame::decode_header(head, place, offset)
            && may_hold(name, &header)
        {
            // The same bound as in the decision: no frame can be further on than the bytes allow.
            let most = least.get().saturating_add((offset - from) / HEADER);
            let spans = matches!(header.kind, FrameKind::Erased | FrameKind::Lost);
            if header.lsn >= least && (header.lsn.get() <= most || spans) {
                return Ok(Some(Found { offset, header }));
            }
        }
        next = offset + ALIGN;
    }
    Ok(None)
}

/// Whether a file can hold a frame with this header as its own. A payload may hold the image of a
/// frame of an earlier generation, at its very place: it has the epoch of that one, while all frames
/// of a file that superseded another were stamped anew with the epoch of the file (W5, W9).
pub(crate) fn may_hold(name: &SegmentName, header: &Header) -> bool {
    match name.generation {
        0 => header.epoch <= name.epoch,
        _ => header.epoch == name.epoch,
    }
}
