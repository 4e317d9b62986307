//! Reading a whole journal with every check, against reading its bytes and one checksum over them.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use stepwell::identity::SessionId;
use stepwell::journal::{FrameKind, Journal, Lsn};
use stepwell::vfs::RealVfs;

use super::BenchError;
use super::folder::Folder;
use super::journal;
use super::measure::{median, short, time};
use crate::failure::Failure;
use crate::output::{Output, Progress, Table};

const ROUNDS: usize = 11;
const PIECE: usize = 1024 * 1024;
pub(super) const MEBIBYTE: u64 = 1024 * 1024;

#[derive(Debug, Serialize)]
struct Summary {
    replay_mib: u32,
    mib_per_s: f64,
    limit_mib_per_s: f64,
    ratio: f64,
    replay_ms: f64,
    limit_ms: f64,
    records: u64,
    rounds: usize,
}

pub(super) fn run(
    folder: &Folder,
    mebibytes: u32,
    json: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let progress = Progress::new();
    progress.show("writing the journal");
    let (path, session) = (folder.join("journal"), SessionId::new());
    let journal = journal::create(Arc::new(RealVfs), &path, session)?;
    let written = journal::fill(
        &journal,
        session,
        u64::from(mebibytes) * MEBIBYTE,
        journal::BATCH,
    )?;
    // Closed, so that no prepared space is read and counted.
    journal.close().map_err(BenchError::from)?;
    let files = segments(&path)?;
    let bytes = files.iter().map(|(_, length)| *length).sum::<u64>();
    // Once unmeasured: both read what the system holds in memory.
    read(&files)?;
    let mut rounds = Vec::with_capacity(ROUNDS);
    for number in 0..ROUNDS {
        progress.show(&format!("round {} of {ROUNDS}", number + 1));
        let mut limit = 0.0;
        if number % 2 == 0 {
            limit = time(|| read(&files))?.1;
        }
        let (found, ours) = time(|| replay(&journal))?;
        if number % 2 == 1 {
            limit = time(|| read(&files))?.1;
        }
        if found != written {
            return Err(BenchError::Missing { written, found }.into());
        }
        rounds.push((limit, ours));
    }
    progress.clear();
    let limit = median(rounds.iter().map(|(limit, _)| *limit));
    let ours = median(rounds.iter().map(|(_, ours)| *ours));
    let size = bytes as f64 / MEBIBYTE as f64;
    let summary = Summary {
        replay_mib: mebibytes,
        mib_per_s: short(size / ours),
        limit_mib_per_s: short(size / limit),
        ratio: short(median(rounds.iter().map(|(limit, ours)| limit / ours))),
        replay_ms: short(ours * 1e3),
        limit_ms: short(limit * 1e3),
        records: written,
        rounds: ROUNDS,
    };
    if json {
        return out.json(&summary);
    }
    out.line(&format!(
        "{written} records of {} B, {size:.0} MiB on disk, from memory, medians of {ROUNDS} rounds",
        journal::RECORD
    ))?;
    out.line("")?;
    let mut table = Table::new(&["", ">MIB/S", ">MS"]);
    let mut row = |name: &str, rate: f64, millis: f64| {
        let numbers = [format!("{rate:.0}"), format!("{millis:.1}")];
        table.row(std::iter::once(name.to_owned()).chain(numbers).collect());
    };
    row("read and crc32", summary.limit_mib_per_s, summary.limit_ms);
    row("stepwell replay", summary.mib_per_s, summary.replay_ms);
    table.print(out)?;
    out.line("")?;
    out.line(&format!("stepwell to read and crc32  {:.2}", summary.ratio))
}

/// The segment files of a journal with their lengths, in order.
pub(super) fn segments(path: &Path) -> Result<Vec<(PathBuf, u64)>, BenchError> {
    let failed = BenchError::disk(path);
    let listed = std::fs::read_dir(path).and_then(|entries| {
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("seg-") {
                files.push((entry.path(), entry.metadata()?.len()));
            }
        }
        files.sort();
        Ok(files)
    });
    listed.map_err(failed)
}

/// The limit: all bytes in large pieces, and one checksum over each file.
pub(super) fn read(files: &[(PathBuf, u64)]) -> Result<u32, BenchError> {
    let mut buffer = vec![0; PIECE];
    let mut sum = 0;
    for (path, _) in files {
        let mut checksum = crc32fast::Hasher::new();
        let mut file = File::open(path).map_err(BenchError::disk(path))?;
        loop {
            let length = file.read(&mut buffer).map_err(BenchError::disk(path))?;
            if length == 0 {
                break;
            }
            checksum.update(buffer.get(..length).unwrap_or_default());
        }
        sum ^= checksum.finalize();
    }
    Ok(std::hint::black_box(sum))
}

/// All records with every check; gives their number.
fn replay(journal: &Journal) -> Result<u64, BenchError> {
    let mut found = 0;
    let mut reader = journal.read(Lsn::ZERO);
    while let Some(entry) = reader.read_next() {
        found += u64::from(std::hint::black_box(entry?).kind == FrameKind::Record);
    }
    Ok(found)
}
