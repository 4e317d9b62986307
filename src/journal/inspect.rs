//! Looking into one file of a journal, also a damaged one, for people: what stands where. Nothing is
//! decided and nothing is written; the log id is used and never given out (W5).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::OpenFile;
use super::error::{DiskError, Operation};
use super::evidence::{read_seal, read_slot, read_static_header};
use super::footer::{self, Footer};
use super::frame::{ALIGN, HEADER, Header, Place, decode_header};
use super::lenient::{Lenient, UnreadableBlock};
use super::manifest::{MAX_LEN, Manifest, ManifestFound};
use super::names::{self, Name, SegmentName};
use super::progress::Watch;
use super::scan::{At, Window, look};
use super::segment::{CLAIM_LEN, FRAMES, HeaderFound, MAX_CAPACITY, SEAL, SLOTS};
use super::{FrameKind, Lsn, Seq};
use crate::identity::SessionId;
use crate::vfs::{Access, Vfs};

/// One thing that stands in a file, in the order of their offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// A manifest that is whole.
    Manifest {
        /// Its number; its name should bear it.
        number: u64,
        /// The epoch.
        epoch: u64,
        /// The session that owns the journal; nil if many share it.
        owner: SessionId,
        /// Largest payload in bytes.
        max_payload: u32,
        /// The segments that it lists, each with its end (offset and last Lsn) if that is named.
        segments: Vec<(SegmentName, Option<(u64, Lsn)>)>,
    },
    /// The static header of a segment.
    Header {
        /// The segment; the name of the file should be this.
        name: SegmentName,
        /// Bytes for frames.
        capacity: u64,
    },
    /// The first block (or the whole manifest, or footer) was written by a newer version.
    Newer {
        /// Its format version.
        version: u32,
    },
    /// The file, or its first block, is not what it should be.
    Damaged {
        /// What it should be.
        what: &'static str,
        /// Where.
        offset: u64,
    },
    /// A witness slot.
    Slot {
        /// Where.
        offset: u64,
        /// Everything up to here is durable.
        watermark: Lsn,
        /// Offset behind the last frame.
        tail: u64,
        /// Who wrote it.
        epoch: u64,
        /// Whether the journal was closed cleanly.
        clean: bool,
    },
    /// A slot or a seal that was never written.
    Blank {
        /// What it would be.
        what: &'static str,
        /// Where.
        offset: u64,
    },
    /// The seal.
    Seal {
        /// Offset behind the last frame.
        end: u64,
        /// The last Lsn.
        last: Lsn,
        /// The number of frames.
        count: u64,
        /// Where the footer stands, and how long it is.
        footer: Option<(u64, u32)>,
        /// Who wrote it.
        epoch: u64,
    },
    /// A frame whose header is intact.
    Frame(InspectedFrame),
    /// Bytes in which no header is intact.
    Unknown {
        /// Where they begin.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Whether all of them are zero.
        zeros: bool,
    },
    /// A footer that is whole.
    Footer {
        /// Where.
        offset: u64,
        /// Last Lsn before the segment.
        base: Lsn,
        /// Last Lsn of the segment.
        last: Lsn,
        /// The sessions in it, with first and last Seq.
        sessions: Vec<(SessionId, Seq, Seq)>,
        /// Entries of its index.
        index: usize,
        /// Bytes of its carry record.
        carry: usize,
    },
    /// A block that the disk does not give; it was read as zeros.
    Unreadable(UnreadableBlock),
}

/// A frame, as its header says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InspectedFrame {
    /// Where it stands.
    pub offset: u64,
    /// Its bytes on disk, padding included.
    pub bytes: u64,
    /// Its place in the journal.
    pub lsn: Lsn,
    /// Its place in the session; for a gap, the number of Lsns that it stands for.
    pub seq: Seq,
    /// The session; nil for a fence.
    pub session: SessionId,
    /// The session's record before this one.
    pub previous: Lsn,
    /// What it is.
    pub kind: FrameKind,
    /// The opening that wrote it.
    pub epoch: u64,
    /// The highest Lsn known durable when it was written.
    pub watermark: Lsn,
    /// Its index in its batch, and the number of frames of the batch.
    pub batch: (u16, u16),
    /// Bytes of the payload.
    pub payload_len: u32,
    /// Whether the payload is what was written.
    pub intact: bool,
    /// Whether its Lsn follows on the frame before it in the file.
    pub follows: bool,
    /// The beginning of the payload, as much as was asked for.
    pub payload: Vec<u8>,
}

