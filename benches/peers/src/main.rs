//! A lone writer, one durable append after the other: the raw disk (overwriting a file that is
//! already written), stepwell's journal, a JSONL file with a sync per line, and sled with a flush per
//! insert. Rounds are interleaved and medians of ratios are printed, since a lone time says nothing
//! on a shared machine.
//!
//!     cargo run --release --manifest-path benches/peers/Cargo.toml -- [DIR]
//!
//! sled is listed apart: its flush does not wait for the disk on Linux, so it is not durable.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use stepwell::identity::SessionId;
use stepwell::journal::{Journal, JournalOptions, NewRecord, NoCarry, Owner};
use stepwell::vfs::RealVfs;

const RECORD: usize = 4096;
const APPENDS: u32 = 300;
const ROUNDS: usize = 7;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn per_second(work: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let start = Instant::now();
    work()?;
    Ok(f64::from(APPENDS) / start.elapsed().as_secs_f64())
}

fn overwrite(file: &File, record: &[u8]) -> Outcome<()> {
    for number in 0..APPENDS {
        file.write_all_at(record, u64::from(number) * RECORD as u64)?;
        file.sync_data()?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let dir = dir.join(format!("stepwell-peers-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let outcome = run(&dir);
    std::fs::remove_dir_all(&dir)?;
    outcome
}

fn run(dir: &Path) -> Outcome<()> {
    let record = vec![0x5a; RECORD];
    let line = format!("{{\"text\":\"{}\"}}\n", "x".repeat(RECORD - 12));

    let raw = OpenOptions::new().write(true).create(true).truncate(true).open(dir.join("raw"))?;
    raw.write_all_at(&vec![1; RECORD * APPENDS as usize], 0)?;
    raw.sync_all()?;

    let session = SessionId::new();
    std::fs::create_dir(dir.join("journal"))?;
    let options = JournalOptions { first_capacity: 16 << 20, ..JournalOptions::default() };
    let owner = Owner::Session(session);
    let opening = Journal::create(Arc::new(RealVfs), &dir.join("journal"), owner, options)?;
    let (journal, _) = opening.begin(&[], Arc::new(NoCarry))?;

    let mut jsonl = OpenOptions::new().append(true).create(true).open(dir.join("log.jsonl"))?;
    let tree = sled::Config::new().path(dir.join("sled")).flush_every_ms(None).open()?;
    let mut key = 0u64;

    let mut ratios: [Vec<f64>; 3] = Default::default();
    let mut limits = Vec::new();
    for _ in 0..ROUNDS {
        let limit = per_second(|| overwrite(&raw, &record))?;
        let ours = per_second(|| {
            for _ in 0..APPENDS {
                let _ = journal.append(&[NewRecord { session, payload: &record }], None)?;
            }
            Ok(())
        })?;
        let lines = per_second(|| {
            for _ in 0..APPENDS {
                jsonl.write_all(line.as_bytes())?;
                jsonl.sync_data()?;
            }
            Ok(())
        })?;
        let inserts = per_second(|| {
            for _ in 0..APPENDS {
                key += 1;
                tree.insert(key.to_be_bytes(), record.as_slice())?;
                tree.flush()?;
            }
            Ok(())
        })?;
        limits.push(limit);
        for (ratio, rate) in ratios.iter_mut().zip([ours, lines, inserts]) {
            ratio.push(rate / limit);
        }
    }
    let [ours, lines, inserts] = ratios.map(median);
    println!("one writer, {RECORD} B, medians of {ROUNDS} interleaved rounds of {APPENDS} appends");
    println!("{:<34}{:>10}", "", "share");
    println!("{:<34}{:>10}", format!("overwrite ({:.0}/s)", median(limits)), "1.00");
    println!("{:<34}{ours:>10.2}", "stepwell journal");
    println!("{:<34}{lines:>10.2}", "JSONL, a sync per line");
    println!("{:<34}{inserts:>10.2}", "sled, a flush per insert (not durable)");
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
