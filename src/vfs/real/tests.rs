#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::*;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Place {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn what_is_made_is_for_the_owner_only() {
    let place = Place::new();
    RealVfs.create_dir(&place.path("d")).unwrap();
    RealVfs.create(&place.path("f")).unwrap();
    let _lock = RealVfs.try_lock(&place.path("l")).unwrap().unwrap();
    assert_eq!(mode(&place.path("d")), 0o700);
    assert_eq!(mode(&place.path("f")), 0o600);
    assert_eq!(mode(&place.path("l")), 0o600);
}

#[test]
fn symbolic_links_are_not_followed() {
    let place = Place::new();
    fs::write(place.path("target"), b"x").unwrap();
    fs::create_dir(place.path("dir")).unwrap();
    symlink(place.path("target"), place.path("link")).unwrap();
    symlink(place.path("dir"), place.path("dirlink")).unwrap();
    symlink(place.path("nowhere"), place.path("dangling")).unwrap();

    for access in [Access::Read, Access::Write] {
        RealVfs.open(&place.path("link"), access).unwrap_err();
    }
    RealVfs.try_lock(&place.path("link")).unwrap_err();
    RealVfs.try_lock(&place.path("dangling")).unwrap_err();
    RealVfs.create(&place.path("dangling")).unwrap_err();
    assert!(!place.path("nowhere").exists());

    let target = RealVfs.identity(&place.path("target")).unwrap();
    assert_ne!(RealVfs.identity(&place.path("link")).unwrap(), target);
    let entries = RealVfs.list(place.directory.path()).unwrap();
    let directories: Vec<_> = entries.iter().filter(|entry| entry.is_dir).collect();
    assert_eq!(directories.len(), 1, "{entries:?}");
    assert_eq!(directories[0].name, "dir");
}

#[test]
fn a_pipe_and_a_directory_are_refused_at_once() {
    let place = Place::new();
    let pipe = place.path("pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).unwrap();
    let (sender, receiver) = mpsc::channel();
    let opened = pipe.clone();
    std::thread::spawn(move || {
        for access in [Access::Read, Access::Write] {
            sender
                .send(RealVfs.open(&opened, access).map(drop))
                .unwrap();
        }
        sender.send(RealVfs.try_lock(&opened).map(drop)).unwrap();
    });
    for _ in 0..3 {
        let answer = receiver
            .recv_timeout(Duration::from_secs(5))
            .expect("it blocks");
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    let error = RealVfs
        .open(place.directory.path(), Access::Read)
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
}

#[test]
fn names_that_are_not_text_are_left_out() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    if fs::write(place.directory.path().join(odd), b"").is_err() {
        return; // Some file systems take no such names.
    }
    fs::write(place.path("b"), b"").unwrap();
    fs::write(place.path("a"), b"").unwrap();
    let names: Vec<_> = RealVfs.list(place.directory.path()).unwrap();
    assert_eq!(
        names.iter().map(|entry| &*entry.name).collect::<Vec<_>>(),
        ["a", "b"]
    );
}

#[test]
fn reading_needs_no_write_permission() {
    let place = Place::new();
    fs::write(place.path("f"), b"abc").unwrap();
    fs::set_permissions(place.path("f"), fs::Permissions::from_mode(0o400)).unwrap();
    let file = RealVfs.open(&place.path("f"), Access::Read).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(file.read_at(&mut buffer, 1).unwrap(), 2);
    assert_eq!(&buffer[..2], b"bc");
    file.write_at(b"x", 0).unwrap_err();
    assert_eq!(fs::read(place.path("f")).unwrap(), b"abc");
}

#[test]
fn identity_is_that_of_the_file_and_not_of_the_name() {
    let place = Place::new();
    let file = RealVfs.create(&place.path("f")).unwrap();
    RealVfs
        .hard_link(&place.path("f"), &place.path("g"))
        .unwrap();
    let id = file.identity().unwrap();
    assert_eq!(id.inode, fs::metadata(place.path("g")).unwrap().ino());
    assert_eq!(RealVfs.identity(&place.path("g")).unwrap(), id);
    RealVfs.remove_file(&place.path("f")).unwrap();
    RealVfs.create(&place.path("f")).unwrap();
    assert_ne!(RealVfs.identity(&place.path("f")).unwrap(), id);
    assert_eq!(file.identity().unwrap(), id);
}

#[test]
fn a_lock_ends_with_its_value() {
    let place = Place::new();
    let path = place.path("lock");
    let lock = RealVfs.try_lock(&path).unwrap().unwrap();
    assert!(RealVfs.try_lock(&path).unwrap().is_none());
    drop(lock);
    assert!(RealVfs.try_lock(&path).unwrap().is_some());
    assert!(path.exists());
}

#[test]
fn a_directory_can_be_synced_while_names_change() {
    let place = Place::new();
    let dir = RealVfs.open_dir(place.directory.path()).unwrap();
    RealVfs
        .create(&place.path("f"))
        .unwrap()
        .sync_data()
        .unwrap();
    dir.sync().unwrap();
    RealVfs.remove_file(&place.path("f")).unwrap();
    dir.sync().unwrap();
    fs::write(place.path("f"), b"").unwrap();
    RealVfs.open_dir(&place.path("f")).unwrap_err();
}

/// An agent host starts programs all the time, and between fork and exec each of them has a copy
/// of every open file: the lock of a session that was closed then was still held, for up to a
/// tenth of a second, and as long as a forked child lived.
#[test]
fn a_lock_is_given_back_although_a_copy_of_its_file_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    let file = fs::File::create(&path).unwrap();
    file.lock().unwrap();
    let lock = RealLock {
        file: file.try_clone().unwrap(),
    };
    assert!(RealVfs.try_lock(&path).unwrap().is_none());
    drop(lock);
    assert!(RealVfs.try_lock(&path).unwrap().is_some());
    drop(file);
}
