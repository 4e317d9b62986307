//! The simulated disk keeps to its own rules. Everything else is judged by it, so each rule that
//! another test may lean on has a test of its own here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use stepwell::vfs::sim::{FaultKind, Op, Outcome, Part, PowerLoss, SECTOR, SimVfs, TRACE_LIMIT};
use stepwell::vfs::{Access, Dir, File, Vfs};

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn root(disk: &SimVfs) -> Arc<dyn Dir> {
    disk.open_dir(p("/")).unwrap()
}

/// A file whose name and contents are durable.
fn durable(disk: &SimVfs, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = disk.create(p(path)).unwrap();
    assert_eq!(file.write_at(bytes, 0).unwrap(), bytes.len());
    file.sync_data().unwrap();
    root(disk).sync().unwrap();
    file
}

fn is_write(op: &Op) -> bool {
    matches!(op, Op::Write { .. })
}

fn is_data_sync(op: &Op) -> bool {
    matches!(op, Op::SyncData { .. })
}

fn is_dir_sync(op: &Op) -> bool {
    matches!(op, Op::SyncDir { .. })
}

fn after(disk: &SimVfs, loss: PowerLoss, path: &str) -> Option<Vec<u8>> {
    let image = disk.snapshot();
    image.power_loss(loss);
    image.read_file(path).ok()
}

fn two(a: u8, b: u8) -> Vec<u8> {
    [[a; SECTOR], [b; SECTOR]].concat()
}

// ---- the two crashes

#[test]
fn a_kill_keeps_the_page_cache_and_a_power_loss_does_not() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"old");
    file.write_at(b"new and longer", 0).unwrap();
    disk.create(p("/g")).unwrap();

    disk.kill();
    assert_eq!(disk.read_file("/f").unwrap(), b"new and longer");
    assert_eq!(disk.read_file("/g").unwrap(), b"");

    disk.power_loss(PowerLoss::DropAll);
    assert_eq!(disk.read_file("/f").unwrap(), b"old");
    assert_eq!(
        disk.read_file("/g").unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
}

#[test]
fn synced_contents_without_a_synced_name_are_gone() {
    let disk = SimVfs::new();
    let file = disk.create(p("/f")).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f"), None);
    assert_eq!(after(&disk, PowerLoss::KeepAll, "/f").unwrap(), b"bytes");
    root(&disk).sync().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), b"bytes");
}

#[test]
fn a_synced_name_without_synced_contents_is_empty() {
    let disk = SimVfs::new();
    disk.create(p("/f")).unwrap().write_at(b"bytes", 0).unwrap();
    root(&disk).sync().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), b"");
}

#[test]
fn each_directory_is_synced_by_itself() {
    let disk = SimVfs::new();
    disk.create_dir(p("/d")).unwrap();
    root(&disk).sync().unwrap();
    disk.create(p("/d/f")).unwrap();
    root(&disk).sync().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/d/f"), None);
    disk.open_dir(p("/d")).unwrap().sync().unwrap();
    assert!(after(&disk, PowerLoss::DropAll, "/d/f").is_some());
    // A directory whose own name is lost takes its files with it.
    disk.create_dir(p("/e")).unwrap();
    durable(&disk, "/x", b"");
    disk.hard_link(p("/x"), p("/e/x")).unwrap();
    disk.open_dir(p("/e")).unwrap().sync().unwrap();
    assert!(
        after(&disk, PowerLoss::DropAll, "/e/x").is_some(),
        "made durable with /x"
    );
    disk.create_dir(p("/g")).unwrap();
    disk.create(p("/g/x")).unwrap();
    disk.open_dir(p("/g")).unwrap().sync().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/g/x"), None);
}

#[test]
fn removing_and_renaming_wait_for_the_directory_too() {
    let disk = SimVfs::new();
    durable(&disk, "/a", b"a");
    durable(&disk, "/b", b"b");
    disk.rename(p("/a"), p("/b")).unwrap();
    let images: BTreeSet<_> = disk
        .power_loss_images()
        .map(|image| (image.read_file("/a").ok(), image.read_file("/b").ok()))
        .collect();
    let old = (Some(b"a".to_vec()), Some(b"b".to_vec()));
    let new = (None, Some(b"a".to_vec()));
    assert_eq!(
        images,
        BTreeSet::from([old, new]),
        "a rename in one directory is atomic"
    );

    root(&disk).sync().unwrap();
    disk.remove_file(p("/b")).unwrap();
    assert!(after(&disk, PowerLoss::DropAll, "/b").is_some());
    root(&disk).sync().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/b"), None);
}

#[test]
fn a_rename_between_directories_is_two_changes() {
    let disk = SimVfs::new();
    disk.create_dir(p("/d")).unwrap();
    durable(&disk, "/a", b"a");
    disk.rename(p("/a"), p("/d/a")).unwrap();
    let images: BTreeSet<_> = disk
        .power_loss_images()
        .map(|image| {
            (
                image.read_file("/a").is_ok(),
                image.read_file("/d/a").is_ok(),
            )
        })
        .collect();
    assert_eq!(images.len(), 4, "both, either, and neither: {images:?}");
}

