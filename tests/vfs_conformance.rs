//! The simulated disk answers like the real one: the same script runs on both, every answer is
//! written down, and the two protocols must be equal.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![allow(missing_docs)]
#![cfg(target_os = "linux")]

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use stepwell::vfs::sim::SimVfs;
use stepwell::vfs::{Access, Dir, File, Lock, RealVfs, Vfs};

struct Runner<'a> {
    vfs: &'a dyn Vfs,
    root: PathBuf,
    files: Vec<Option<Arc<dyn File>>>,
    locks: Vec<Option<Box<dyn Lock>>>,
    directories: Vec<Arc<dyn Dir>>,
    protocol: Vec<String>,
}

/// One step; files are numbered in the order in which they were opened.
#[derive(Debug, Clone)]
enum Step {
    CreateDir(String),
    SyncDir(String),
    List(String),
    Create(String),
    Open(String, bool),
    Link(String, String),
    Rename(String, String),
    RemoveFile(String),
    RemoveDir(String),
    SameFile(String, String),
    Lock(String),
    Unlock(usize),
    Close(usize),
    Write(usize, Vec<u8>, u64),
    Read(usize, usize, u64),
    SetLen(usize, u64),
    Len(usize),
    Sync(usize),
    SameHandle(usize, String),
}

impl Runner<'_> {
    fn note<T: Debug>(&mut self, step: &Step, result: io::Result<T>) {
        // The kinds of some errors have no name yet, so their numbers are compared too, where the
        // simulated disk gives one.
        let answer = match result {
            Ok(value) => format!("{value:?}"),
            Err(error) => format!("error {:?}", error.kind()),
        };
        self.protocol.push(format!("{step:?} -> {answer}"));
    }

    fn at(&self, name: &str) -> PathBuf {
        // Joining nothing would add a slash, which changes what the system says.
        if name.is_empty() {
            self.root.clone()
        } else {
            self.root.join(name)
        }
    }

    fn file(&self, number: usize) -> Option<Arc<dyn File>> {
        let count = self.files.len().max(1);
        self.files.get(number % count)?.clone()
    }

    fn run(&mut self, step: &Step) {
        let vfs = self.vfs;
        match step {
            Step::CreateDir(name) => self.note(step, vfs.create_dir(&self.at(name))),
            Step::SyncDir(name) => {
                let dir = vfs.open_dir(&self.at(name));
                let result = dir.and_then(|dir| {
                    dir.sync()?;
                    self.directories.push(dir);
                    Ok(())
                });
                self.note(step, result);
            }
            Step::List(name) => self.note(step, vfs.list(&self.at(name))),
            Step::Create(name) => {
                let result = vfs
                    .create(&self.at(name))
                    .map(|file| self.files.push(Some(file)));
                self.note(step, result);
            }
            Step::Open(name, write) => {
                let access = if *write { Access::Write } else { Access::Read };
                let result = vfs.open(&self.at(name), access);
                let result = result.map(|file| self.files.push(Some(file)));
                self.note(step, result);
            }
            Step::Link(from, to) => {
                self.note(step, vfs.hard_link(&self.at(from), &self.at(to)));
            }
            Step::Rename(from, to) => self.note(step, vfs.rename(&self.at(from), &self.at(to))),
            Step::RemoveFile(name) => self.note(step, vfs.remove_file(&self.at(name))),
            Step::RemoveDir(name) => self.note(step, vfs.remove_dir(&self.at(name))),
            Step::SameFile(one, other) => {
                let one = vfs.identity(&self.at(one));
                let other = vfs.identity(&self.at(other));
                self.note(step, one.and_then(|one| Ok(one == other?)));
            }
            Step::Lock(name) => {
                let lock = vfs.try_lock(&self.at(name));
                let result = lock.map(|lock| {
                    let got = lock.is_some();
                    self.locks.push(lock);
                    got
                });
                self.note(step, result);
            }
            Step::Unlock(number) => {
                let count = self.locks.len().max(1);
                if let Some(lock) = self.locks.get_mut(number % count) {
                    *lock = None;
                }
            }
            Step::Close(number) => {
                let count = self.files.len().max(1);
                if let Some(file) = self.files.get_mut(number % count) {
                    *file = None;
                }
            }
            Step::Write(number, bytes, offset) => {
                if let Some(file) = self.file(*number) {
                    self.note(step, file.write_at(bytes, *offset));
                }
            }
            Step::Read(number, count, offset) => {
                if let Some(file) = self.file(*number) {
                    let mut buffer = vec![0xee; *count];
                    let result = file.read_at(&mut buffer, *offset);
                    self.note(step, result.map(|count| (count, buffer)));
                }
            }
            Step::SetLen(number, length) => {
                if let Some(file) = self.file(*number) {
                    self.note(step, file.set_len(*length));
                }
            }
            Step::Len(number) => {
                if let Some(file) = self.file(*number) {
                    self.note(step, file.len());
                }
            }
            Step::Sync(number) => {
                if let Some(file) = self.file(*number) {
                    self.note(step, file.sync_data());
                }
            }
            Step::SameHandle(number, name) => {
                if let Some(file) = self.file(*number) {
                    let own = file.identity();
                    let named = vfs.identity(&self.at(name));
                    self.note(step, named.and_then(|named| Ok(named == own?)));
                }
            }
        }
    }
}

