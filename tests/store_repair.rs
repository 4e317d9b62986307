//! Repair: after damage of many kinds, every intact record is in the new store, and every one that is
//! lost is named (P6).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use stepwell::identity::SessionId;
use stepwell::journal::{Entry, FrameKind, Lsn, OpenError, ReadError, RepairReport, Workers};
use stepwell::store::{RepairError, ReplayError};
use store_support::*;

fn id() -> SessionId {
    SessionId::from_bytes([0x5e; 16])
}

fn small() -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: 4096,
            max_capacity: 4096,
            ..JournalOptions::default()
        },
        ..options()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Killed,
    Idle,
    Closed,
}

struct Log {
    disk: SimVfs,
    left: Left,
    entries: BTreeMap<Lsn, Entry>,
    texts: Vec<String>,
}

/// Two openings, several segments, steps of one record and of several.
fn log(left: Left) -> Log {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let store = store_with(&disk, small());
    let session = store.create_session(SessionSpec::new().id(id())).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("first")).unwrap();
    for number in 0..6 {
        let text = format!("step {number} {}", "x".repeat(300));
        turn.commit_step(text_step(&text)).unwrap();
    }
    drop((main, session, store));
    disk.kill();
    let store = store_with(&disk, small());
    let (session, _) = store.open_session(id(), Mode::Write).unwrap();
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main.begin_turn(UserMessage::text("second")).unwrap();
    for number in 0..10 {
        turn.commit_step(text_step(&format!("more {number} {}", "y".repeat(200))))
            .unwrap();
    }
    turn.commit_step(tool_step()).unwrap();
    turn.commit_last_step(text_step("the end")).unwrap();
    match left {
        Left::Killed => {}
        Left::Idle => session.witness().unwrap(),
        Left::Closed => session.close().unwrap(),
    }
    let texts = texts(&session);
    drop((main, session));
    disk.kill();
    let view = store_with(&disk, small()).journal_view(id()).unwrap();
    let entries: BTreeMap<Lsn, Entry> = view
        .read(Lsn::ZERO)
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.lsn, entry))
        .collect();
    Log {
        disk,
        left,
        entries,
        texts,
    }
}

fn files_under(disk: &SimVfs, dir: &str) -> Vec<(PathBuf, u64)> {
    let mut files = disk.files();
    files.retain(|(path, _)| path.starts_with(dir));
    files
}

#[derive(Debug, Default)]
struct Counts {
    whole: u64,
    lossy: u64,
    end_missing: u64,
    fences: u64,
    torn: u64,
    nothing: u64,
}