/// Why a file could not be looked into.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The disk failed.
    #[error("{0}")]
    Disk(DiskError),
    /// It is no manifest, segment or footer.
    #[error("{} is no manifest, segment or footer of a journal", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// The checksums of its frames need the log id, and its header does not give it.
    #[error("what {} holds can only be checked with its journal's manifest; give that too", path.display())]
    NeedsManifest {
        /// The file.
        path: PathBuf,
    },
    /// The manifest that was given cannot be read.
    #[error("{} is no manifest that can be read", path.display())]
    BadManifest {
        /// The manifest.
        path: PathBuf,
    },
}

/// Reads a file and gives its parts until `each` breaks. `manifest` is a manifest of the journal: it
/// is needed for a segment whose header is damaged, and for a footer without its segment beside it.
/// Up to `payload` bytes of each record are given.
///
/// # Errors
/// [`InspectError`]; damage is a part, not an error.
pub fn inspect(
    vfs: Arc<dyn Vfs>,
    path: &Path,
    manifest: Option<&Path>,
    payload: usize,
    each: impl FnMut(Part) -> ControlFlow<()>,
) -> Result<(), InspectError> {
    let lenient = Lenient::new(vfs);
    let mut inspection = Inspection {
        file: open(&lenient, path)?,
        vfs: &lenient,
        payload,
        each,
    };
    let done = inspection.file_parts(path, manifest)?;
    for block in lenient.unreadable() {
        if done.is_break() || (inspection.each)(Part::Unreadable(block)).is_break() {
            break;
        }
    }
    Ok(())
}

type Done = Result<ControlFlow<()>, InspectError>;

fn open(vfs: &Lenient, path: &Path) -> Result<OpenFile, InspectError> {
    let file = vfs
        .open(path, Access::Read)
        .map_err(|error| InspectError::Disk(DiskError::new(Operation::Open, path, &error)))?;
    Ok(OpenFile {
        file,
        path: path.to_owned(),
        watch: Watch::default(),
    })
}

fn read_manifest(file: &OpenFile) -> Result<ManifestFound, InspectError> {
    let length = file.len().map_err(InspectError::Disk)?.min(MAX_LEN + 1);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = file.read_full(&mut bytes, 0).map_err(InspectError::Disk)?;
    let bytes = bytes.get(..read).unwrap_or_default();
    // The number stands in it too: the file may bear another name by now.
    let mut at = 56;
    let number = super::bytes::take_u64(bytes, &mut at).unwrap_or(0);
    Ok(Manifest::decode(bytes, number))
}

struct Inspection<'a, F> {
    file: OpenFile,
    vfs: &'a Lenient,
    payload: usize,
    each: F,
}