#[test]
fn the_length_survives_apart_from_the_data() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"");
    file.write_at(&two(1, 2), 0).unwrap();
    let images: BTreeSet<_> = disk
        .power_loss_images()
        .map(|image| image.read_file("/f").unwrap())
        .collect();
    let kept = [two(0, 0), two(1, 0), two(0, 2), two(1, 2)];
    assert_eq!(images, kept.into_iter().chain([Vec::new()]).collect());
}

#[test]
fn what_a_shortening_took_does_not_come_back() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &two(1, 2));
    file.set_len(700).unwrap();
    file.set_len(1024).unwrap();
    file.write_at(&[3], 1023).unwrap();
    let mut cut = two(1, 2);
    cut[700..].fill(0);
    let mut written = cut.clone();
    written[1023] = 3;
    let images: BTreeSet<_> = disk
        .power_loss_images()
        .map(|image| image.read_file("/f").unwrap())
        .collect();
    let short = |bytes: &[u8]| bytes[..700].to_vec();
    let expected = [
        two(1, 2),
        cut.clone(),
        written.clone(),
        short(&cut),
        short(&written),
    ];
    assert_eq!(images, BTreeSet::from(expected));
    file.sync_data().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), written);
}

#[test]
fn a_shortening_takes_whole_sectors_on_both_images() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &two(1, 2));
    file.set_len(512).unwrap();
    file.set_len(1024).unwrap();
    assert_eq!(disk.read_file("/f").unwrap(), two(1, 0));
    // The medium still holds these bytes, but only until the shortening reaches it.
    file.write_at(&[2; SECTOR], 512).unwrap();
    file.sync_data().unwrap();
    assert_eq!(disk.read_durable("/f").unwrap(), two(1, 2));
}

#[test]
fn bytes_behind_a_lost_length_are_lost_for_good() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"");
    file.write_at(&two(1, 2), 0).unwrap();
    disk.power_loss_with(&mut |point| usize::from(point.part != Part::Length));
    assert_eq!(disk.read_file("/f").unwrap(), b"");
    disk.open(p("/f"), Access::Write)
        .unwrap()
        .set_len(1024)
        .unwrap();
    assert_eq!(disk.read_file("/f").unwrap(), two(0, 0));
}

#[test]
fn writing_back_the_old_bytes_is_a_write() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &[1; SECTOR]);
    file.write_at(&[2; SECTOR], 0).unwrap();
    file.write_at(&[1; SECTOR], 0).unwrap();
    assert_eq!(disk.pending_choices()[0].options, 3);
    file.sync_data().unwrap();
    assert_eq!(disk.read_durable("/f").unwrap(), [1; SECTOR]);
}

#[test]
fn of_several_writes_to_a_sector_the_first_few_survive() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &[0; SECTOR]);
    for (place, byte) in [(0, 1), (1, 2), (0, 3)] {
        file.write_at(&[byte], place).unwrap();
    }
    let images: Vec<_> = disk
        .power_loss_images()
        .map(|image| image.read_file("/f").unwrap()[..2].to_vec())
        .collect();
    assert_eq!(images, [[0, 0], [1, 0], [1, 2], [3, 2]]);
}

#[test]
fn a_sector_is_written_again_although_the_cache_holds_it() {
    // A failed sync leaves bytes in the cache that the medium lacks. Writing the very same bytes
    // again must reach the medium all the same.
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &[1; SECTOR]);
    file.write_at(&[2; SECTOR], 0).unwrap();
    disk.fail_nth(is_data_sync, 0, FaultKind::SyncKept(PowerLoss::DropAll));
    file.sync_data().unwrap_err();
    file.write_at(&[2; SECTOR], 0).unwrap();
    assert_eq!(disk.pending_choices().len(), 1);
    file.sync_data().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), [2; SECTOR]);
}