impl Log {
    fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut files = files_under(&self.disk, "/store/sessions");
        files.retain(|(path, _)| !path.ends_with("LOCK") && !path.ends_with("HOLDER"));
        files
    }

    /// Repairs what is left, and judges it by the test's own books. `hit` is what was damaged.
    fn judge(&self, disk: &SimVfs, path: &Path, hit: &Range<u64>, what: &str, counts: &mut Counts) {
        let before: Vec<_> = files_under(disk, "/store")
            .into_iter()
            .map(|(path, _)| (disk.read_file(&path).unwrap(), path))
            .collect();
        let store = store_with(disk, small());
        let careful = store.repair(id(), "/new", false);
        let report = match &careful {
            Ok(report) => report.clone(),
            Err(RepairError::WouldLose(report)) => {
                assert!(files_under(disk, "/new").is_empty(), "{what}");
                assert!(disk.list(Path::new("/new")).is_err(), "{what}");
                let accepted = store.repair(id(), "/new", true).unwrap();
                assert_eq!(accepted, **report, "{what}");
                accepted
            }
            Err(RepairError::Journal(OpenError::ForeignLog { .. })) => {
                counts.nothing += 1;
                return;
            }
            Err(other) => panic!("{what}: {other}"),
        };
        // The old store is only read.
        for (bytes, path) in before {
            assert_eq!(disk.read_file(&path).unwrap(), bytes, "{what}");
        }
        assert_eq!(careful.is_ok(), report.is_whole(), "{what}");
        counts.whole += u64::from(report.is_whole());
        counts.lossy += u64::from(!report.lost.is_empty());
        counts.end_missing += u64::from(report.end_missing);
        counts.fences += u64::from(report.fences > 0);
        counts.torn += u64::from(report.torn.is_some());
        // What is there is durable.
        let image = disk.snapshot();
        image.power_loss(PowerLoss::DropAll);
        self.judge_new(&image, &report, path, hit, what);
    }

    fn judge_new(
        &self,
        disk: &SimVfs,
        report: &RepairReport,
        path: &Path,
        hit: &Range<u64>,
        what: &str,
    ) {
        let store = Store::on(Arc::new(disk.clone()), "/new", small()).unwrap();
        let view = store.journal_view(id()).unwrap();
        assert_eq!(view.damage(), None, "{what}");
        let mut found: BTreeMap<Lsn, Entry> = BTreeMap::new();
        let mut gaps = Vec::new();
        for read in view.read(Lsn::ZERO) {
            match read {
                Ok(entry) => {
                    let old = &self.entries[&entry.lsn];
                    assert_eq!(entry.kind, old.kind, "{what}");
                    if entry.kind == FrameKind::Record {
                        assert_eq!(
                            (entry.seq, entry.session, entry.previous, entry.epoch),
                            (old.seq, old.session, old.previous, old.epoch),
                            "{what}"
                        );
                        assert_eq!(entry.payload, old.payload, "{what}");
                    }
                    found.insert(entry.lsn, entry);
                }
                Err(ReadError::Gap { first, last, kind }) => {
                    assert_eq!(kind, FrameKind::Lost);
                    gaps.push((first, last));
                }
                Err(other) => panic!("{what}: {other}"),
            }
        }
        let named: Vec<_> = report
            .lost
            .iter()
            .map(|gap| (gap.first, gap.last))
            .collect();
        assert_eq!(gaps, named, "{what}");
        let last = view.report().last;
        // That the end is missing stays said: nobody writes the sequences behind it again.
        if report.end_missing {
            assert_eq!(gaps.last().map(|gap| gap.1), Some(last), "{what}");
        }
        for (lsn, old) in &self.entries {
            let segment = old.position.segment.to_string();
            let frame = old.position.offset
                ..old.position.offset + (80 + old.payload.len() as u64).next_multiple_of(8);
            let intact =
                !path.ends_with(&segment) || frame.end <= hit.start || hit.end <= frame.start;
            if found.contains_key(lsn) {
                continue;
            }
            let named = gaps.iter().any(|(first, last)| first <= lsn && lsn <= last);
            let torn = *lsn > last && report.torn.is_some();
            assert!(
                !intact || torn,
                "{what}: the intact record {lsn} is not kept"
            );
            let window = *lsn > last && self.left == Left::Killed;
            assert!(
                named || report.end_missing || window,
                "{what}: the record {lsn} is not named"
            );
            if named
                && let Some(gap) = report.lost.iter().find(|gap| gap.last >= *lsn)
                && let Some((first, last)) = gap.seqs
                && old.kind == FrameKind::Record
            {
                assert!(first <= old.seq && old.seq <= last, "{what}: {gap:?}");
            }
        }
        let verified = store.verify(id()).unwrap();
        assert!(verified.is_intact(), "{what}: {verified:?}");
        assert_eq!(verified.gaps, report.lost, "{what}");
        assert_eq!(verified.events, report.records, "{what}");
        let (session, _) = store.open_session(id(), Mode::Read).unwrap();
        // One error for each gap, and all that is intact on both sides of it.
        let replayed: Vec<_> = session.replay(Seq::new(1)).collect();
        let errors = replayed.iter().filter(|read| read.is_err()).count();
        assert_eq!(errors, report.lost.len(), "{what}");
        assert_eq!((replayed.len() - errors) as u64, report.records, "{what}");
        drop(session);
        match store.open_session(id(), Mode::Write) {
            Ok((session, opened)) => {
                assert!(
                    report.lost.is_empty() && !report.end_missing,
                    "{what}: a gap was joined in silence"
                );
                assert!(opened.is_clean(), "{what}");
                if report.is_whole() && report.torn.is_none() && found.len() == self.entries.len() {
                    assert_eq!(texts(&session), self.texts, "{what}");
                }
                session.create_loop(LoopSpec::new("after")).unwrap();
            }
            Err(SessionError::History(ReplayError::Journal(ReadError::Gap { .. }))) => {
                assert!(!report.lost.is_empty(), "{what}");
            }
            Err(other) => panic!("{what}: {other}"),
        }
    }
}

