//! Forks of a journal: what the child has, that neither touches the other, and what happens where the
//! parent goes on in a file that both have.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepwell::identity::SessionId;
use stepwell::journal::{
    Entry, ForkError, ForkPoint, FrameKind, Journal, JournalOptions, JournalView, Lsn, NewRecord,
    NoCarry, Owner, ReadError, Seq, Workers,
};
use stepwell::vfs::Vfs;
use stepwell::vfs::sim::{FaultKind, Op, PowerLoss, SimVfs};
use support::*;

fn small(supersede: u64) -> JournalOptions {
    JournalOptions {
        first_capacity: 4096,
        max_capacity: 4096,
        ..options(supersede)
    }
}

fn child_id(number: u8) -> SessionId {
    SessionId::from_bytes([number; 16])
}

fn child_dir(number: u8) -> PathBuf {
    PathBuf::from(format!("/child-{number}"))
}

fn first(number: u8) -> Vec<u8> {
    format!("the fork {number}").into_bytes()
}

/// Makes the child at a point.
fn fork(disk: &SimVfs, point: &ForkPoint, number: u8, options: &JournalOptions) {
    try_fork(disk, point, number, options).unwrap();
}

fn try_fork(
    disk: &SimVfs,
    point: &ForkPoint,
    number: u8,
    options: &JournalOptions,
) -> Result<(), ForkError> {
    let path = child_dir(number);
    disk.create_dir(&path).unwrap();
    disk.open_dir(Path::new("/")).unwrap().sync().unwrap();
    let (session, record) = (child_id(number), first(number));
    point.fork(vfs(disk), &path, session, options, &[&record], Vec::new())
}

fn view_of(disk: &SimVfs, path: &Path) -> JournalView {
    JournalView::open(vfs(disk), path).unwrap()
}

/// The records of a session that a view gives, in order and without a gap; any error fails the test.
fn records_of(view: &JournalView, session: SessionId) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    for entry in view.read(Lsn::ZERO) {
        let entry = entry.unwrap();
        if entry.kind != FrameKind::Record {
            assert!(entry.session.is_nil());
            continue;
        }
        assert_eq!(entry.session, session);
        records.push(entry.payload);
        assert_eq!(entry.seq.get(), records.len() as u64);
    }
    records
}

fn open_child(disk: &SimVfs, number: u8, options: &JournalOptions) -> Journal {
    let owner = Owner::Session(child_id(number));
    let opening = Journal::open(vfs(disk), &child_dir(number), owner, options.clone()).unwrap();
    let opening = opening.workers(Workers::manual());
    opening.begin(&[], Arc::new(NoCarry)).unwrap().0
}

fn append_child(journal: &Journal, number: u8, payload: &[u8]) {
    let session = child_id(number);
    let receipt = journal
        .append(&[NewRecord { session, payload }], None)
        .unwrap();
    assert_eq!(receipt.records.len(), 1);
}

/// Batches of one to three records over several segments. Gives the last Seq of each batch.
fn fill(journal: &Journal, books: &mut Books, batches: usize, length: usize) -> Vec<u64> {
    let mut ends = Vec::new();
    for number in 0..batches {
        assert!(books.append(journal, 1 + number % 3, length));
        ends.push(books.acknowledged.len() as u64);
    }
    ends
}

/// The files of a directory with their bytes.
fn bytes_in(disk: &SimVfs, path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = disk.files().into_iter().map(|(path, _)| path);
    let inside = files.filter(|file| file.parent() == Some(path));
    let read = inside.map(|file| (file.clone(), disk.read_file(&file).unwrap()));
    read.collect()
}

fn newest_manifest(disk: &SimVfs, path: &Path) -> PathBuf {
    let names = bytes_in(disk, path).into_iter().map(|(file, _)| file);
    let manifests = names.filter(|file| file.to_string_lossy().contains("MANIFEST-"));
    manifests.max().unwrap()
}

/// In which state the parent is when it is forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parent {
    /// Open here.
    Live,
    /// Open in another process.
    Elsewhere,
    Closed,
    Killed,
}