#[test]
fn every_choice_is_asked_for_and_every_image_comes_once() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &two(0, 0));
    file.write_at(&two(1, 2), 0).unwrap();
    file.write_at(&[3; SECTOR], 0).unwrap();
    file.set_len(2000).unwrap();
    disk.hard_link(p("/f"), p("/g")).unwrap();
    disk.remove_file(p("/f")).unwrap();

    let points = disk.pending_choices();
    let parts: Vec<_> = points
        .iter()
        .map(|point| (point.path.to_str().unwrap(), point.part, point.options))
        .collect();
    assert_eq!(
        parts,
        [
            ("/g", Part::Name, 2),
            ("/f", Part::Name, 2),
            ("/g", Part::Length, 2),
            ("/g", Part::Sector(0), 3),
            ("/g", Part::Sector(1), 2),
        ]
    );

    let mut seen = BTreeSet::new();
    let mut count = 0;
    for image in disk.power_loss_images() {
        count += 1;
        let names: Vec<_> = image.files().into_iter().map(|(path, _)| path).collect();
        let bytes = names.first().map(|path| image.read_file(path).unwrap());
        assert!(image.pending_choices().is_empty());
        seen.insert((names, bytes));
    }
    // With neither name there is nothing left to decide about the file.
    assert_eq!(count, 3 * 12 + 1);
    assert_eq!(seen.len(), count);
    assert_eq!(
        disk.pending_choices(),
        points,
        "the disk itself stays as it was"
    );

    // The same answers by hand, out of range ones being the highest.
    let image = disk.snapshot();
    image.power_loss_with(&mut |point| if point.part == Part::Sector(0) { 1 } else { 99 });
    let bytes = image.read_file("/g").unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[600]), (2000, 1, 2));
    assert!(image.read_file("/f").is_err());
}

#[test]
fn a_seed_decides_and_nothing_else() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"");
    file.write_at(&vec![7; 40 * SECTOR], 0).unwrap();
    let images: Vec<_> = (0..20)
        .map(|seed| after(&disk, PowerLoss::Seeded(seed), "/f").unwrap())
        .collect();
    let again: Vec<_> = (0..20)
        .map(|seed| after(&disk, PowerLoss::Seeded(seed), "/f").unwrap())
        .collect();
    assert_eq!(images, again);
    let partial = images
        .iter()
        .filter(|bytes| bytes.contains(&7) && bytes.contains(&0))
        .count();
    assert!(partial >= 5, "{partial} of 20 images are torn");
    assert!(images.iter().any(Vec::is_empty));
}

#[test]
fn filling_with_zeros_leaves_one_choice() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"");
    file.write_at(&[0; 64 * 1024], 0).unwrap();
    let points = disk.pending_choices();
    assert_eq!(points.len(), 1);
    assert_eq!(points[0].part, Part::Length);
}

// ---- processes

#[test]
fn a_kill_ends_handles_locks_and_clones_but_not_its_own_handle() {
    let disk = SimVfs::new();
    let clone = disk.clone();
    let file = durable(&disk, "/f", b"abc");
    let dir = root(&clone);
    let lock = clone.try_lock(p("/lock")).unwrap().unwrap();
    disk.kill();

    let dead = [
        file.write_at(b"x", 0).map(drop),
        file.read_at(&mut [0], 0).map(drop),
        file.sync_data(),
        file.set_len(0),
        file.len().map(drop),
        file.identity().map(drop),
        dir.sync(),
        clone.list(p("/")).map(drop),
        clone.create(p("/new")).map(drop),
        clone.try_lock(p("/lock")).map(drop),
    ];
    for (number, result) in dead.into_iter().enumerate() {
        assert!(SimVfs::is_crashed(&result.unwrap_err()), "call {number}");
    }
    assert!(clone.has_crashed() && !disk.has_crashed());
    assert_eq!(disk.read_file("/f").unwrap(), b"abc");

    let taken = disk
        .try_lock(p("/lock"))
        .unwrap()
        .expect("the lock is free");
    drop(lock);
    assert!(
        disk.try_lock(p("/lock")).unwrap().is_none(),
        "a dead owner frees nothing"
    );
    drop(taken);
}

#[test]
fn two_processes_die_apart_in_a_kill_and_together_in_a_power_loss() {
    let disk = SimVfs::new();
    let other = disk.new_process();
    let file = durable(&other, "/f", b"abc");
    let mine = disk.open(p("/f"), Access::Write).unwrap();
    disk.kill();
    assert!(mine.len().is_err());
    file.write_at(b"xyz", 0).unwrap();
    file.sync_data().unwrap();

    disk.power_loss(PowerLoss::DropAll);
    assert!(SimVfs::is_crashed(&file.len().unwrap_err()));
    assert!(SimVfs::is_crashed(&other.list(p("/")).unwrap_err()));
    assert_eq!(disk.read_file("/f").unwrap(), b"xyz");
    other.kill();
    assert_eq!(
        other.list(p("/")).unwrap().len(),
        1,
        "its own kill starts it anew"
    );
}

#[test]
fn locks_are_exclusive_and_end_with_their_value() {
    let disk = SimVfs::new();
    let other = disk.new_process();
    let lock = disk.try_lock(p("/lock")).unwrap().unwrap();
    assert!(disk.try_lock(p("/lock")).unwrap().is_none());
    assert!(other.try_lock(p("/lock")).unwrap().is_none());
    assert!(other.try_lock(p("/lock2")).unwrap().is_some());
    drop(lock);
    let lock = other.try_lock(p("/lock")).unwrap().unwrap();

    // Taken over behind the back of the owner: its drop must not free the lock of the new one.
    disk.break_lock("/lock").unwrap();
    let taken = disk.try_lock(p("/lock")).unwrap().unwrap();
    drop(lock);
    assert!(other.try_lock(p("/lock")).unwrap().is_none());
    drop(taken);

    // A lock belongs to the file: with a new file under the name there are two owners.
    let first = disk.try_lock(p("/lock")).unwrap().unwrap();
    disk.remove_file(p("/lock")).unwrap();
    let second = other
        .try_lock(p("/lock"))
        .unwrap()
        .expect("another file, another lock");
    drop((first, second));
}

