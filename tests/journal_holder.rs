//! Who finds a journal locked is told who holds it (P9), on the simulated disk and on real files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use stepwell::journal::{Holder, Journal, JournalOptions, NoCarry, OpenError, Owner};
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use stepwell::vfs::{RealVfs, Vfs};
use support::*;

fn refused(disk: &SimVfs) -> Option<Holder> {
    match open(disk, &options(0)) {
        Err(OpenError::Locked { path, holder }) => {
            assert_eq!(path, dir().join("LOCK"));
            holder
        }
        other => panic!("{other:?}"),
    }
}

fn of_holder(op: &Op) -> bool {
    op.path().ends_with("HOLDER")
}

#[test]
fn the_holder_is_named() {
    let disk = disk();
    let journal = create(&disk, &options(0)).unwrap();
    let other = disk.new_process();
    assert_eq!(refused(&other), Some(disk.holder()));
    assert_ne!(disk.holder(), other.holder());
    let text = open(&other, &options(0)).unwrap_err().to_string();
    assert!(text.contains(&disk.holder().to_string()), "{text}");
    drop(journal);
    disk.kill();
    // The file of a dead holder says nothing: the lock alone decides.
    let journal = begin(open(&other, &options(0)).unwrap()).unwrap();
    assert_eq!(refused(&disk), Some(other.holder()));
    journal.close().unwrap();
    assert!(open(&disk, &options(0)).is_ok());
}

/// The file is no part of the log: it is never synced, and no crash or failure of it does anything.
#[test]
fn nothing_depends_on_the_file() {
    let disk = disk();
    let mut books = Books::default();
    let journal = create(&disk, &options(0)).unwrap();
    books.append(&journal, 2, 100);
    assert_eq!(disk.sync_count("HOLDER"), 0);
    drop(journal);
    disk.power_loss(PowerLoss::DropAll);
    let start = disk;
    for kind in [FaultKind::Eio, FaultKind::Enospc] {
        let disk = start.snapshot();
        disk.fail_from(of_holder, 0, kind);
        let journal = begin(open(&disk, &options(0)).unwrap()).unwrap();
        assert!(disk.faults_fired() > 0);
        assert_eq!(all(&journal), books.acknowledged);
        disk.clear_faults();
        assert_eq!(refused(&disk.new_process()).map(|holder| holder.pid), None);
    }
}

#[test]
fn hostile_bytes_name_nobody() {
    let start = disk();
    let journal = create(&start, &options(0)).unwrap();
    let path = dir().join("HOLDER");
    let good = start.read_file(&path).unwrap();
    assert!(refused(&start.new_process()).is_some());
    let mut bad = good.clone();
    bad[20] ^= 1;
    let long = vec![b'x'; 1 << 20];
    for bytes in [&b""[..], &[0xff; 300], &bad, &good[..30], &long] {
        let file = start.open(&path, stepwell::vfs::Access::Write).unwrap();
        file.set_len(0).unwrap();
        file.write_at(bytes, 0).unwrap();
        let reader = start.new_process();
        reader.clear_trace();
        assert_eq!(refused(&reader), None);
        let read: u64 = reader
            .trace()
            .iter()
            .filter(|call| of_holder(&call.op))
            .map(|call| match (&call.op, &call.outcome) {
                (Op::Read { .. }, stepwell::vfs::sim::Outcome::Done(bytes)) => *bytes,
                _ => 0,
            })
            .sum();
        assert!(read <= 2048, "{read} bytes were read");
    }
    drop(journal);
}

const CHILD: &str = "STEPWELL_TEST_HOLDER_DIR";

fn on_disk(dir: &Path) -> Result<stepwell::journal::Opening, OpenError> {
    let owner = Owner::Session(session());
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
    if dir.join("LOCK").exists() {
        Journal::open(vfs, dir, owner, JournalOptions::default())
    } else {
        Journal::create(vfs, dir, owner, JournalOptions::default())
    }
}

/// Not a test of its own: the process that holds the lock, until its stdin ends.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let opening = on_disk(Path::new(&dir)).unwrap();
    let _journal = opening.begin(&[], Arc::new(NoCarry)).unwrap();
    println!("\nheld");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().lines().next();
}

#[test]
fn another_process_is_named_until_it_dies() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let held = lines.map_while(Result::ok).any(|line| line == "held");
    assert!(held, "the child ended");
    let Err(OpenError::Locked { holder, .. }) = on_disk(folder.path()) else {
        panic!("the lock is not held");
    };
    let holder = holder.unwrap();
    let ours = RealVfs.holder();
    assert_eq!(holder.pid, child.id());
    assert_ne!(holder.pid, ours.pid);
    assert_eq!((&holder.host, &holder.boot_id), (&ours.host, &ours.boot_id));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(on_disk(folder.path()).is_ok());
}