/// At each end of a batch, in each state of the parent: the child has exactly the records up to there,
/// goes on by itself, and so does the parent, also in a file that both have.
#[test]
fn a_child_is_the_parent_up_to_the_point_and_both_go_on() {
    let states = [
        Parent::Live,
        Parent::Elsewhere,
        Parent::Closed,
        Parent::Killed,
    ];
    for (state, supersede) in states
        .into_iter()
        .flat_map(|state| [(state, 0), (state, 1 << 20)])
    {
        let options = small(supersede);
        let disk = disk();
        disk.set_tracing(false);
        let mut books = Books::default();
        let journal = create(&disk, &options).unwrap();
        let mut ends = fill(&journal, &mut books, 7, 500);
        drop(journal);
        let journal = begin(open(&disk, &options).unwrap()).unwrap();
        ends.extend(fill(&journal, &mut books, 9, 300));
        journal.witness().unwrap();
        let mut parent = Some(journal);
        match state {
            Parent::Live | Parent::Elsewhere => {}
            Parent::Closed => parent.take().unwrap().close().unwrap(),
            Parent::Killed => drop(parent.take()),
        }
        for (number, end) in ends.iter().enumerate() {
            let (number, at) = (number as u8, Some(Seq::new(*end)));
            let point = match (&parent, state) {
                (Some(journal), Parent::Live) => journal.fork_point(at).unwrap(),
                _ => view_of(&disk, &dir()).fork_point(at).unwrap(),
            };
            assert_eq!((point.seq(), point.session()), (Seq::new(*end), session()));
            fork(&disk, &point, number, &options);
        }
        let mut parent = parent.unwrap_or_else(|| begin(open(&disk, &options).unwrap()).unwrap());
        // Behind the points, in files that children have too.
        fill(&parent, &mut books, 4, 400);
        for number in 0..ends.len() as u8 {
            let mut expected = books.acknowledged[..ends[number as usize] as usize].to_vec();
            expected.push(first(number));
            let seen = view_of(&disk, &child_dir(number));
            assert_eq!(seen.damage(), None, "{state:?}");
            assert_eq!(records_of(&seen, child_id(number)), expected, "{state:?}");
            assert!(seen.read(Lsn::ZERO).all(|entry| entry.unwrap().proven));
            let before = bytes_in(&disk, &dir());
            let child = open_child(&disk, number, &options);
            for more in 0..12_u8 {
                let payload = vec![more; 700];
                append_child(&child, number, &payload);
                expected.push(payload);
            }
            child.close().unwrap();
            assert_eq!(
                bytes_in(&disk, &dir()),
                before,
                "{state:?}: the parent was changed"
            );
            let seen = view_of(&disk, &child_dir(number));
            assert_eq!(records_of(&seen, child_id(number)), expected, "{state:?}");
        }
        // A roll, a close and an opening of the parent; the children stay what they are.
        let children: Vec<_> = (0..ends.len() as u8)
            .map(|number| records_of(&view_of(&disk, &child_dir(number)), child_id(number)))
            .collect();
        fill(&parent, &mut books, 6, 900);
        parent.close().unwrap();
        parent = begin(open(&disk, &options).unwrap()).unwrap();
        assert_eq!(all(&parent), books.acknowledged);
        for (number, records) in children.iter().enumerate() {
            let number = number as u8;
            let seen = view_of(&disk, &child_dir(number));
            assert_eq!(&records_of(&seen, child_id(number)), records);
        }
    }
}

#[test]
fn a_place_within_a_batch_or_behind_what_is_proven_is_refused() {
    let disk = disk();
    let mut books = Books::default();
    let journal = create(&disk, &small(0)).unwrap();
    let at = |seq| Some(Seq::new(seq));
    assert!(matches!(
        journal.fork_point(at(1)),
        Err(ForkError::NotProven { .. })
    ));
    assert!(books.append(&journal, 1, 50));
    assert!(books.append(&journal, 3, 50));
    assert!(books.append(&journal, 1, 50));
    for within in [2, 3] {
        let refused = journal.fork_point(at(within)).unwrap_err();
        let (at, last) = (Seq::new(within), Seq::new(4));
        assert_eq!(refused, ForkError::WithinBatch { at, last });
    }
    for absent in [0, 6, u64::MAX] {
        let (at, proven) = (Seq::new(absent), Seq::new(5));
        let refused = journal.fork_point(Some(at)).unwrap_err();
        assert_eq!(refused, ForkError::NotProven { at, proven });
    }
    assert_eq!(journal.fork_point(None).unwrap().seq(), Seq::new(5));
    // Nothing vouches for the last group yet: another process does not fork it.
    let view = view_of(&disk, &dir());
    let refused = view.fork_point(at(5)).unwrap_err();
    let (last, proven) = (Seq::new(5), Seq::new(4));
    assert_eq!(refused, ForkError::NotProven { at: last, proven });
    assert_eq!(view.fork_point(None).unwrap().seq(), Seq::new(4));
    journal.witness().unwrap();
    let view = view_of(&disk, &dir());
    assert_eq!(view.fork_point(at(5)).unwrap().seq(), Seq::new(5));
}