fn protocol(vfs: &dyn Vfs, root: &Path, steps: &[Step]) -> Vec<String> {
    let mut runner = Runner {
        vfs,
        root: root.to_path_buf(),
        files: Vec::new(),
        locks: Vec::new(),
        directories: Vec::new(),
        protocol: Vec::new(),
    };
    for step in steps {
        runner.run(step);
    }
    runner.protocol
}

fn compare(steps: &[Step]) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    RealVfs.create_dir(&root).unwrap();
    let real = protocol(&RealVfs, &root, steps);
    let sim = SimVfs::new();
    sim.create_dir(Path::new("/root")).unwrap();
    let simulated = protocol(&sim, Path::new("/root"), steps);
    for (real, simulated) in real.iter().zip(&simulated) {
        assert_eq!(real, simulated);
    }
    assert_eq!(real.len(), simulated.len());
    real
}

#[test]
fn every_call_and_its_errors() {
    use Step::*;
    let s = String::from;
    let long = "n".repeat(256);
    let steps = [
        CreateDir(s("")),
        CreateDir(s("d")),
        CreateDir(s("d")),
        CreateDir(s("no/d")),
        Create(s("f")),
        Create(s("f")),
        Create(s("d")),
        Create(long),
        Create("n".repeat(255)),
        CreateDir(s("f/x")),
        Open(s("f/x"), false),
        Open(s("d"), false),
        Open(s("d"), true),
        Open(s("none"), false),
        Write(0, b"hello".to_vec(), 0),
        Write(0, b"far".to_vec(), 2000),
        Read(0, 10, 1998),
        Read(0, 3000, 0),
        Read(0, 4, 9000),
        Read(0, 0, 0),
        Write(0, Vec::new(), 9000),
        Len(0),
        SetLen(0, 2),
        SetLen(0, 600),
        Read(0, 700, 0),
        SetLen(0, u64::MAX),
        Sync(0),
        Open(s("f"), false),
        Write(2, b"x".to_vec(), 0),
        SetLen(2, 0),
        Sync(2),
        Read(2, 3, 0),
        Link(s("f"), s("g")),
        Link(s("f"), s("g")),
        Link(s("d"), s("e")),
        Link(s("none"), s("e")),
        Link(s("f"), s("d/../h")),
        SameFile(s("f"), s("g")),
        SameFile(s("f"), s("d")),
        SameFile(s("f"), s("none")),
        SameHandle(0, s("g")),
        RemoveFile(s("f")),
        RemoveFile(s("f")),
        RemoveFile(s("d")),
        Read(0, 5, 0),
        Len(0),
        Create(s("f")),
        SameHandle(0, s("f")),
        SameHandle(0, s("g")),
        Rename(s("f"), s("g")),
        SameHandle(0, s("g")),
        Rename(s("none"), s("g")),
        Rename(s("g"), s("d")),
        Rename(s("d"), s("g")),
        Rename(s("d"), s("d/x")),
        Rename(s("g"), s("d/g")),
        RemoveDir(s("d")),
        RemoveDir(s("none")),
        RemoveDir(s("d/g")),
        CreateDir(s("e")),
        Rename(s("d"), s("e")),
        List(s("")),
        List(s("e")),
        List(s("e/g")),
        List(s("none")),
        CreateDir(s("k")),
        Rename(s("k"), s("e")),
        RemoveFile(s("e/g")),
        Rename(s("k"), s("e")),
        RemoveDir(s("e")),
        List(s("")),
        SyncDir(s("")),
        SyncDir(s("h")),
        SyncDir(s("none")),
        Lock(s("lock")),
        Lock(s("lock")),
        List(s("")),
        Unlock(0),
        Lock(s("lock")),
        Lock(s("e")),
        Lock(s("none/lock")),
        RemoveFile(s("lock")),
        Lock(s("lock")),
    ];
    let protocol = compare(&steps);
    assert_eq!(
        protocol.len(),
        steps.len() - 1,
        "only the unlocking writes nothing down"
    );
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "a", "b", "c", "d", "d/a", "d/b", "e", "e/a", "a/x", "",
    ])
    .prop_map(String::from)
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..6_usize;
    let offset = prop_oneof![0..2100_u64, Just(511), Just(512), Just(513), Just(1 << 20)];
    prop_oneof![
        name().prop_map(Step::CreateDir),
        name().prop_map(Step::SyncDir),
        name().prop_map(Step::List),
        name().prop_map(Step::Create),
        (name(), any::<bool>()).prop_map(|(name, write)| Step::Open(name, write)),
        (name(), name()).prop_map(|(from, to)| Step::Link(from, to)),
        (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        name().prop_map(Step::RemoveFile),
        name().prop_map(Step::RemoveDir),
        (name(), name()).prop_map(|(one, other)| Step::SameFile(one, other)),
        name().prop_map(Step::Lock),
        number.clone().prop_map(Step::Unlock),
        number.clone().prop_map(Step::Close),
        (
            number.clone(),
            prop::collection::vec(any::<u8>(), 0..1200),
            offset.clone()
        )
            .prop_map(|(number, bytes, offset)| Step::Write(number, bytes, offset)),
        (number.clone(), 0..3000_usize, offset.clone())
            .prop_map(|(number, count, offset)| Step::Read(number, count, offset)),
        (number.clone(), offset).prop_map(|(number, length)| Step::SetLen(number, length)),
        number.clone().prop_map(Step::Len),
        number.clone().prop_map(Step::Sync),
        (number, name()).prop_map(|(number, name)| Step::SameHandle(number, name)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]
    #[test]
    fn random_scripts(steps in prop::collection::vec(step(), 1..60)) {
        compare(&steps);
    }
}