#[test]
fn the_number_of_a_file_is_used_again_once_nobody_holds_it() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"");
    let first = disk.identity(p("/f")).unwrap();
    disk.remove_file(p("/f")).unwrap();
    disk.create(p("/f")).unwrap();
    assert_ne!(disk.identity(p("/f")).unwrap(), first, "it is still open");
    assert_eq!(file.identity().unwrap(), first);
    drop(file);
    disk.remove_file(p("/f")).unwrap();
    disk.create(p("/f")).unwrap();
    disk.create(p("/g")).unwrap();
    let numbers = [
        disk.identity(p("/f")).unwrap(),
        disk.identity(p("/g")).unwrap(),
    ];
    assert!(numbers.contains(&first));
    // Names that come back after a power loss get numbers that are not in use.
    root(&disk).sync().unwrap();
    disk.remove_file(p("/f")).unwrap();
    disk.remove_file(p("/g")).unwrap();
    disk.create(p("/h")).unwrap();
    disk.power_loss_with(&mut |point| usize::from(point.path == p("/h")));
    let names = ["/f", "/g", "/h"].map(|path| disk.identity(p(path)).unwrap());
    assert_eq!(
        names
            .into_iter()
            .collect::<std::collections::HashSet<_>>()
            .len(),
        3
    );
}

#[test]
fn a_crash_at_every_call() {
    let run = |disk: &SimVfs| -> io::Result<()> {
        let dir = disk.open_dir(p("/"))?;
        let file = disk.create(p("/f"))?;
        file.write_at(b"abc", 0)?;
        assert_eq!(file.len()?, 3);
        file.sync_data()?;
        dir.sync()
    };
    let mut reached = Vec::new();
    for calls in 0.. {
        let disk = SimVfs::new();
        disk.crash_after(calls);
        let result = run(&disk);
        let written = disk.read_file("/f").ok();
        let kept = after(&disk, PowerLoss::DropAll, "/f");
        reached.push((written.map(|bytes| bytes.len()), kept.is_some()));
        let Err(error) = result else {
            assert!(!disk.has_crashed());
            break;
        };
        assert!(SimVfs::is_crashed(&error) && disk.has_crashed());
        assert!(
            SimVfs::is_crashed(&disk.list(p("/")).unwrap_err()),
            "reads fail as well"
        );
        disk.kill();
        assert_eq!(disk.list(p("/")).unwrap().len(), usize::from(calls > 0));
    }
    let expected = [
        (None, false),
        (Some(0), false),
        (Some(3), false),
        (Some(3), false),
        (Some(3), true),
    ];
    assert_eq!(reached, expected);
}

// ---- faults

#[test]
fn plain_errors_come_at_the_nth_call_once_and_do_nothing() {
    let kinds = [
        (FaultKind::Eio, None),
        (FaultKind::Enospc, Some(io::ErrorKind::StorageFull)),
        (FaultKind::Edquot, Some(io::ErrorKind::QuotaExceeded)),
        (FaultKind::Efbig, Some(io::ErrorKind::FileTooLarge)),
        (FaultKind::Erofs, Some(io::ErrorKind::ReadOnlyFilesystem)),
        (FaultKind::Eintr, Some(io::ErrorKind::Interrupted)),
    ];
    for (fault, kind) in kinds {
        let disk = SimVfs::new();
        let file = durable(&disk, "/f", b"...");
        disk.fail_nth(is_write, 1, fault);
        file.write_at(b"1", 0).unwrap();
        let error = file.write_at(b"2", 1).unwrap_err();
        match kind {
            Some(kind) => assert_eq!(error.kind(), kind),
            None if cfg!(target_os = "linux") => assert_eq!(error.raw_os_error(), Some(5)),
            None => {}
        }
        assert!(!SimVfs::is_crashed(&error));
        file.write_at(b"3", 2).unwrap();
        assert_eq!(disk.read_file("/f").unwrap(), b"1.3");
        assert_eq!(disk.faults_fired(), 1);
    }
}