/// Forks of forks, at places in what they took over and in what they wrote themselves; then the parents
/// are removed one by one.
#[test]
fn a_fork_is_forked_and_outlives_what_it_came_from() {
    let options = small(0);
    let disk = disk();
    let mut books = Books::default();
    let journal = create(&disk, &options).unwrap();
    let ends = fill(&journal, &mut books, 12, 400);
    let mut of = vec![books.acknowledged.clone()];
    let point = journal.fork_point(Some(Seq::new(ends[9]))).unwrap();
    fork(&disk, &point, 1, &options);
    drop(journal);
    for number in 1..6_u8 {
        let mut records = of[number as usize - 1].clone();
        let point_at = match number {
            1 => ends[9],
            // Back in what the first journal wrote.
            3 => ends[2],
            _ => records.len() as u64 - 2,
        };
        if number > 1 {
            let point = view_of(&disk, &child_dir(number - 1))
                .fork_point(Some(Seq::new(point_at)))
                .unwrap();
            fork(&disk, &point, number, &options);
        }
        records.truncate(point_at as usize);
        records.push(first(number));
        let child = open_child(&disk, number, &options);
        for more in 0..9_u8 {
            let payload = vec![number * 16 + more; 800];
            append_child(&child, number, &payload);
            records.push(payload);
        }
        child.close().unwrap();
        of.push(records);
    }
    for gone in 0..6_u8 {
        for number in gone.max(1)..6 {
            let seen = view_of(&disk, &child_dir(number));
            let found = records_of(&seen, child_id(number));
            assert_eq!(found, of[number as usize], "{number} without {gone}");
        }
        let path = if gone == 0 { dir() } else { child_dir(gone) };
        for (file, _) in bytes_in(&disk, &path) {
            disk.remove_file(&file).unwrap();
        }
    }
}

/// Without its manifest a child is what its own files say, and not what the parent went on to write into
/// a file that both have.
#[test]
fn a_child_without_a_manifest_does_not_take_what_the_parent_wrote() {
    for (supersede, opened) in [(0, false), (0, true), (1 << 20, false), (1 << 20, true)] {
        let options = small(supersede);
        let disk = disk();
        let mut books = Books::default();
        let journal = create(&disk, &options).unwrap();
        let ends = fill(&journal, &mut books, 8, 300);
        for (number, end) in ends.iter().enumerate() {
            let point = journal.fork_point(Some(Seq::new(*end))).unwrap();
            fork(&disk, &point, number as u8, &options);
        }
        fill(&journal, &mut books, 8, 300);
        journal.witness().unwrap();
        for number in 0..ends.len() as u8 {
            let mut expected = books.acknowledged[..ends[number as usize] as usize].to_vec();
            expected.push(first(number));
            if opened {
                let child = open_child(&disk, number, &options);
                for more in 0..6_u8 {
                    append_child(&child, number, &[more; 600]);
                    expected.push(vec![more; 600]);
                }
                child.close().unwrap();
            }
            let manifest = newest_manifest(&disk, &child_dir(number));
            disk.flip_byte(&manifest, 100).unwrap();
            let seen = view_of(&disk, &child_dir(number));
            assert!(seen.damage().is_some());
            assert_eq!(
                records_of(&seen, child_id(number)),
                expected,
                "{number} {opened}"
            );
            assert!(seen.read(Lsn::ZERO).all(|entry| entry.unwrap().proven));
            assert!(matches!(
                seen.fork_point(None),
                Err(ForkError::Damaged { .. })
            ));
            // Nor what it vouched for there.
            assert_eq!(seen.report().watermark, seen.report().last);
        }
    }
}

