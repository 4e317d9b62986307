//! A valid log with arbitrary edits to its files: no panic, and never a record that was not written.
#![no_main]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use stepwell::identity::SessionId;
use stepwell::journal::{
    Journal, JournalOptions, JournalView, Lsn, NewRecord, NoCarry, Owner, Workers,
};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::SimVfs;

#[derive(Debug, Arbitrary)]
enum Edit {
    Write { file: u8, offset: u16, bytes: Vec<u8> },
    Zero { file: u8, offset: u16, length: u16 },
    Truncate { file: u8, length: u16 },
    Remove { file: u8 },
    Copy { from: u8, offset: u16, to: u8, target: u16, length: u16 },
}

const SESSION: SessionId = SessionId::from_bytes([3; 16]);

fn options() -> JournalOptions {
    JournalOptions {
        first_capacity: 4096,
        max_capacity: 4096,
        ..JournalOptions::default()
    }
}

/// The log that is edited, and its records by Lsn.
fn log() -> &'static (SimVfs, BTreeMap<Lsn, Vec<u8>>) {
    static LOG: OnceLock<(SimVfs, BTreeMap<Lsn, Vec<u8>>)> = OnceLock::new();
    LOG.get_or_init(|| {
        let disk = SimVfs::new();
        disk.create_dir(Path::new("/j")).unwrap();
        let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
        let owner = Owner::Session(SESSION);
        let opening = Journal::create(vfs, Path::new("/j"), owner, options()).unwrap();
        let (journal, _) = opening.workers(Workers::manual()).begin(&[], Arc::new(NoCarry)).unwrap();
        for number in 0..40u32 {
            let payload = vec![number as u8; 100 + number as usize];
            let record = NewRecord { session: SESSION, payload: &payload };
            let _ = journal.append(&[record], None).unwrap();
        }
        drop(journal);
        disk.kill();
        disk.set_tracing(false);
        let view = JournalView::open(Arc::new(disk.clone()), Path::new("/j")).unwrap();
        let records = view
            .read(Lsn::ZERO)
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.lsn, entry.payload))
            .collect();
        (disk, records)
    })
}

fn apply(disk: &SimVfs, files: &[(PathBuf, u64)], edit: &Edit) {
    let pick = |file: u8| &files[file as usize % files.len()].0;
    let write = |path: &PathBuf, offset: u16, bytes: &[u8]| {
        let Ok(mut content) = disk.read_file(path) else { return };
        let offset = offset as usize;
        for (index, byte) in bytes.iter().enumerate() {
            if let Some(slot) = content.get_mut(offset + index) {
                *slot = *byte;
            }
        }
        let _ = disk.put_file(path, &content);
    };
    match edit {
        Edit::Write { file, offset, bytes } => write(pick(*file), *offset, bytes),
        Edit::Zero { file, offset, length } => {
            write(pick(*file), *offset, &vec![0; *length as usize]);
        }
        Edit::Truncate { file, length } => {
            let _ = disk.truncate(pick(*file), u64::from(*length));
        }
        Edit::Remove { file } => {
            let _ = disk.remove(pick(*file));
        }
        Edit::Copy { from, offset, to, target, length } => {
            let Ok(content) = disk.read_file(pick(*from)) else { return };
            let start = (*offset as usize).min(content.len());
            let end = (start + *length as usize).min(content.len());
            write(pick(*to), *target, &content[start..end]);
        }
    }
}

fuzz_target!(|edits: Vec<Edit>| {
    let (original, records) = log();
    let disk = original.snapshot();
    let files = disk.files();
    for edit in edits.iter().take(16) {
        apply(&disk, &files, edit);
    }
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    if let Ok(view) = JournalView::open(vfs.clone(), Path::new("/j")) {
        for entry in view.read(Lsn::ZERO).flatten() {
            assert_eq!(Some(&entry.payload), records.get(&entry.lsn));
        }
    }
    let owner = Owner::Session(SESSION);
    if let Ok(opening) = Journal::open(vfs, Path::new("/j"), owner, options()) {
        for entry in opening.read(Lsn::ZERO).flatten() {
            assert_eq!(Some(&entry.payload), records.get(&entry.lsn));
        }
    }
});