#[test]
fn every_kind_of_call_can_fail() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"abc");
    let dir = root(&disk);
    disk.create_dir(p("/d")).unwrap();
    disk.fail_from(|_| true, 0, FaultKind::Eio);
    let before = disk.files();
    let results = [
        disk.create_dir(p("/x")),
        disk.open_dir(p("/")).map(drop),
        disk.list(p("/")).map(drop),
        disk.create(p("/x")).map(drop),
        disk.open(p("/f"), Access::Read).map(drop),
        disk.hard_link(p("/f"), p("/x")),
        disk.rename(p("/f"), p("/x")),
        disk.remove_file(p("/f")),
        disk.remove_dir(p("/d")),
        disk.identity(p("/f")).map(drop),
        disk.try_lock(p("/x")).map(drop),
        file.read_at(&mut [0], 0).map(drop),
        file.write_at(b"x", 0).map(drop),
        file.sync_data(),
        file.set_len(9),
        file.len().map(drop),
        file.identity().map(drop),
        dir.sync(),
    ];
    assert_eq!(disk.faults_fired(), results.len() as u64);
    assert!(results.iter().all(Result::is_err));
    assert_eq!(disk.files(), before);
    disk.clear_faults();
    assert_eq!(disk.list(p("/")).unwrap().len(), 2);
}

/// A read of nothing means the end of the file, which a journal rightly takes for a file that was cut.
/// Simulation, seed 1032489.
#[test]
fn a_short_read_is_no_end_of_the_file() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"......");
    let mut buffer = [0; 6];
    disk.fail_nth(|_| true, 0, FaultKind::ShortRead(0));
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 1);
    disk.fail_nth(|_| true, 0, FaultKind::ShortRead(0));
    assert_eq!(file.read_at(&mut buffer, 6).unwrap(), 0);
}

#[test]
fn short_and_failing_transfers_move_what_they_say() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"......");
    let mut buffer = [0; 6];
    disk.fail_nth(|_| true, 0, FaultKind::ShortRead(2));
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 2);
    disk.fail_nth(|_| true, 0, FaultKind::ShortWrite(0));
    assert_eq!(file.write_at(b"abcdef", 0).unwrap(), 0);
    disk.fail_nth(|_| true, 0, FaultKind::ShortWrite(2));
    assert_eq!(file.write_at(b"abcdef", 0).unwrap(), 2);
    assert_eq!(disk.read_file("/f").unwrap(), b"ab....");
    disk.fail_nth(|_| true, 0, FaultKind::FailedWrite(3));
    let error = file.write_at(b"uvwxyz", 0).unwrap_err();
    assert!(!SimVfs::is_crashed(&error));
    assert_eq!(disk.read_file("/f").unwrap(), b"uvw...");
    disk.fail_nth(is_write, 0, FaultKind::Crash(1));
    assert!(SimVfs::is_crashed(
        &file.write_at(b"Abcdef", 0).unwrap_err()
    ));
    assert!(SimVfs::is_crashed(&file.len().unwrap_err()));
    assert_eq!(disk.read_file("/f").unwrap(), b"Avw...");
}

#[test]
fn a_plain_error_of_a_sync_leaves_the_pages_dirty() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"old");
    file.write_at(b"new", 0).unwrap();
    disk.fail_nth(is_data_sync, 0, FaultKind::Eintr);
    file.sync_data().unwrap_err();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), b"old");
    file.sync_data().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), b"new");
}

#[test]
fn failed_sync_that_keeps_the_page_and_calls_it_clean() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &two(1, 1));
    file.write_at(&two(2, 2), 0).unwrap();
    disk.fail_nth(is_data_sync, 0, FaultKind::SyncKept(PowerLoss::DropAll));
    file.sync_data().unwrap_err();
    assert_eq!(
        disk.read_file("/f").unwrap(),
        two(2, 2),
        "readers see the new contents"
    );
    file.sync_data().unwrap();
    assert_eq!(
        after(&disk, PowerLoss::KeepAll, "/f").unwrap(),
        two(1, 1),
        "no later sync helps"
    );
    assert_eq!(disk.read_durable("/f").unwrap(), two(1, 1));
}

#[test]
fn failed_sync_that_reverts_the_page() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"old");
    file.write_at(b"newer", 0).unwrap();
    disk.fail_nth(is_data_sync, 0, FaultKind::SyncReverted(PowerLoss::DropAll));
    file.sync_data().unwrap_err();
    assert_eq!(disk.read_file("/f").unwrap(), b"old");
    assert_eq!(file.len().unwrap(), 3);
    file.sync_data().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), b"old");
}

#[test]
fn failed_sync_that_is_reported_one_sync_late() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"old");
    let other = disk.open(p("/f"), Access::Write).unwrap();
    file.write_at(b"new", 0).unwrap();
    disk.fail_nth(is_data_sync, 0, FaultKind::SyncLate(PowerLoss::DropAll));
    file.sync_data().unwrap();
    assert_eq!(disk.read_file("/f").unwrap(), b"new");
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), b"old");
    other.sync_data().unwrap_err();
    file.sync_data().unwrap();
}

