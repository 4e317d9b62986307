//! Sessions as files: backup, export, import, repair, verify, deletion and retention with large bodies.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::path::PathBuf;

use stepwell::event::Event;
use stepwell::identity::SessionId;
use stepwell::journal::{FrameKind, ReadError};
use stepwell::store::{BodyProblem, ImportId, LeftOut, RepairError, ReplayError, RetentionPolicy};
use store_support::*;

const LARGE: usize = 1000;

fn id(byte: u8) -> SessionId {
    SessionId::from_bytes([byte; 16])
}

fn with_threshold(blob_threshold: usize) -> StoreOptions {
    StoreOptions {
        blob_threshold,
        ..options()
    }
}

fn on(disk: &SimVfs, dir: &str, threshold: usize) -> Store {
    Store::on(Arc::new(disk.clone()), dir, with_threshold(threshold)).unwrap()
}

/// A session with small and large steps, closed; the sequences of the large ones.
fn fill(store: &Store, id: SessionId) -> Vec<Seq> {
    let session = store.create_session(SessionSpec::new().id(id)).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let mut large = Vec::new();
    for number in 0..4 {
        turn.commit_step(text_step("small")).unwrap();
        let key = Key::new(format!("key {number}")).unwrap();
        let input = RawJson::parse(br#"{ "b":1.0, "a":1e400,"b":"\ud83d" }"#).unwrap();
        let call = AssistantMessage::text("x").with_tool_use("a", "read", input);
        let result = format!("{number} {}", "y".repeat(1500 + 400 * number));
        let step = StepDraft::new(call).results([ToolResultMessage::text("a", result)]);
        large.push(turn.commit_step(step.key(key)).unwrap().seq());
    }
    turn.finish().unwrap();
    drop(main);
    session.close().unwrap();
    large
}

fn filled() -> (SimVfs, Store, Vec<Seq>) {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let store = on(&disk, "/store", LARGE);
    let large = fill(&store, id(1));
    (disk, store, large)
}

/// The blob files under a directory.
fn blobs(disk: &SimVfs, dir: &str) -> Vec<PathBuf> {
    let files = disk.files().into_iter().map(|(path, _)| path);
    files
        .filter(|path| path.starts_with(dir))
        .filter(|path| path.parent().is_some_and(|dir| dir.ends_with("blobs")))
        .collect()
}

/// Their names and bytes.
fn contents(disk: &SimVfs, dir: &str) -> Vec<(String, Vec<u8>)> {
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files = blobs(disk, dir);
    let files = files.iter();
    files
        .map(|path| (name(path), disk.read_file(path).unwrap()))
        .collect()
}

fn events(store: &Store, id: SessionId) -> Vec<(Seq, Event)> {
    let (session, report) = store.open_session(id, Mode::Read).unwrap();
    assert!(report.is_clean());
    let events = session.replay(Seq::new(1)).map(|event| event.unwrap());
    events
        .map(|event| (event.seq(), event.event().clone()))
        .collect()
}

/// The last copy is on the medium when it is said to be made.
fn after_power_loss(disk: &SimVfs, dir: &str) -> Store {
    disk.power_loss(PowerLoss::DropAll);
    on(disk, dir, LARGE)
}

#[test]
fn a_backup_has_the_bodies_of_its_records_and_no_others() {
    let (disk, store, _) = filled();
    let whole = events(&store, id(1));
    // One that is open, with a file that no record names, and one with its first name.
    let (session, _) = store.open_session(id(1), Mode::Write).unwrap();
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main.begin_turn(UserMessage::text("on")).unwrap();
    disk.fail_nth(|op| matches!(op, Op::Rename { .. }), 0, FaultKind::Eio);
    turn.commit_step(text_step(&"k".repeat(2000))).unwrap();
    disk.fail_nth(
        |op| matches!(op, Op::SyncData { path } if path.to_string_lossy().contains("blobs")),
        0,
        FaultKind::Eio,
    );
    disk.fail_nth(|op| matches!(op, Op::RemoveFile { .. }), 0, FaultKind::Eio);
    turn.commit_step(text_step(&"o".repeat(2000))).unwrap_err();
    session.witness().unwrap();
    assert_eq!(blobs(&disk, "/store").len(), 6);
    let report = store.backup("/copy").unwrap();
    assert!(report.is_complete(), "{report:?}");
    drop((main, session, store));
    let copy = after_power_loss(&disk, "/copy");
    let copied = events(&copy, id(1));
    assert_eq!(copied[..whole.len()], whole);
    assert_eq!(copied.last().unwrap().1.kind(), Kind::StepDone);
    let names = contents(&disk, "/copy");
    assert_eq!(names.len(), 5);
    assert!(names.iter().all(|(name, _)| !name.ends_with(".new")));
    assert!(copy.verify(id(1)).unwrap().is_intact());
    let (session, _) = copy.open_session(id(1), Mode::Write).unwrap();
    assert_eq!(session.steps(), 9);
}

#[test]
fn a_session_with_a_lost_body_is_left_out_of_a_backup_and_named() {
    let (disk, store, large) = filled();
    fill(&store, id(2));
    let path = blobs(
        &disk,
        "/store/sessions/01010101-0101-0101-0101-010101010101",
    )
    .remove(2);
    disk.flip_byte(&path, 70).unwrap();
    let report = store.backup("/copy").unwrap();
    assert!(!report.is_complete());
    assert_eq!(report.sessions.len(), 1);
    let [(left_out, LeftOut::Damaged(found))] = &report.left_out[..] else {
        panic!("{:?}", report.left_out);
    };
    assert_eq!(*left_out, id(1));
    assert_eq!(found.bodies, [(large[2], path)]);
    let copy = on(&disk, "/copy", LARGE);
    assert_eq!(events(&copy, id(2)), events(&store, id(2)));
    assert_eq!(contents(&disk, "/copy").len(), 4);
}

/// A backup never holds half a body: not after a crash, and not when it says that it is whole.
#[test]
fn a_backup_that_is_cut_off_is_no_store() {
    let (start, _, _) = filled();
    start.kill();
    let whole = events(&on(&start, "/store", LARGE), id(1));
    for calls in (0..).step_by(5) {
        let disk = start.snapshot();
        let store = on(&disk, "/store", LARGE);
        disk.crash_after(calls);
        let finished = store.backup("/copy").is_ok();
        disk.power_loss(PowerLoss::Seeded(calls));
        let copy = Store::on_existing(Arc::new(disk.clone()), "/copy", with_threshold(LARGE));
        match copy {
            Ok(copy) => assert_eq!(events(&copy, id(1)), whole, "{calls}"),
            Err(_) => assert!(!finished, "{calls}"),
        }
        if finished {
            assert!(calls > 40);
            break;
        }
    }
}

#[test]
fn an_import_makes_files_by_its_own_threshold() {
    let (disk, store, _) = filled();
    let mut lines = Vec::new();
    store.export(id(1), &mut lines).unwrap();
    let whole = events(&store, id(1));
    let source = contents(&disk, "/store");
    let mut files = Vec::new();
    for (dir, threshold) in [("/same", LARGE), ("/none", usize::MAX), ("/all", 0)] {
        let target = on(&disk, dir, threshold);
        let report = target.import(&lines[..], ImportId::Same).unwrap();
        assert_eq!((report.events as usize, report.keys), (whole.len(), 4));
        drop(target);
        let target = after_power_loss(&disk, dir);
        assert_eq!(events(&target, id(1)), whole, "{dir}");
        assert!(target.verify(id(1)).unwrap().is_intact());
        let mut again = Vec::new();
        target.export(id(1), &mut again).unwrap();
        assert!(again == lines, "{dir}");
        files.push(contents(&disk, dir));
        // Keys are known wherever the body stands.
        let (session, _) = target.open_session(id(1), Mode::Write).unwrap();
        assert_eq!(session.steps(), 8);
    }
    assert!(files[0] == source, "the same bytes");
    assert!(files[1].is_empty());
    assert!(files[2].len() > 8);
}

#[test]
fn an_import_whose_files_cannot_be_written_leaves_nothing() {
    let (disk, store, _) = filled();
    let mut lines = Vec::new();
    store.export(id(1), &mut lines).unwrap();
    let target = on(&disk, "/target", LARGE);
    let before = disk.files();
    for nth in 0..3 {
        disk.fail_nth(
            |op| op.path().to_string_lossy().contains("blobs") && op.is_sync(),
            nth,
            FaultKind::Eio,
        );
        let failed = target.import(&lines[..], ImportId::Same).unwrap_err();
        assert!(failed.to_string().contains("blobs"), "{failed}");
        assert_eq!(disk.files(), before);
    }
    target.import(&lines[..], ImportId::Same).unwrap();
}

#[test]
fn a_repair_keeps_whole_records_and_names_those_whose_body_is_lost() {
    // In the middle, and the last large one.
    for hit in [1, 3] {
        let (disk, store, large) = filled();
        let whole = events(&store, id(1));
        let path = blobs(&disk, "/store").remove(hit);
        disk.truncate(&path, 100).unwrap();
        let refused = store.repair(id(1), "/new", false).unwrap_err();
        let RepairError::WouldLose(found) = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!(found.bodies, [(large[hit], path.clone())]);
        assert_eq!(found.lost.len(), 1);
        assert_eq!(found.lost[0].seqs, Some((large[hit], large[hit])));
        let before = disk.files();
        assert!(before.iter().all(|(path, _)| !path.starts_with("/new")));
        let report = store.repair(id(1), "/new", true).unwrap();
        assert_eq!(report, **found);
        // The session itself was only read.
        assert_eq!(blobs(&disk, "/store").len(), 4);
        assert_eq!(disk.read_file(&path).unwrap().len(), 100);
        drop(store);
        let new = after_power_loss(&disk, "/new");
        let (session, report) = new.open_session(id(1), Mode::Read).unwrap();
        assert_eq!(report.damage, None);
        let mut found = Vec::new();
        let mut gaps = Vec::new();
        for event in session.replay(Seq::new(1)) {
            match event {
                Ok(event) => found.push((event.seq(), event.event().clone())),
                Err(error) => gaps.push(error),
            }
        }
        let mut rest = whole;
        rest.retain(|(seq, _)| *seq != large[hit]);
        assert_eq!(found, rest);
        assert!(
            matches!(
                &gaps[..],
                [ReplayError::Journal(ReadError::Gap {
                    kind: FrameKind::Lost,
                    ..
                })]
            ),
            "{gaps:?}"
        );
        assert_eq!(blobs(&disk, "/new").len(), 3);
        let verified = new.verify(id(1)).unwrap();
        assert!(verified.is_intact());
        assert_eq!(verified.gaps.len(), 1);
    }
}

#[test]
fn a_repair_of_a_sound_session_copies_its_bodies() {
    let (disk, store, _) = filled();
    let report = store.repair(id(1), "/new", false).unwrap();
    assert!(report.is_whole() && report.bodies.is_empty());
    let whole = events(&store, id(1));
    let files = contents(&disk, "/store");
    drop(store);
    let new = after_power_loss(&disk, "/new");
    assert_eq!(events(&new, id(1)), whole);
    assert!(contents(&disk, "/new") == files);
    let (session, _) = new.open_session(id(1), Mode::Write).unwrap();
    assert_eq!(session.history().unwrap().len(), 4 + 8 + 1);
}

#[test]
fn verify_reads_and_checks_each_body() {
    let (disk, store, large) = filled();
    assert!(store.verify(id(1)).unwrap().is_intact());
    let files = blobs(&disk, "/store");
    disk.flip_byte(&files[0], 5).unwrap();
    disk.remove(&files[3]).unwrap();
    let report = store.verify(id(1)).unwrap();
    let lost = |hit: usize, problem| ReplayError::Body {
        seq: large[hit],
        path: files[hit].clone(),
        problem,
    };
    assert_eq!(
        report.unreadable,
        [lost(0, BodyProblem::Digest), lost(3, BodyProblem::Missing)]
    );
    assert!(!report.is_intact());
    assert_eq!(
        report.last_seq,
        store.sessions().unwrap()[0]
            .state
            .as_ref()
            .unwrap()
            .last_seq
    );
}

#[test]
fn a_deletion_leaves_no_byte_and_counts_the_bodies() {
    let (disk, store, _) = filled();
    let bodies: u64 = contents(&disk, "/store")
        .iter()
        .map(|(_, bytes)| bytes.len() as u64)
        .sum();
    let all: u64 = disk
        .files()
        .iter()
        .filter(|(path, _)| path.starts_with("/store/sessions"))
        .map(|(_, length)| length)
        .sum();
    assert!(bodies > 6000 && all > bodies);
    // Retention counts them.
    let policy = |max_bytes| RetentionPolicy {
        max_bytes: Some(max_bytes),
        ..RetentionPolicy::default()
    };
    assert_eq!(store.retention(policy(all)).unwrap().remove, []);
    let plan = store.retention(policy(all - 1)).unwrap();
    assert_eq!(plan.remove[0].bytes, all);
    let receipt = store.delete_session(id(1)).unwrap();
    assert_eq!(receipt.bytes, all);
    disk.power_loss(PowerLoss::DropAll);
    assert!(
        disk.files()
            .iter()
            .all(|(path, _)| !path.starts_with("/store/sessions"))
    );
}
