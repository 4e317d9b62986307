//! What the tests over the simulated disk share: small journals, and the test's own books.

#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepwell::identity::SessionId;
use stepwell::journal::{
    AppendError, Entry, FrameKind, Journal, JournalOptions, Lsn, NewRecord, NoCarry, OpenError,
    Opening, Owner, Receipt, Workers,
};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::SimVfs;

pub fn session() -> SessionId {
    SessionId::from_bytes([0x5e; 16])
}

pub fn dir() -> PathBuf {
    PathBuf::from("/journal")
}

/// Segments of 16 KiB, and recovery that closes instead of copying above `supersede` bytes.
pub fn options(supersede: u64) -> JournalOptions {
    JournalOptions {
        first_capacity: 16 * 1024,
        max_capacity: 16 * 1024,
        max_payload: 64 * 1024,
        supersede_limit: supersede,
        quarantine_files: 64,
        ..JournalOptions::default()
    }
}

/// A disk with the journal's directory on it, durable.
pub fn disk() -> SimVfs {
    let disk = SimVfs::new();
    disk.create_dir(&dir()).unwrap();
    disk.open_dir(Path::new("/")).unwrap().sync().unwrap();
    disk
}

pub fn vfs(disk: &SimVfs) -> Arc<dyn Vfs> {
    Arc::new(disk.clone())
}

pub fn create(disk: &SimVfs, options: &JournalOptions) -> Result<Journal, OpenError> {
    let owner = Owner::Session(session());
    let opening = Journal::create(vfs(disk), &dir(), owner, options.clone())?;
    Ok(opening
        .workers(Workers::manual())
        .begin(&[], Arc::new(NoCarry))?
        .0)
}

pub fn open(disk: &SimVfs, options: &JournalOptions) -> Result<Opening, OpenError> {
    let owner = Owner::Session(session());
    Journal::open(vfs(disk), &dir(), owner, options.clone())
}

pub fn begin(opening: Opening) -> Result<Journal, OpenError> {
    Ok(opening
        .workers(Workers::manual())
        .begin(&[], Arc::new(NoCarry))?
        .0)
}

pub fn append(journal: &Journal, payloads: &[Vec<u8>]) -> Result<Receipt, AppendError> {
    let records: Vec<NewRecord<'_>> = payloads
        .iter()
        .map(|payload| NewRecord {
            session: session(),
            payload,
        })
        .collect();
    journal.append(&records, None)
}

/// Appends a record that must be committed.
pub fn put(journal: &Journal, payload: Vec<u8>) {
    assert_eq!(append(journal, &[payload]).unwrap().records.len(), 1);
}

/// The records (not the fences) that a reader gives; any error fails the test.
pub fn records(
    entries: impl Iterator<Item = Result<Entry, stepwell::journal::ReadError>>,
) -> Vec<Vec<u8>> {
    entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.kind == FrameKind::Record)
        .map(|entry| entry.payload)
        .collect()
}

pub fn all(journal: &Journal) -> Vec<Vec<u8>> {
    records(journal.read(Lsn::ZERO))
}

/// A payload that names itself and has the given length at least.
pub fn payload(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = format!("record {number};").into_bytes();
    while bytes.len() < length {
        bytes.push((number as usize * 31 + bytes.len() * 7) as u8);
    }
    bytes
}

/// The test's own books: what was acknowledged, what may have been written, what was refused.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// Acknowledged or served, in order. It never changes afterwards.
    pub acknowledged: Vec<Vec<u8>>,
    /// Batches whose outcome is unknown, in order.
    pub unknown: Vec<Vec<Vec<u8>>>,
    /// Refused for certain.
    pub refused: Vec<Vec<u8>>,
    pub next: u64,
}

impl Books {
    /// Makes a batch and appends it, and enters the outcome. Gives whether the journal goes on.
    pub fn append(&mut self, journal: &Journal, count: usize, length: usize) -> bool {
        let batch: Vec<Vec<u8>> = (0..count)
            .map(|_| {
                self.next += 1;
                payload(self.next, length)
            })
            .collect();
        match append(journal, &batch) {
            Ok(receipt) => {
                assert_eq!(receipt.records.len(), count);
                self.acknowledged.extend(batch);
                true
            }
            Err(AppendError::NotCommitted(_)) => {
                self.refused.extend(batch);
                journal.fault().is_none()
            }
            Err(AppendError::Unknown(_)) => {
                self.unknown.push(batch);
                false
            }
        }
    }

    /// Judges what an opening kept, by the oracle of the rules: all that was acknowledged, in order;
    /// then a prefix of the unknown batches, each whole; nothing else. What was served never changes.
    pub fn judge(&mut self, kept: &[Vec<u8>]) {
        let must = self.acknowledged.len();
        assert!(
            kept.len() >= must && kept[..must] == self.acknowledged[..],
            "acknowledged records are lost: {} of {must} kept",
            kept.len()
        );
        let mut rest = &kept[must..];
        for batch in std::mem::take(&mut self.unknown) {
            if rest.is_empty() {
                break;
            }
            assert!(rest.len() >= batch.len(), "half a batch was kept");
            assert_eq!(
                &rest[..batch.len()],
                &batch[..],
                "a record that was not written"
            );
            rest = &rest[batch.len()..];
        }
        assert!(rest.is_empty(), "a record that was never offered was kept");
        self.acknowledged = kept.to_vec();
    }
}