#[test]
fn a_sound_session_is_copied_whole() {
    for left in [Left::Killed, Left::Idle, Left::Closed] {
        let log = log(left);
        assert!(log.files().len() > 3, "{:?}", log.files());
        let mut counts = Counts::default();
        log.judge(
            &log.disk,
            Path::new("/nothing"),
            &(0..0),
            "sound",
            &mut counts,
        );
        assert_eq!((counts.whole, counts.torn, counts.fences), (1, 0, 0));
        let store = store_with(&log.disk, small());
        let old = store.journal_view(id()).unwrap();
        let new = Store::on(Arc::new(log.disk.clone()), "/new", small()).unwrap();
        let new = new.journal_view(id()).unwrap();
        // What was not proven is kept, and still not proven; batches are what they were.
        assert_eq!(old.report().watermark, new.report().watermark);
        let read = |view: &stepwell::journal::JournalView| -> Vec<_> {
            let entries = view.read(Lsn::ZERO).map(|entry| entry.unwrap());
            entries
                .map(|entry| (entry.lsn, entry.batch, entry.proven, entry.payload))
                .collect()
        };
        assert_eq!(read(&old), read(&new));
        // Under a new log id: no frame of the old one counts in it.
        let (path, _) = log
            .files()
            .into_iter()
            .find(|(path, _)| path.to_string_lossy().contains("seg-"))
            .unwrap();
        let (copy, _) = files_under(&log.disk, "/new")
            .into_iter()
            .find(|(path, _)| path.to_string_lossy().contains("seg-"))
            .unwrap();
        let log_id = |path: &Path| log.disk.read_file(path).unwrap()[16..32].to_vec();
        assert_ne!(log_id(&path), log_id(&copy));
    }
}

#[test]
fn flipped_bytes() {
    for (left, step) in [(Left::Killed, 41), (Left::Idle, 67), (Left::Closed, 53)] {
        let log = log(left);
        let mut counts = Counts::default();
        for (path, length) in log.files() {
            for offset in (0..length).step_by(step) {
                let disk = log.disk.snapshot();
                disk.flip_byte(&path, offset).unwrap();
                let what = format!("{left:?}: {} flipped at {offset}", path.display());
                log.judge(&disk, &path, &(offset..offset + 1), &what, &mut counts);
            }
        }
        println!("{left:?}: {counts:?}");
        assert!(counts.lossy > 50 && counts.fences > 0, "{counts:?}");
    }
}

#[test]
fn zeroed_and_unreadable_blocks() {
    for left in [Left::Killed, Left::Idle, Left::Closed] {
        let log = log(left);
        let mut counts = Counts::default();
        for (path, length) in log.files() {
            for start in (0..length).step_by(4096) {
                let hit = start..(start + 4096).min(length);
                let disk = log.disk.snapshot();
                disk.zero(&path, hit.clone()).unwrap();
                let what = format!("{left:?}: {} zeroed at {hit:?}", path.display());
                log.judge(&disk, &path, &hit, &what, &mut counts);
                // A block that the disk does not give is the same damage (row 1).
                let sick = log.disk.snapshot();
                let (bad, range) = (path.clone(), hit.clone());
                let of_block = move |op: &Op| match op {
                    Op::Read {
                        path,
                        offset,
                        length,
                    } => {
                        **path == *bad
                            && *offset < range.end
                            && range.start < offset + *length as u64
                    }
                    _ => false,
                };
                sick.fail_from(of_block, 0, FaultKind::Eio);
                let repaired = store_with(&sick, small()).repair(id(), "/new", true);
                let zeroed = store_with(&disk, small()).repair(id(), "/other", true);
                match (repaired, zeroed) {
                    (Ok(mut repaired), Ok(zeroed)) => {
                        let blocks = std::mem::take(&mut repaired.unreadable);
                        let noted = blocks
                            .iter()
                            .any(|block| block.path == path && block.offset == start);
                        assert!(noted || blocks.is_empty(), "{what}: {blocks:?}");
                        assert_eq!(repaired, zeroed, "{what}");
                        assert!(sick.faults_fired() == 0 || noted, "{what}");
                    }
                    (repaired, zeroed) => panic!("{what}: {repaired:?}, {zeroed:?}"),
                }
            }
        }
        println!("{left:?}: {counts:?}");
        assert!(counts.lossy >= 2 && counts.whole >= 8, "{counts:?}");
    }
}

