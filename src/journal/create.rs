//! Making segment files: static header, slots, frames, and zeros up to the capacity (W4).

use super::Lsn;
use super::directory::{Directory, OpenFile};
use super::error::{DiskError, Operation};
use super::frame::{self, HEADER, Header, Place};
use super::names::SegmentName;
use super::scan::{Found, Window};
use super::segment::{FRAMES, SLOTS, Slot, StaticHeader};

/// Bytes that are written to the disk at once while a file is made.
const CHUNK: usize = 1024 * 1024;

/// Why a new file was not made. The file is not named anywhere yet.
#[derive(Debug)]
pub(crate) enum MakeError {
    /// Creating or writing failed; what was made is removed again.
    Disk(DiskError),
    /// The sync failed: it poisons (W10).
    Sync(DiskError),
    /// A payload that was right a moment ago is not any more; gives the offset in the old file.
    Damaged(u64),
}

/// An empty segment in the making: it can be made piece by piece.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) header: StaticHeader,
    file: OpenFile,
    written: u64,
    zeros: Vec<u8>,
}

/// Bytes of one write call of zeros.
const ZEROS: usize = 64 * 1024;

impl Filling {
    /// Creates the file and writes its static header.
    pub(crate) fn begin(directory: &Directory, header: StaticHeader) -> Result<Filling, MakeError> {
        let file = directory
            .create_file(&header.name.to_string())
            .map_err(MakeError::Disk)?;
        let mut filling = Filling {
            header,
            file,
            written: 0,
            zeros: vec![0; ZEROS],
        };
        let bytes = header.encode();
        match filling.write(directory, &bytes) {
            Ok(()) => Ok(filling),
            Err(error) => Err(error),
        }
    }

    /// Writes the next piece of zeros. Whether there is more to write.
    pub(crate) fn fill(&mut self, directory: &Directory, piece: u64) -> Result<bool, MakeError> {
        let end = FRAMES + self.header.capacity;
        let until = end.min(self.written.saturating_add(piece));
        let zeros = std::mem::take(&mut self.zeros);
        while self.written < until {
            let left = usize::try_from(until - self.written).unwrap_or(ZEROS);
            let zeros = zeros.get(..left.min(ZEROS)).unwrap_or(&zeros);
            self.write(directory, zeros)?;
        }
        self.zeros = zeros;
        Ok(self.written < end)
    }

    /// The share that is written, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.written as f64 / (FRAMES + self.header.capacity) as f64
    }

    /// Makes what was written so far durable.
    pub(crate) fn sync(&self) -> Result<(), MakeError> {
        self.file.sync().map_err(MakeError::Sync)
    }

    /// The file, when it is whole.
    pub(crate) fn into_file(self) -> OpenFile {
        self.file
    }

    /// Removes what was made: nothing names the file.
    pub(crate) fn abandon(&self, directory: &Directory) {
        remove_unnamed(directory, &self.header.name);
    }

    fn write(&mut self, directory: &Directory, bytes: &[u8]) -> Result<(), MakeError> {
        match self.file.write_all(bytes, self.written) {
            Ok(()) => {
                self.written += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.abandon(directory);
                Err(MakeError::Disk(error))
            }
        }
    }
}

/// Removes a file that nothing names, which destroys no evidence; if it cannot be removed now, the
/// next opening sweeps it.
pub(crate) fn remove_unnamed(directory: &Directory, name: &SegmentName) {
    if let Err(error) = directory.remove(&name.to_string()) {
        tracing::debug!(%error, "an unused file stays until the next opening");
    }
}

/// Makes an empty segment at once, zeroed to its capacity and synced.
pub(crate) fn empty_segment(
    directory: &Directory,
    header: &StaticHeader,
) -> Result<OpenFile, MakeError> {
    let mut filling = Filling::begin(directory, *header)?;
    filling.fill(directory, u64::MAX)?;
    filling.sync()?;
    Ok(filling.into_file())
}

/// One frame to be copied: where it stands in the old file, and its header in the new one.
pub(crate) struct Copy {
    pub(crate) from: Found,
    pub(crate) header: Header,
}

