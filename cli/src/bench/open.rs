//! How long a journal takes to open: after a clean close, for reading only, and after a kill.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use stepwell::identity::SessionId;
use stepwell::journal::JournalView;
use stepwell::vfs::RealVfs;

use super::BenchError;
use super::folder::Folder;
use super::journal::{self, BATCH};
use super::measure::{median, short, time};
use super::replay::{MEBIBYTE, read, segments};
use crate::failure::Failure;
use crate::output::{Output, Progress, Table};

const ROUNDS: usize = 7;
/// What is appended in each round before the kill: the active segment is about half full then.
const TAIL: u64 = 17 * MEBIBYTE;
/// And what of it comes in groups as they are under load: of so many records.
const GROUPS: u64 = 4 * MEBIBYTE;
const GROUP: usize = 64;

/// Seconds of one round.
#[derive(Debug)]
struct Round {
    clean: f64,
    read_only: f64,
    killed: f64,
    killed_read_only: f64,
    scan: f64,
}

#[derive(Debug, Serialize)]
struct Summary {
    open_mib: u32,
    clean_ms: f64,
    read_only_ms: f64,
    killed_ms: f64,
    killed_read_only_ms: f64,
    /// Reading the active segment and one checksum over it.
    scan_ms: f64,
    /// What opening after a kill takes more than after a clean close, in scans.
    killed_more_in_scans: f64,
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
    let written = journal::create(Arc::new(RealVfs), &path, session)?;
    journal::fill(&written, session, u64::from(mebibytes) * MEBIBYTE, BATCH)?;
    written.close().map_err(BenchError::from)?;
    drop(written);
    let mut rounds = Vec::with_capacity(ROUNDS);
    for number in 0..ROUNDS {
        progress.show(&format!("round {} of {ROUNDS}", number + 1));
        rounds.push(one_round(&path, session)?);
    }
    progress.clear();
    let over = |value: fn(&Round) -> f64| short(median(rounds.iter().map(value)));
    let summary = Summary {
        open_mib: mebibytes,
        clean_ms: over(|round| round.clean * 1e3),
        read_only_ms: over(|round| round.read_only * 1e3),
        killed_ms: over(|round| round.killed * 1e3),
        killed_read_only_ms: over(|round| round.killed_read_only * 1e3),
        scan_ms: over(|round| round.scan * 1e3),
        killed_more_in_scans: over(|round| (round.killed - round.clean) / round.scan),
        rounds: ROUNDS,
    };
    if json {
        return out.json(&summary);
    }
    out.line(&format!(
        "a journal of {mebibytes} MiB, from memory, medians of {ROUNDS} rounds"
    ))?;
    out.line("")?;
    let mut table = Table::new(&["", ">MS"]);
    let mut row = |name: &str, millis: f64| {
        table.row(vec![name.to_owned(), format!("{millis:.2}")]);
    };
    row(
        "for reading only, after a clean close",
        summary.read_only_ms,
    );
    row("for writing, after a clean close", summary.clean_ms);
    row(
        "for reading only, after a kill",
        summary.killed_read_only_ms,
    );
    row("for writing, after a kill", summary.killed_ms);
    row("reading the active segment and crc32", summary.scan_ms);
    table.print(out)?;
    out.line("")?;
    out.line(&format!(
        "a kill costs  {:.2} such readings",
        summary.killed_more_in_scans
    ))
}

/// Where the frames of a segment begin (`docs/format.md` section 2).
const FIRST_FRAME: u64 = 16 * 1024;

/// Begins and ends with a journal that is cleanly closed.
fn one_round(path: &Path, session: SessionId) -> Result<Round, BenchError> {
    let view = || Ok(JournalView::open(Arc::new(RealVfs), path)?);
    let read_only = time(view)?.1;
    let (journal, clean) = time(|| journal::open(path, session))?;
    journal::fill(&journal, session, TAIL - GROUPS, BATCH)?;
    journal::fill(&journal, session, GROUPS, GROUP)?;
    // A dropped journal writes nothing more, like one whose process was killed.
    drop(journal);
    let files = segments(path)?;
    let active = active(&files)?;
    let active = active.map(std::slice::from_ref).unwrap_or_default();
    read(active)?;
    let scan = time(|| read(active))?.1;
    let killed_read_only = time(view)?.1;
    let (journal, killed) = time(|| journal::open(path, session))?;
    journal.close()?;
    Ok(Round {
        clean,
        read_only,
        killed,
        killed_read_only,
        scan,
    })
}

/// The last segment with a frame in it: the one behind it may be prepared already.
fn active(files: &[(PathBuf, u64)]) -> Result<Option<&(PathBuf, u64)>, BenchError> {
    for file in files.iter().rev() {
        let mut first = [0; 4];
        let read = File::open(&file.0)
            .and_then(|mut open| {
                open.seek(SeekFrom::Start(FIRST_FRAME))?;
                open.read(&mut first)
            })
            .map_err(BenchError::disk(&file.0))?;
        if read == first.len() && first != [0; 4] {
            return Ok(Some(file));
        }
    }
    Ok(None)
}