#[test]
fn truncated_and_removed_files() {
    for left in [Left::Killed, Left::Closed] {
        let log = log(left);
        let mut counts = Counts::default();
        for (path, length) in log.files() {
            for end in (0..length).step_by(509) {
                let disk = log.disk.snapshot();
                disk.truncate(&path, end).unwrap();
                let what = format!("{left:?}: {} cut to {end} of {length}", path.display());
                log.judge(&disk, &path, &(end..length), &what, &mut counts);
            }
            let disk = log.disk.snapshot();
            disk.remove(&path).unwrap();
            let what = format!("{left:?}: {} removed", path.display());
            log.judge(&disk, &path, &(0..length), &what, &mut counts);
        }
        println!("{left:?}: {counts:?}");
        assert!(counts.end_missing > 0 && counts.lossy > 0, "{counts:?}");
    }
}

/// Two damages at once, and a repair of what was repaired: gaps stay named.
#[test]
fn a_repaired_session_can_be_repaired_again() {
    let log = log(Left::Closed);
    let store = store_with(&log.disk, small());
    let records: Vec<&Entry> = log
        .entries
        .values()
        .filter(|entry| entry.kind == FrameKind::Record)
        .collect();
    for number in [4, 9] {
        let entry = records[number];
        let path = store
            .session_dir(id())
            .join(entry.position.segment.to_string());
        log.disk
            .flip_byte(&path, entry.position.offset + 90)
            .unwrap();
    }
    let report = store.repair(id(), "/new", true).unwrap();
    assert_eq!(report.lost.len(), 2);
    let again = Store::on(Arc::new(log.disk.clone()), "/new", small()).unwrap();
    let second = again.repair(id(), "/newer", false).unwrap();
    assert!(second.lost.is_empty());
    assert_eq!(second.gaps, report.lost);
    assert_eq!(second.records, report.records);
    let seqs: Vec<_> = report.lost.iter().map(|gap| gap.seqs.unwrap()).collect();
    let hit = [records[4].seq, records[9].seq].map(|seq| (seq, seq));
    assert_eq!(seqs, hit);
}

#[test]
fn the_target_is_new_or_empty() {
    let log = log(Left::Killed);
    let store = store_with(&log.disk, small());
    assert!(matches!(
        store.repair(id(), "/store", true),
        Err(RepairError::TargetNotEmpty { .. })
    ));
    let nobody = SessionId::from_bytes([1; 16]);
    assert_eq!(
        store.repair(nobody, "/new", true),
        Err(RepairError::NotFound(nobody))
    );
    assert!(files_under(&log.disk, "/new").is_empty());
    log.disk.create_dir(Path::new("/empty")).unwrap();
    assert!(store.repair(id(), "/empty", false).unwrap().is_whole());
}