#[test]
fn failed_write_back_is_reported_once_to_each_open_file() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"old");
    let other = disk.open(p("/f"), Access::Write).unwrap();
    disk.fail_nth(is_write, 0, FaultKind::WriteBack(PowerLoss::DropAll));
    file.write_at(b"new", 0).unwrap();
    let late = disk.open(p("/f"), Access::Read).unwrap();
    assert_eq!(disk.read_file("/f").unwrap(), b"new");
    late.sync_data().unwrap();
    file.sync_data().unwrap_err();
    file.sync_data().unwrap();
    other.sync_data().unwrap_err();
    other.sync_data().unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), b"old");

    // Noticed by the sync itself: it reports to its own handle at once, to the others later.
    file.write_at(b"NEW", 0).unwrap();
    disk.fail_nth(is_data_sync, 0, FaultKind::WriteBack(PowerLoss::DropAll));
    file.sync_data().unwrap_err();
    file.sync_data().unwrap();
    other.sync_data().unwrap_err();
}

#[test]
fn a_failed_sync_can_have_written_a_part() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &[0; 32 * SECTOR]);
    file.write_at(&[1; 32 * SECTOR], 0).unwrap();
    disk.fail_nth(is_data_sync, 0, FaultKind::SyncKept(PowerLoss::Seeded(1)));
    file.sync_data().unwrap_err();
    let bytes = after(&disk, PowerLoss::DropAll, "/f").unwrap();
    assert!(bytes.contains(&0) && bytes.contains(&1));
}

#[test]
fn failed_directory_sync_loses_names_that_stay_visible() {
    let disk = SimVfs::new();
    let (dir, other) = (root(&disk), root(&disk));
    disk.create(p("/f")).unwrap();
    disk.fail_nth(is_dir_sync, 0, FaultKind::DirSync(PowerLoss::DropAll));
    dir.sync().unwrap_err();
    let later = root(&disk);
    later.sync().unwrap();
    dir.sync().unwrap();
    assert_eq!(disk.list(p("/")).unwrap().len(), 1);
    assert_eq!(
        after(&disk, PowerLoss::KeepAll, "/f"),
        None,
        "the later Ok proved nothing"
    );
    other.sync().unwrap_err();
    other.sync().unwrap();
}

#[test]
fn plans_count_apart_and_a_due_one_waits() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"abc");
    disk.fail_nth(is_write, 0, FaultKind::ShortWrite(1));
    disk.fail_nth(is_write, 0, FaultKind::ShortWrite(2));
    assert_eq!(file.write_at(b"xyz", 0).unwrap(), 1);
    assert_eq!(file.write_at(b"xyz", 0).unwrap(), 2);
    assert_eq!(file.write_at(b"xyz", 0).unwrap(), 3);
}

#[test]
fn space_runs_out_and_comes_back() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &[1; 100]);
    disk.set_capacity(Some(150));
    assert_eq!(file.write_at(&[2; 100], 60).unwrap(), 90, "as much as fits");
    let error = file.write_at(&[3; 10], 150).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    let error = disk.create(p("/g")).unwrap().set_len(1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(
        file.write_at(&[4; 150], 0).unwrap(),
        150,
        "overwriting needs no space"
    );
    assert_eq!(disk.used(), 150);

    disk.hard_link(p("/f"), p("/h")).unwrap();
    disk.remove_file(p("/f")).unwrap();
    assert_eq!(disk.used(), 150);
    disk.remove_file(p("/h")).unwrap();
    assert_eq!(disk.used(), 150, "it is still open");
    drop(file);
    assert_eq!(disk.used(), 0);

    let file = disk.create(p("/f")).unwrap();
    file.set_len(150).unwrap();
    file.write_at(&[1], 150).unwrap_err();
    disk.set_capacity(Some(151));
    file.write_at(&[1], 150).unwrap();
    disk.set_capacity(None);
    file.set_len(1 << 40).unwrap();
}

// ---- observation

#[test]
fn the_trace_tells_every_call_and_its_outcome() {
    let disk = SimVfs::new();
    let other = disk.new_process();
    let file = durable(&disk, "/f", b"abc");
    other.open(p("/none"), Access::Read).unwrap_err();
    file.read_at(&mut [0; 9], 1).unwrap();
    other.kill();
    let calls = disk.trace();
    let told: Vec<_> = calls
        .iter()
        .map(|call| (call.op.clone(), call.outcome))
        .collect();
    let path = |path: &str| Arc::<Path>::from(p(path));
    let failed = Outcome::Failed(io::ErrorKind::NotFound);
    let expected = [
        (Op::Create { path: path("/f") }, Outcome::Done(0)),
        (
            Op::Write {
                path: path("/f"),
                offset: 0,
                length: 3,
            },
            Outcome::Done(3),
        ),
        (Op::SyncData { path: path("/f") }, Outcome::Done(0)),
        (Op::OpenDir { path: path("/") }, Outcome::Done(0)),
        (Op::SyncDir { path: path("/") }, Outcome::Done(0)),
        (
            Op::Open {
                path: path("/none"),
                access: Access::Read,
            },
            failed,
        ),
        (
            Op::Read {
                path: path("/f"),
                offset: 1,
                length: 9,
            },
            Outcome::Done(2),
        ),
    ];
    assert_eq!(told, expected);
    assert!(
        calls
            .iter()
            .enumerate()
            .all(|(place, call)| call.index == place as u64)
    );
    assert_ne!(calls[4].process, calls[5].process);
    assert_eq!(calls[4].process, calls[6].process);
    assert_eq!((disk.sync_count("/f"), disk.sync_count("")), (1, 2));

    disk.fail_nth(is_data_sync, 0, FaultKind::Eio);
    file.sync_data().unwrap_err();
    disk.kill();
    file.sync_data().unwrap_err();
    assert_eq!(disk.sync_count("/f"), 1, "only those that succeeded");
    assert_eq!(disk.trace().last().unwrap().outcome, Outcome::Crashed);
    disk.clear_trace();
    assert!(disk.trace().is_empty() && disk.sync_count("") == 0);
    disk.set_tracing(false);
    disk.list(p("/")).unwrap();
    assert!(disk.trace().is_empty());
}

