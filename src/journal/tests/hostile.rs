//! Files that somebody else made, with right checksums and wild values: no panic, no hang, no
//! allocation by a length that was read (P14).

use std::path::Path;
use std::sync::Arc;

use super::super::frame::{self, FrameKind, Header, LogId, Place};
use super::super::manifest::{End, Manifest, ManifestFound};
use super::super::segment::{FRAMES, SLOTS, Slot};
use super::super::{
    Journal, JournalOptions, JournalView, Lsn, NewRecord, NoCarry, Owner, Seq, Workers,
};
use crate::identity::SessionId;
use crate::vfs::sim::SimVfs;
use crate::vfs::{RealVfs, Vfs};

const SESSION: SessionId = SessionId::from_bytes([4; 16]);
const DIR: &str = "/journal";

fn options() -> JournalOptions {
    JournalOptions {
        first_capacity: 4096,
        max_capacity: 4096,
        ..JournalOptions::default()
    }
}

fn fill(vfs: Arc<dyn Vfs>, dir: &Path) {
    let opening = Journal::create(vfs, dir, Owner::Session(SESSION), options()).unwrap();
    let (journal, _) = opening
        .workers(Workers::manual())
        .begin(&[], Arc::new(NoCarry))
        .unwrap();
    for _ in 0..40 {
        let record = NewRecord {
            session: SESSION,
            payload: &[7; 150],
        };
        let _ = journal.append(&[record], None).unwrap();
    }
}

fn log() -> SimVfs {
    let disk = SimVfs::new();
    disk.create_dir(Path::new(DIR)).unwrap();
    fill(Arc::new(disk.clone()), Path::new(DIR));
    disk.kill();
    disk
}

fn manifest(disk: &SimVfs) -> (std::path::PathBuf, Manifest) {
    let (path, _) = disk
        .files()
        .into_iter()
        .find(|(path, _)| path.to_string_lossy().contains("MANIFEST"))
        .unwrap();
    let number = path
        .to_string_lossy()
        .rsplit('-')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    match Manifest::decode(&disk.read_file(&path).unwrap(), number) {
        ManifestFound::Good(manifest) => (path, manifest),
        other => panic!("{other:?}"),
    }
}

/// Reads all there is and opens for writing; any outcome will do, as long as there is one.
fn survive(disk: &SimVfs) {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    if let Ok(view) = JournalView::open(vfs.clone(), Path::new(DIR)) {
        assert!(view.read(Lsn::ZERO).count() < 10_000);
    }
    disk.set_capacity(Some(disk.used() + (1 << 20)));
    if let Ok(opening) = Journal::open(vfs, Path::new(DIR), Owner::Session(SESSION), options()) {
        assert!(opening.read(Lsn::ZERO).count() < 10_000);
        let _ = opening
            .workers(Workers::manual())
            .begin(&[], Arc::new(NoCarry));
    }
}

#[test]
fn wild_manifests() {
    let wild = [1, 1 << 20, 1 << 40, 1 << 61, u64::MAX / 2, u64::MAX];
    type Edit = fn(&mut Manifest, u64);
    let edits: [Edit; 7] = [
        |manifest, value| manifest.epoch = value,
        |manifest, value| manifest.segments[0].name.number = value,
        |manifest, value| manifest.segments[0].name.generation = value as u32,
        |manifest, value| manifest.segments[0].name.epoch = value,
        |manifest, value| {
            for entry in &mut manifest.segments {
                entry.end = Some(End {
                    offset: value,
                    last: Lsn::new(value),
                });
            }
        },
        |manifest, value| {
            let last = manifest.segments[0].end.map_or(Lsn::ZERO, |end| end.last);
            let offset = value;
            manifest.segments[0].end = Some(End { offset, last });
        },
        |manifest, value| manifest.max_payload = value as u32,
    ];
    for edit in edits {
        for value in wild {
            let disk = log();
            let (path, mut manifest) = manifest(&disk);
            edit(&mut manifest, value);
            disk.put_file(&path, &manifest.encode()).unwrap();
            survive(&disk);
        }
    }
    // The highest number that a name can have.
    let disk = log();
    let (_, mut manifest) = manifest(&disk);
    manifest.number = u64::MAX;
    let path = Path::new(DIR).join(super::super::names::manifest(u64::MAX));
    disk.put_file(path, &manifest.encode()).unwrap();
    survive(&disk);
}

fn patch(disk: &SimVfs, path: &Path, offset: u64, bytes: &[u8]) {
    let mut content = disk.read_file(path).unwrap();
    let at = offset as usize;
    content[at..at + bytes.len()].copy_from_slice(bytes);
    disk.put_file(path, &content).unwrap();
}

/// The active segment of a log: its path and place.
fn active(disk: &SimVfs) -> (std::path::PathBuf, Place, LogId) {
    let (_, manifest) = manifest(disk);
    let entry = manifest.segments.last().unwrap();
    (
        Path::new(DIR).join(entry.name.to_string()),
        entry.place(),
        entry.log,
    )
}

#[test]
fn wild_slots_and_frames() {
    for value in [0, 1 << 40, 1 << 61, u64::MAX - 1, u64::MAX] {
        for field in 0..5 {
            let disk = log();
            let (path, place, _) = active(&disk);
            let slot = Slot {
                watermark: Lsn::new(if field == 0 { value } else { 1 }),
                tail: value,
                epoch: value,
                clean: true,
            };
            patch(&disk, &path, SLOTS[0], &slot.encode(&place, SLOTS[0]));
            let base = 30;
            let header = Header {
                payload_crc: 0,
                payload_len: if field == 4 { u32::MAX } else { 0 },
                session: SESSION,
                lsn: Lsn::new(if field == 1 { value } else { base }),
                seq: Seq::new(if field == 2 { value } else { base }),
                previous: Lsn::new(value),
                watermark: Lsn::new(if field == 3 { value } else { 0 }),
                epoch: if field == 3 { value } else { 1 },
                batch_index: u16::MAX,
                batch_count: 0,
                kind: [FrameKind::Record, FrameKind::Erased][field % 2],
                flags: 0,
            };
            for offset in [FRAMES, FRAMES + 800] {
                let mut bytes = Vec::new();
                frame::encode(&mut bytes, &place, offset, &header, &[]);
                patch(&disk, &path, offset, &bytes);
            }
            survive(&disk);
        }
    }
}

/// A file made longer without bytes (`truncate -s 1T`) costs neither time nor memory.
#[test]
fn sparse_files() {
    let dir = tempfile::tempdir().unwrap();
    fill(Arc::new(RealVfs), dir.path());
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("seg-") {
            let file = std::fs::OpenOptions::new().write(true).open(entry.path());
            file.unwrap().set_len(1 << 40).unwrap();
        }
    }
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
    let view = JournalView::open(vfs.clone(), dir.path()).unwrap();
    assert_eq!(view.read(Lsn::ZERO).filter(Result::is_ok).count(), 41);
    let owner = Owner::Session(SESSION);
    assert!(Journal::open(vfs, dir.path(), owner, options()).is_ok());
}