impl<F: FnMut(Part) -> ControlFlow<()>> Inspection<'_, F> {
    fn file_parts(&mut self, path: &Path, manifest: Option<&Path>) -> Done {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.map_or(Name::Other, names::parse);
        let mut magic = [0; 8];
        self.file
            .read_full(&mut magic, 0)
            .map_err(InspectError::Disk)?;
        match (&magic, name) {
            (b"STEPMAN\0", _) | (_, Name::Manifest(_)) => self.manifest(),
            (_, Name::Footer(name)) => self.footer_file(path, &name, manifest),
            (_, Name::Segment(name)) => self.segment(path, Some(name), manifest),
            (b"STEPSEG\0", _) => self.segment(path, None, manifest),
            _ => Err(InspectError::NotOurs {
                path: path.to_owned(),
            }),
        }
    }

    fn give(&mut self, part: Part) -> ControlFlow<()> {
        (self.each)(part)
    }

    fn manifest(&mut self) -> Done {
        let part = match read_manifest(&self.file)? {
            ManifestFound::Good(manifest) => Part::Manifest {
                number: manifest.number,
                epoch: manifest.epoch,
                owner: manifest.owner,
                max_payload: manifest.max_payload,
                segments: manifest
                    .segments
                    .iter()
                    .map(|entry| (entry.name, entry.end.map(|end| (end.offset, end.last))))
                    .collect(),
            },
            ManifestFound::Newer(version) => Part::Newer { version },
            ManifestFound::Bad => Part::Damaged {
                what: "manifest",
                offset: 0,
            },
        };
        Ok(self.give(part))
    }

    /// The place of a segment's frames by a manifest.
    fn place(
        &self,
        path: &Path,
        name: Option<SegmentName>,
        manifest: Option<&Path>,
    ) -> Result<Place, InspectError> {
        let (Some(name), Some(manifest)) = (name, manifest) else {
            return Err(InspectError::NeedsManifest {
                path: path.to_owned(),
            });
        };
        let ManifestFound::Good(found) = read_manifest(&open(self.vfs, manifest)?)? else {
            return Err(InspectError::BadManifest {
                path: manifest.to_owned(),
            });
        };
        let listed = found.segments.iter().find(|entry| entry.name == name);
        Ok(Place {
            log: listed.map_or(found.log, |entry| entry.log),
            segment: name.number,
        })
    }

    fn footer_file(&mut self, path: &Path, name: &SegmentName, manifest: Option<&Path>) -> Done {
        let beside = path.with_file_name(name.to_string());
        let beside = open(self.vfs, &beside).ok();
        let header = beside.and_then(|file| read_static_header(&file).ok());
        let place = match header {
            Some(HeaderFound::Good(header)) if manifest.is_none() => Place {
                log: header.log,
                segment: name.number,
            },
            _ => self.place(path, Some(*name), manifest)?,
        };
        let length = self.file.len().map_err(InspectError::Disk)?;
        self.footer(&place, 0, u32::try_from(length).unwrap_or(u32::MAX))
    }

    fn footer(&mut self, place: &Place, offset: u64, length: u32) -> Done {
        let found = footer::read(&self.file, place, offset, length).map_err(InspectError::Disk)?;
        let part = match found {
            Some(footer) => footer_part(offset, &footer),
            None => Part::Damaged {
                what: "footer",
                offset,
            },
        };
        Ok(self.give(part))
    }

    fn segment(&mut self, path: &Path, name: Option<SegmentName>, manifest: Option<&Path>) -> Done {
        let header = read_static_header(&self.file).map_err(InspectError::Disk)?;
        let (part, place) = match header {
            HeaderFound::Good(header) => (
                Part::Header {
                    name: header.name,
                    capacity: header.capacity,
                },
                Ok(Place {
                    log: header.log,
                    segment: header.name.number,
                }),
            ),
            HeaderFound::Newer(version) => return Ok(self.give(Part::Newer { version })),
            HeaderFound::Bad => (
                Part::Damaged {
                    what: "static header",
                    offset: 0,
                },
                self.place(path, name, manifest),
            ),
        };
        if self.give(part).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let place = place?;
        self.claims(&place)
    }

    /// Slots, seal, frames, footer.
    fn claims(&mut self, place: &Place) -> Done {
        for offset in SLOTS {
            let slot = read_slot(&self.file, place, offset).map_err(InspectError::Disk)?;
            let part = match slot {
                Some(slot) => Part::Slot {
                    offset,
                    watermark: slot.watermark,
                    tail: slot.tail,
                    epoch: slot.epoch,
                    clean: slot.clean,
                },
                None => self.no_claim("witness slot", offset)?,
            };
            if self.give(part).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let seal = read_seal(&self.file, place).map_err(InspectError::Disk)?;
        let part = match seal {
            Some(seal) => Part::Seal {
                end: seal.end,
                last: seal.last,
                count: seal.count,
                footer: seal.footer,
                epoch: seal.epoch,
            },
            None => self.no_claim("seal", SEAL)?,
        };
        if self.give(part).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let length = self.file.len().map_err(InspectError::Disk)?;
        let length = length.min(FRAMES.saturating_add(MAX_CAPACITY));
        let limit = seal.map_or(length, |seal| seal.end.min(length));
        if self.frames(place, limit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        match seal.and_then(|seal| seal.footer) {
            Some((offset, length)) => self.footer(place, offset, length),
            None => Ok(ControlFlow::Continue(())),
        }
    }

    fn no_claim(&self, what: &'static str, offset: u64) -> Result<Part, InspectError> {
        let mut claim = [0; CLAIM_LEN];
        self.file
            .read_full(&mut claim, offset)
            .map_err(InspectError::Disk)?;
        Ok(match claim.iter().all(|byte| *byte == 0) {
            true => Part::Blank { what, offset },
            false => Part::Damaged { what, offset },
        })
    }

    fn frames(&mut self, place: &Place, limit: u64) -> Done {
        let mut window = Window::new(self.file.clone());
        let mut offset = FRAMES;
        let mut expected: Option<Lsn> = None;
        while offset < limit {
            let found = look(&mut window, place, offset, limit).map_err(InspectError::Disk)?;
            let (header, intact) = match found {
                At::Frame(header) => (header, true),
                At::DamagedPayload(header) => (header, false),
                At::Nothing => {
                    let part = unknown(&mut window, place, offset, limit)?;
                    if let Part::Unknown { bytes, .. } = part {
                        offset += bytes.max(ALIGN);
                    }
                    if self.give(part).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    continue;
                }
            };
            let follows = expected.is_none_or(|expected| header.lsn == expected);
            expected = Some(header.next_lsn());
            let frame = self.frame(&mut window, offset, &header, intact, follows)?;
            // A damaged payload may hide where the frame ends only if it reaches too far.
            let end = offset.saturating_add(header.frame_len());
            offset = if end <= limit { end } else { offset + HEADER };
            if self.give(Part::Frame(frame)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn frame(
        &self,
        window: &mut Window,
        offset: u64,
        header: &Header,
        intact: bool,
        follows: bool,
    ) -> Result<InspectedFrame, InspectError> {
        let wanted = self.payload.min(header.payload_len as usize);
        let payload = match wanted {
            0 => Vec::new(),
            wanted => window
                .get(offset + HEADER, wanted)
                .map_err(InspectError::Disk)?
                .to_vec(),
        };
        Ok(InspectedFrame {
            offset,
            bytes: header.frame_len(),
            lsn: header.lsn,
            seq: header.seq,
            session: header.session,
            previous: header.previous,
            kind: header.kind,
            epoch: header.epoch,
            watermark: header.watermark,
            batch: (header.batch_index, header.batch_count),
            payload_len: header.payload_len,
            intact,
            follows,
            payload,
        })
    }
}

/// The bytes up to the next header, or to the limit.
fn unknown(
    window: &mut Window,
    place: &Place,
    from: u64,
    limit: u64,
) -> Result<Part, InspectError> {
    let mut offset = from;
    let mut zeros = true;
    while offset < limit {
        let left = usize::try_from(limit - offset).unwrap_or(usize::MAX);
        let bytes = window
            .get(offset, left.min(HEADER as usize))
            .map_err(InspectError::Disk)?;
        if offset > from && decode_header(bytes, place, offset).is_some() {
            break;
        }
        let step = bytes.get(..bytes.len().min(ALIGN as usize));
        let step = step.unwrap_or_default();
        if step.is_empty() {
            break;
        }
        zeros &= step.iter().all(|byte| *byte == 0);
        offset += step.len() as u64;
    }
    Ok(Part::Unknown {
        offset: from,
        bytes: offset - from,
        zeros,
    })
}

fn footer_part(offset: u64, footer: &Footer) -> Part {
    Part::Footer {
        offset,
        base: footer.base,
        last: footer.last,
        sessions: footer
            .sessions
            .iter()
            .map(|(session, range)| (*session, range.first_seq, range.last_seq))
            .collect(),
        index: footer.index.len(),
        carry: footer.carry.len(),
    }
}