#[test]
fn the_trace_is_bounded_and_the_count_is_not() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"");
    let more = TRACE_LIMIT as u64 + 10;
    for _ in 0..more {
        file.sync_data().unwrap();
    }
    let calls = disk.trace();
    assert_eq!(calls.len(), TRACE_LIMIT);
    assert_eq!(calls.last().unwrap().index, 4 + more);
    assert_eq!(disk.sync_count("/f"), more + 1);
}

#[test]
fn the_hook_sees_the_disk_before_the_call() {
    let disk = SimVfs::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let inside = disk.clone();
    let notes = seen.clone();
    disk.set_hook(move |op| {
        if is_data_sync(op) {
            // Takes the mutex of the disk, and would hang if the caller held it.
            notes
                .lock()
                .unwrap()
                .push(inside.read_durable("/f").unwrap());
        }
    });
    let file = disk.create(p("/f")).unwrap();
    file.write_at(b"abc", 0).unwrap();
    file.sync_data().unwrap();
    disk.clear_hook();
    file.sync_data().unwrap();
    assert_eq!(*seen.lock().unwrap(), [b""]);
    assert_eq!(disk.read_durable("/f").unwrap(), b"abc");
}

#[test]
fn a_hook_can_hold_one_call_while_others_go_on() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", b"abc");
    let (enter, entered) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let left = Mutex::new(left);
    disk.set_hook(move |op| {
        if is_data_sync(op) {
            enter.send(()).unwrap();
            left.lock().unwrap().recv().unwrap();
        }
    });
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    let thread = std::thread::spawn(move || {
        file.sync_data().unwrap();
        count.store(1, Ordering::SeqCst);
    });
    entered.recv().unwrap();
    assert_eq!(disk.list(p("/")).unwrap().len(), 1);
    assert_eq!(done.load(Ordering::SeqCst), 0);
    leave.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_in_a_filter_leaves_the_disk_usable() {
    let disk = SimVfs::new();
    disk.fail_nth(|_| panic!("by a test"), 0, FaultKind::Eio);
    let inside = disk.clone();
    std::thread::spawn(move || inside.list(p("/")).map(drop))
        .join()
        .unwrap_err();
    disk.clear_faults();
    assert!(disk.list(p("/")).unwrap().is_empty());
}

// ---- damage and copies

#[test]
fn damage_at_rest_needs_no_sync() {
    let disk = SimVfs::new();
    durable(&disk, "/f", &two(1, 2));
    let both = || {
        let cached = disk.read_file("/f").unwrap();
        assert_eq!(disk.read_durable("/f").unwrap(), cached);
        assert_eq!(after(&disk, PowerLoss::DropAll, "/f").unwrap(), cached);
        cached
    };
    disk.flip_bit("/f", 3, 7).unwrap();
    assert_eq!(both()[2..5], [1, 129, 1]);
    disk.flip_byte("/f", 512).unwrap();
    assert_eq!(both()[511..514], [1, 253, 2]);
    disk.zero("/f", 510..514).unwrap();
    assert_eq!(both()[509..515], [1, 0, 0, 0, 0, 2]);
    disk.corrupt("/f", 1022..9999, |bytes| bytes.copy_from_slice(b"xy"))
        .unwrap();
    assert_eq!(both()[1021..], [2, b'x', b'y']);
    disk.truncate("/f", 600).unwrap();
    assert_eq!(both().len(), 600);
    disk.truncate("/f", 700).unwrap();
    assert_eq!(both()[598..700], [[2; 2].as_slice(), &[0; 100]].concat());
    assert_eq!(disk.files(), [("/f".into(), 700)]);
    disk.put_file("/f", b"other").unwrap();
    assert_eq!(both(), b"other");
    disk.put_file("/g", b"new").unwrap();
    disk.remove("/f").unwrap();
    assert_eq!(after(&disk, PowerLoss::DropAll, "/f"), None);
    assert_eq!(after(&disk, PowerLoss::DropAll, "/g").unwrap(), b"new");
    disk.flip_byte("/f", 0).unwrap_err();
    disk.put_file("/none/f", b"").unwrap_err();
}