/// Cut off at every call, by a kill and by a power loss: there is a whole store or none; and with a
/// failure of any call there is none, and nothing is left in the way.
#[test]
fn a_repair_that_is_cut_off_leaves_no_half_store() {
    let log = log(Left::Idle);
    let whole = |disk: &SimVfs| {
        let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
        if disk.read_file("/new/STORE").is_err() {
            let half = !disk.list(Path::new("/new")).unwrap_or_default().is_empty();
            if half && let Ok(store) = Store::on(vfs, "/new", small()) {
                // Only what a creation of a store leaves, or all of it.
                let found = store.verify(id());
                assert!(found.is_err() || found.unwrap().events > 20);
            }
            return false;
        }
        let store = Store::on(vfs, "/new", small()).unwrap();
        let report = store.verify(id()).unwrap();
        assert!(report.is_intact() && report.gaps.is_empty());
        let (session, _) = store.open_session(id(), Mode::Write).unwrap();
        assert_eq!(texts(&session), log.texts);
        true
    };
    let mut finished = false;
    for calls in 0.. {
        for loss in [
            None,
            Some(PowerLoss::DropAll),
            Some(PowerLoss::KeepAll),
            Some(PowerLoss::Seeded(calls)),
        ] {
            let disk = log.disk.snapshot();
            disk.crash_after(calls);
            finished = store_with(&disk, small())
                .repair(id(), "/new", false)
                .is_ok();
            match loss {
                None => disk.kill(),
                Some(loss) => disk.power_loss(loss),
            }
            assert!(whole(&disk) || !finished, "call {calls}, {loss:?}");
        }
        let disk = log.disk.snapshot();
        disk.fail_nth(
            |op| op.changes_disk() || matches!(op, Op::SyncDir { .. }),
            calls,
            FaultKind::Eio,
        );
        let repaired = store_with(&disk, small()).repair(id(), "/new", false);
        disk.clear_faults();
        if repaired.is_err() {
            assert!(!whole(&disk), "call {calls}");
            store_with(&disk, small())
                .repair(id(), "/new", false)
                .unwrap_or_else(|error| panic!("call {calls}: {error}"));
        }
        assert!(whole(&disk), "call {calls}");
        if finished {
            assert!(calls > 20);
            break;
        }
    }
    assert!(finished);
}

/// A killed session had a full segment and its prepared successor. The full one was removed, or
/// emptied, and the repair looked only at the end of the last one, which nobody had touched: it gave
/// up acknowledged records without a word, and without being allowed to.
#[test]
fn a_lost_segment_before_an_untouched_successor_is_a_lost_end() {
    let mut lost = 0;
    // So many records that every state of the last two segments comes.
    for records in 1..24 {
        let disk = SimVfs::new();
        disk.set_tracing(false);
        let workers = Workers::manual();
        let prepared = StoreOptions {
            workers: workers.clone(),
            ..small()
        };
        let store = store_with(&disk, prepared);
        let session = store.create_session(SessionSpec::new().id(id())).unwrap();
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let mut turn = main.begin_turn(UserMessage::text("first")).unwrap();
        for number in 0..records {
            turn.commit_step(text_step(&format!("step {number} {}", "x".repeat(300))))
                .unwrap();
            // The successor is prepared aside.
            for _ in 0..6 {
                workers.run_one();
            }
        }
        let acknowledged = session.last_seq();
        drop((main, session, store));
        disk.kill();
        let segments = files_under(&disk, "/store/sessions")
            .into_iter()
            .filter(|(path, _)| path.to_string_lossy().contains("/seg-"));
        for (path, length) in segments {
            for damage in ["removed", "0", "100", "5000", "headless"] {
                let hurt = disk.snapshot();
                match damage {
                    "removed" => hurt.remove(&path).unwrap(),
                    "headless" => hurt.zero(&path, 0..4096.min(length)).unwrap(),
                    end => hurt.truncate(&path, end.parse().unwrap()).unwrap(),
                }
                let what = format!("{records} records, {} {damage}", path.display());
                match store_with(&hurt, small()).repair(id(), "/new", false) {
                    Ok(report) => {
                        assert!(report.last_seq >= acknowledged, "{what}: {report:?}");
                        assert!(report.is_whole(), "{what}: {report:?}");
                    }
                    Err(RepairError::WouldLose(report)) => {
                        lost += u64::from(report.end_missing && report.last_seq < acknowledged);
                        match store_with(&hurt, small()).repair(id(), "/new", true) {
                            Ok(_) => {}
                            Err(RepairError::NothingIntact(_)) if report.records == 0 => {}
                            Err(other) => panic!("{what}: {other}"),
                        }
                    }
                    // Nothing is left that could be copied.
                    Err(
                        RepairError::Journal(_)
                        | RepairError::NotFound(_)
                        | RepairError::NothingIntact(_),
                    ) => {}
                    Err(other) => panic!("{what}: {other}"),
                }
            }
        }
    }
    assert!(lost > 50, "{lost}");
}