/// Damage to bytes that both have is reported in both, each by its own path.
#[test]
fn rot_in_shared_bytes_is_reported_in_both() {
    let options = small(0);
    let disk = disk();
    let mut books = Books::default();
    let journal = create(&disk, &options).unwrap();
    let ends = fill(&journal, &mut books, 12, 400);
    let point = journal.fork_point(Some(Seq::new(ends[10]))).unwrap();
    fork(&disk, &point, 1, &options);
    journal.close().unwrap();
    let whole: Vec<Entry> = view_of(&disk, &dir())
        .read(Lsn::ZERO)
        .map(Result::unwrap)
        .collect();
    let mut damaged = 0;
    for entry in whole.iter().filter(|entry| entry.lsn <= point.lsn()) {
        let rotten = disk.snapshot();
        let name = entry.position.segment.to_string();
        // The last file was copied by nobody: it is linked as the others are.
        rotten
            .flip_byte(dir().join(&name), entry.position.offset + 90)
            .unwrap();
        for path in [dir(), child_dir(1)] {
            let seen = JournalView::open(vfs(&rotten), &path).unwrap();
            let errors: Vec<ReadError> = seen.read(Lsn::ZERO).filter_map(Result::err).collect();
            let named = errors.iter().any(|error| match error {
                ReadError::Damaged {
                    path: file, first, ..
                } => *file == path.join(&name) && *first == entry.lsn,
                _ => false,
            });
            assert!(named, "{} in {}: {errors:?}", entry.lsn, path.display());
        }
        // It is not forked further.
        let view = JournalView::open(vfs(&rotten), &child_dir(1)).unwrap();
        if view.fork_point(Some(Seq::new(ends[10]))).is_err() {
            damaged += 1;
        }
    }
    assert!(damaged > 0, "a fork that reads damage is refused");
}

/// Where the system gives no further names the files are copied, up to what the child has.
#[test]
fn files_that_cannot_be_linked_are_copied() {
    for fault in [FaultKind::Exdev, FaultKind::Emlink, FaultKind::Eperm] {
        let options = small(0);
        let disk = disk();
        let mut books = Books::default();
        let journal = create(&disk, &options).unwrap();
        fill(&journal, &mut books, 4, 500);
        drop(journal);
        // Closed by recovery, with a footer beside it.
        let journal = begin(open(&disk, &options).unwrap()).unwrap();
        let ends = fill(&journal, &mut books, 8, 400);
        let shared = |op: &Op| matches!(op, Op::HardLink { original, .. } if original.starts_with(dir()) && !op.path().starts_with(dir()));
        disk.fail_from(shared, 0, fault);
        let point = journal.fork_point(Some(Seq::new(ends[6]))).unwrap();
        fork(&disk, &point, 1, &options);
        assert!(disk.faults_fired() > 1);
        disk.clear_faults();
        let mut expected = books.acknowledged[..ends[6] as usize].to_vec();
        expected.push(first(1));
        // All of it is durable, and none of it depends on the parent.
        disk.power_loss(PowerLoss::DropAll);
        for (file, _) in bytes_in(&disk, &dir()) {
            disk.remove(&file).unwrap();
        }
        let seen = view_of(&disk, &child_dir(1));
        assert_eq!(records_of(&seen, child_id(1)), expected);
        let child = open_child(&disk, 1, &options);
        append_child(&child, 1, b"on");
    }
    // Other failures are failures.
    let disk = disk();
    let journal = create(&disk, &small(0)).unwrap();
    put(&journal, payload(1, 100));
    let point = journal.fork_point(None).unwrap();
    disk.fail_nth(|op| matches!(op, Op::HardLink { .. }), 0, FaultKind::Eio);
    let refused = try_fork(&disk, &point, 1, &small(0)).unwrap_err();
    assert!(matches!(refused, ForkError::Make(_)), "{refused}");
}

/// A new owner replaces the files of the parent between the look and the links: that is told, and
/// nothing is made of half of it.
#[test]
fn a_parent_that_is_replaced_meanwhile_is_looked_at_again() {
    let options = small(1 << 20);
    let disk = disk();
    let mut books = Books::default();
    let journal = create(&disk, &options).unwrap();
    fill(&journal, &mut books, 3, 100);
    journal.witness().unwrap();
    let point = view_of(&disk, &dir()).fork_point(None).unwrap();
    drop(journal);
    let _other = begin(open(&disk, &options).unwrap()).unwrap();
    let refused = try_fork(&disk, &point, 1, &options).unwrap_err();
    assert!(matches!(refused, ForkError::Changed { .. }), "{refused}");
    assert!(JournalView::open(vfs(&disk), &child_dir(1)).is_err());
    let point = view_of(&disk, &dir()).fork_point(None).unwrap();
    fork(&disk, &point, 2, &options);
    let mut expected = books.acknowledged.clone();
    expected.push(first(2));
    assert_eq!(
        records_of(&view_of(&disk, &child_dir(2)), child_id(2)),
        expected
    );
}