#[test]
fn removal_at_rest_settles_what_was_unsynced_about_the_name() {
    let disk = SimVfs::new();
    disk.create(p("/f")).unwrap();
    disk.create(p("/g")).unwrap();
    disk.remove("/f").unwrap();
    assert!(
        disk.power_loss_images()
            .all(|image| image.read_file("/f").is_err())
    );
    assert_eq!(after(&disk, PowerLoss::KeepAll, "/f"), None);
    assert!(after(&disk, PowerLoss::KeepAll, "/g").is_some());
    root(&disk).sync().unwrap();
    assert_eq!(after(&disk, PowerLoss::KeepAll, "/f"), None);
}

#[test]
fn a_snapshot_is_a_disk_of_its_own() {
    let disk = SimVfs::new();
    let file = durable(&disk, "/f", &two(1, 2));
    disk.hard_link(p("/f"), p("/g")).unwrap();
    file.write_at(b"unsynced", 0).unwrap();
    let lock = disk.try_lock(p("/lock")).unwrap().unwrap();
    disk.fail_from(|_| true, 0, FaultKind::Eio);

    let copy = disk.snapshot();
    disk.clear_faults();
    assert_eq!(copy.pending_choices(), disk.pending_choices());
    assert!(copy.try_lock(p("/lock")).unwrap().is_some());
    let own = copy.open(p("/g"), Access::Write).unwrap();
    own.write_at(b"COPY", 0).unwrap();
    assert_eq!(
        &copy.read_file("/f").unwrap()[..8],
        b"COPYnced",
        "both names lead to one file"
    );
    copy.zero("/f", 512..1024).unwrap();
    copy.remove("/g").unwrap();
    copy.power_loss(PowerLoss::DropAll);

    assert_eq!(&disk.read_file("/f").unwrap()[..8], b"unsynced");
    assert_eq!(disk.read_file("/f").unwrap()[512], 2);
    assert!(disk.read_file("/g").is_ok());
    file.write_at(b"x", 0).unwrap();
    assert_eq!(copy.read_file("/f").unwrap()[0], 1);
    drop(lock);
}

#[test]
fn large_files_and_many_snapshots_are_quick() {
    let disk = SimVfs::new();
    let length = 16 << 20;
    let file = disk.create(p("/f")).unwrap();
    let bytes: Vec<u8> = (0..length as u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let start = std::time::Instant::now();
    file.write_at(&bytes, 0).unwrap();
    file.sync_data().unwrap();
    root(&disk).sync().unwrap();
    let mut read = vec![0; length];
    assert_eq!(file.read_at(&mut read, 0).unwrap(), length);
    assert!(read == bytes);
    for offset in 0..50 {
        let copy = disk.snapshot();
        copy.flip_byte("/f", offset * 4096).unwrap();
    }
    // Far above what it takes, far below what copying or quadratic work would.
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    eprintln!(
        "16 MiB written, synced and read, 50 damaged copies: {:?}",
        start.elapsed()
    );
}

#[test]
fn a_slow_sync_returns_when_it_is_let_go() {
    let disk = SimVfs::new();
    let file = disk.create(p("/f")).unwrap();
    file.write_at(b"abc", 0).unwrap();
    let stall = disk.stall(|op| matches!(op, Op::SyncData { .. }));
    let slow = std::thread::spawn(move || file.sync_data());
    assert!(stall.wait_for(1, std::time::Duration::from_secs(20)));
    assert_eq!(stall.waiting(), 1);
    assert_eq!(
        disk.read_durable("/f").unwrap(),
        b"",
        "nothing happened yet"
    );
    assert!(!slow.is_finished());
    disk.identity(p("/f")).unwrap();
    drop(stall);
    slow.join().unwrap().unwrap();
    assert_eq!(disk.read_durable("/f").unwrap(), b"abc");
}

#[test]
fn a_sync_that_never_returns_ends_with_its_process() {
    let disk = SimVfs::new();
    let mine = disk.new_process();
    let file = mine.create(p("/f")).unwrap();
    file.write_at(b"abc", 0).unwrap();
    let stall = disk.stall(Op::is_sync);
    let stuck = std::thread::spawn(move || file.sync_data());
    assert!(stall.wait_for(1, std::time::Duration::from_secs(20)));
    mine.kill();
    let error = stuck.join().unwrap().unwrap_err();
    assert!(SimVfs::is_crashed(&error));
    assert_eq!(stall.waiting(), 0);
    assert_eq!(disk.read_durable("/f").unwrap(), b"");
    assert!(!stall.wait_for(1, std::time::Duration::from_millis(5)));
}
