//! A writer that is stopped, loses its lock unawares, is overtaken and goes on (P9, W12): it
//! acknowledges nothing afterwards and harms nothing, whatever it was doing aside. Real processes,
//! real files.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use stepwell::journal::{FaultCause, Journal, JournalOptions, Lsn, NoCarry, Owner};
use stepwell::vfs::RealVfs;
use support::*;

const DIR: &str = "STEPWELL_TEST_OVERTAKEN_DIR";

/// Segments that fill often, so that it prepares, publishes and rolls all the time.
fn tiny() -> JournalOptions {
    JournalOptions {
        first_capacity: 16 * 1024,
        max_capacity: 32 * 1024,
        supersede_limit: 8 * 1024,
        ..JournalOptions::default()
    }
}

fn open_real(path: &Path, create: bool) -> Journal {
    let vfs = Arc::new(RealVfs);
    let owner = Owner::Session(session());
    let opening = match create {
        true => Journal::create(vfs, path, owner, tiny()),
        false => Journal::open(vfs, path, owner, tiny()),
    };
    opening.unwrap().begin(&[], Arc::new(NoCarry)).unwrap().0
}

/// The process that is overtaken: four threads append and say what was acknowledged.
#[test]
fn the_writer_that_is_overtaken() {
    let Some(path) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    let journal = open_real(&path, true);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    match append(&journal, &[payload(number, 700)]) {
                        Ok(_) => say(&format!("acknowledged {number}")),
                        Err(_) => return,
                    }
                }
            });
        }
    });
    let fault = journal.fault().unwrap();
    let overtaken = matches!(fault.cause(), FaultCause::Overtaken { .. });
    say(if overtaken {
        "overtaken"
    } else {
        "faulted otherwise"
    });
}

/// One line, past what the test harness catches.
fn say(line: &str) {
    let mut out = std::fs::OpenOptions::new()
        .append(true)
        .open("/proc/self/fd/1")
        .unwrap();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn number_of(bytes: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(bytes);
    let number = text.strip_prefix("record ").unwrap().split(';').next();
    number.unwrap().parse().unwrap()
}

#[test]
fn a_stopped_writer_acknowledges_nothing_after_a_takeover() {
    for round in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_writer_that_is_overtaken", "--nocapture"])
            .env(DIR, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = BTreeSet::new();
        let mut ended = String::new();
        let mut take = |line: String, acknowledged: &mut BTreeSet<u64>| match line
            .split_once("acknowledged ")
        {
            Some((_, number)) => {
                acknowledged.insert(number.parse::<u64>().unwrap());
            }
            None if line.ends_with("overtaken") || line.ends_with("otherwise") => ended = line,
            None => {}
        };
        while acknowledged.len() < 40 + round * 13 {
            take(lines.next().unwrap().unwrap(), &mut acknowledged);
        }
        kill_process(pid, Signal::STOP).unwrap();
        // Without this the takeover is refused: the lock outlives the stop.
        assert!(
            Journal::open(
                Arc::new(RealVfs),
                folder.path(),
                Owner::Session(session()),
                tiny()
            )
            .is_err()
        );
        std::fs::remove_file(folder.path().join("LOCK")).unwrap();
        let new = open_real(folder.path(), false);
        let taken_over: BTreeSet<u64> = all(&new).iter().map(|bytes| number_of(bytes)).collect();
        for number in 0..20 {
            put(&new, payload(1_000_000 + number, 700));
        }
        kill_process(pid, Signal::CONT).unwrap();
        for number in 20..60 {
            put(&new, payload(1_000_000 + number, 700));
        }
        for line in lines {
            take(line.unwrap(), &mut acknowledged);
        }
        child.wait().unwrap();
        assert_eq!(ended, "overtaken", "round {round}");
        let late: Vec<_> = acknowledged.difference(&taken_over).collect();
        assert!(
            late.is_empty(),
            "round {round}: acknowledged in vain: {late:?}"
        );
        let expected = all(&new);
        assert_eq!(expected.len(), taken_over.len() + 60, "round {round}");
        new.close().unwrap();
        drop(new);
        let again = open_real(folder.path(), false);
        assert_eq!(records(again.read(Lsn::ZERO)), expected, "round {round}");
    }
}