/// Makes a segment that holds copied frames one after the other, with both slots carrying the
/// watermark of the decision, zeroed to its capacity and synced. Gives the places of the frames.
pub(crate) fn segment_of(
    directory: &Directory,
    header: &StaticHeader,
    watermark: Lsn,
    old: &OpenFile,
    copies: &[Copy],
) -> Result<(OpenFile, Vec<Found>), MakeError> {
    let place = Place {
        log: header.log,
        segment: header.name.number,
    };
    let mut placed = Vec::with_capacity(copies.len());
    let mut window = Window::new(old.clone());
    let tail = copies
        .iter()
        .fold(FRAMES, |tail, copy| tail + copy.header.frame_len());
    let file = make(directory, &header.name, |writer| {
        writer.put(&header.encode())?;
        for offset in SLOTS {
            writer.zeros_to(offset)?;
            let slot = Slot {
                watermark,
                tail,
                epoch: header.name.epoch,
                clean: false,
            };
            writer.put(&slot.encode(&place, offset))?;
        }
        writer.zeros_to(FRAMES)?;
        for copy in copies {
            let offset = writer.position();
            let length = copy.from.header.frame_len() - HEADER;
            let rest = window
                .get(copy.from.offset + HEADER, length as usize)
                .map_err(MakeError::Disk)?;
            let payload = rest
                .get(..copy.header.payload_len as usize)
                .filter(|_| frame::payload_is_intact(&copy.from.header, rest))
                .ok_or(MakeError::Damaged(copy.from.offset))?;
            let mut bytes = Vec::with_capacity(copy.header.frame_len() as usize);
            frame::encode(&mut bytes, &place, offset, &copy.header, payload);
            writer.put(&bytes)?;
            placed.push(Found {
                offset,
                header: copy.header,
            });
        }
        writer.zeros_to(FRAMES + header.capacity)
    })?;
    Ok((file, placed))
}

/// Makes a small file whole and syncs it.
pub(crate) fn small_file(directory: &Directory, name: &str, bytes: &[u8]) -> Result<(), MakeError> {
    let file = directory.create_file(name).map_err(MakeError::Disk)?;
    file.write_all(bytes, 0).map_err(MakeError::Disk)?;
    file.sync().map_err(MakeError::Sync)
}

fn make(
    directory: &Directory,
    name: &SegmentName,
    fill: impl FnOnce(&mut Writer) -> Result<(), MakeError>,
) -> Result<OpenFile, MakeError> {
    let file = directory
        .create_file(&name.to_string())
        .map_err(MakeError::Disk)?;
    let mut writer = Writer {
        file: &file,
        buffer: Vec::with_capacity(CHUNK.min(64 * 1024)),
        written: 0,
    };
    let filled = fill(&mut writer).and_then(|()| writer.flush());
    let made = filled.and_then(|()| file.sync().map_err(MakeError::Sync));
    match made {
        Ok(()) => Ok(file),
        Err(error) => {
            if !matches!(error, MakeError::Sync(_)) {
                remove_unnamed(directory, name);
            }
            Err(error)
        }
    }
}

/// Writes a file from its beginning to its end in large pieces.
struct Writer<'a> {
    file: &'a OpenFile,
    buffer: Vec<u8>,
    written: u64,
}

impl Writer<'_> {
    fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), MakeError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }

    fn zeros_to(&mut self, offset: u64) -> Result<(), MakeError> {
        while self.position() < offset {
            let missing = usize::try_from(offset - self.position()).unwrap_or(CHUNK);
            let room = CHUNK.saturating_sub(self.buffer.len()).max(1);
            self.buffer.resize(self.buffer.len() + missing.min(room), 0);
            if self.buffer.len() >= CHUNK {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MakeError> {
        self.file
            .write_all(&self.buffer, self.written)
            .map_err(MakeError::Disk)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

impl MakeError {
    /// The error of a segment whose capacity cannot be made.
    pub(crate) fn disk(self, path: &std::path::Path) -> DiskError {
        match self {
            MakeError::Disk(error) | MakeError::Sync(error) => error,
            MakeError::Damaged(offset) => DiskError::new(
                Operation::Read,
                path,
                &std::io::ErrorKind::InvalidData.into(),
            )
            .at(offset),
        }
    }
}
