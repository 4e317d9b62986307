//! Backup: of a store in use, up to what is proven, and never half of one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use stepwell::identity::SessionId;
use stepwell::journal::{OpenError, Owner};
use stepwell::store::{BackupError, BackupReport, LeftOut};
use store_support::*;

fn id(byte: u8) -> SessionId {
    SessionId::from_bytes([byte; 16])
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

fn fill(store: &Store, id: SessionId, steps: usize) -> Session {
    let session = store
        .create_session(SessionSpec::new().id(id).title("kept"))
        .unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("hello")).unwrap();
    for number in 0..steps {
        turn.commit_step(text_step(&format!("{number} {}", "x".repeat(300))))
            .unwrap();
    }
    turn.commit_step(tool_step()).unwrap();
    turn.finish().unwrap();
    drop(main);
    session
}

/// Three sessions, one of them deleted; all closed.
fn disk() -> SimVfs {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let store = store_with(&disk, small());
    for (byte, steps) in [(1, 20), (2, 2), (3, 1)] {
        fill(&store, id(byte), steps).close().unwrap();
    }
    store.delete_session(id(3)).unwrap();
    disk
}

fn on(disk: &SimVfs, dir: &str) -> Result<Store, StoreError> {
    Store::on_existing(Arc::new(disk.clone()), dir, small())
}

fn ids(store: &Store) -> Vec<SessionId> {
    store
        .sessions()
        .unwrap()
        .into_iter()
        .map(|entry| entry.id)
        .collect()
}

fn lines(store: &Store, id: SessionId) -> Vec<u8> {
    let mut out = Vec::new();
    store.export(id, &mut out).unwrap();
    out
}

fn under(disk: &SimVfs, dir: &str) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let files = disk.files().into_iter().map(|(path, _)| path);
    let files = files.filter(|path| path.starts_with(dir));
    files
        .map(|path| (path.clone(), disk.read_file(&path).unwrap()))
        .collect()
}

#[test]
fn a_backup_is_a_store_with_the_same_sessions() {
    let disk = disk();
    let before = under(&disk, "/store");
    let source = on(&disk, "/store").unwrap();
    let report = source.backup("/safe/copy").unwrap();
    assert_eq!(under(&disk, "/store"), before, "the store is only read");
    assert!(report.is_complete());
    assert_eq!(
        (
            report.sessions.len(),
            report.left_out.len(),
            report.tombstones
        ),
        (2, 0, 1)
    );
    // It is durable, and it is all there when the first one is gone.
    let copy = disk.snapshot();
    copy.power_loss(PowerLoss::DropAll);
    for (path, _) in copy.files() {
        if path.starts_with("/store") {
            copy.remove(&path).unwrap();
        }
    }
    let store = Store::on(Arc::new(copy.clone()), "/safe/copy", small()).unwrap();
    assert_eq!(ids(&store), [id(1), id(2)]);
    for copied in &report.sessions {
        assert_eq!(
            lines(&store, copied.session),
            lines(&source, copied.session)
        );
        let verified = store.verify(copied.session).unwrap();
        assert!(
            verified.is_intact() && verified.gaps.is_empty(),
            "{verified:?}"
        );
        assert_eq!((copied.unproven, verified.last_seq), (0, copied.last_seq));
        assert_eq!(copied.records, copied.last_seq.get());
        // It goes on, with its loops.
        let (session, _) = store.open_session(copied.session, Mode::Write).unwrap();
        assert!(session.loop_by_name("main").unwrap().is_some());
    }
    // What was deleted stays deleted.
    let refused = store
        .create_session(SessionSpec::new().id(id(3)))
        .unwrap_err();
    assert!(matches!(refused, SessionError::Deleted(_)));
}

/// While another process commits at every call of the backup, the backup of its session holds a whole
/// beginning of what it has committed, in whole batches, and the others are not touched.
#[test]
fn a_store_in_use_is_backed_up_up_to_what_is_proven() {
    let disk = disk();
    let writer = store_with(&disk.new_process(), small());
    let session = fill(&writer, id(5), 4);
    let mut acknowledged = session.last_seq();
    session.witness().unwrap();
    let work = Arc::new(Mutex::new((session, 0_u64)));
    let busy = work.clone();
    let other = disk.new_process();
    let _ = &other;
    disk.set_hook(move |_| {
        // Its own calls come here too.
        let Ok(mut work) = busy.try_lock() else {
            return;
        };
        work.1 += 1;
        if work.1 % 7 == 0 && work.1 < 4000 {
            let session = work.0.clone();
            let loops = work.1;
            // Two events of one batch: both or none.
            let event = |name: &str| HostEvent {
                name: format!("{name} {loops} {}", "y".repeat(200)),
                version: 1,
                data: RawJson::empty_object(),
                optional: false,
            };
            let drafts = ["first", "second"].map(|name| stepwell::store::Draft::new(event(name)));
            session.commit(drafts.into()).unwrap();
        }
    });
    let source = on(&disk, "/store").unwrap();
    let report = source.backup("/copy").unwrap();
    disk.clear_hook();
    let work = work.lock().unwrap();
    assert!(
        work.0.last_seq().get() > acknowledged.get() + 40,
        "it was in use"
    );
    let copied = report
        .sessions
        .iter()
        .find(|copied| copied.session == id(5))
        .unwrap();
    assert!(copied.last_seq >= acknowledged && copied.last_seq < work.0.last_seq());
    assert_eq!(
        (copied.last_seq.get() - acknowledged.get()) % 2,
        0,
        "half a batch was copied"
    );
    acknowledged = copied.last_seq;
    let store = on(&disk, "/copy").unwrap();
    assert_eq!(ids(&store), [id(1), id(2), id(5)]);
    let mut live = Vec::new();
    work.0.export(&mut live).unwrap();
    let kept = lines(&store, id(5));
    assert!(live.starts_with(&kept), "a beginning of the live session");
    assert_eq!(
        kept.iter().filter(|byte| **byte == b'\n').count() as u64,
        acknowledged.get()
    );
    for byte in [1, 2, 5] {
        assert!(store.verify(id(byte)).unwrap().is_intact());
    }
}

#[test]
fn what_is_not_proven_is_counted_and_not_copied() {
    let disk = SimVfs::new();
    let store = store_with(&disk, small());
    drop(fill(&store, id(1), 2));
    drop(store.create_session(SessionSpec::new().id(id(2))).unwrap());
    disk.kill();
    let store = on(&disk, "/store").unwrap();
    let view = store.journal_view(id(1)).unwrap();
    assert!(view.report().last > view.report().watermark);
    let report = store.backup("/copy").unwrap();
    let copied = &report.sessions[0];
    assert_eq!((copied.session, copied.unproven), (id(1), 1));
    assert_eq!(
        report.left_out,
        [(id(2), LeftOut::NothingProven { unproven: 1 })]
    );
    assert!(report.is_complete());
    let copy = on(&disk, "/copy").unwrap();
    assert_eq!(ids(&copy), [id(1)]);
    let verified = copy.verify(id(1)).unwrap();
    assert_eq!(verified.last_seq, copied.last_seq);
    assert_eq!(verified.journal.watermark, verified.journal.last);
}

#[test]
fn damaged_and_newer_sessions_are_named_and_the_others_are_there() {
    let disk = disk();
    let store = store_with(&disk, small());
    fill(&store, id(6), 1).close().unwrap();
    fill(&store, id(7), 1).close().unwrap();
    let dir = |byte| Path::new("/store/sessions").join(id(byte).to_string());
    let name = |byte, prefix: &str| {
        let names = disk.list(&dir(byte)).unwrap();
        let found = names
            .into_iter()
            .find(|entry| entry.name.starts_with(prefix))
            .unwrap();
        dir(byte).join(found.name)
    };
    // One byte of a record in a sealed segment; a manifest of a later version; no manifest at all.
    disk.flip_byte(name(1, "seg-"), 16384 + 200).unwrap();
    let manifest = name(6, "MANIFEST");
    let mut bytes = disk.read_file(&manifest).unwrap();
    bytes[12] = 9;
    let crc = crc32fast::hash(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    disk.remove(&manifest).unwrap();
    disk.put_file(&manifest, &bytes).unwrap();
    disk.remove(name(7, "MANIFEST")).unwrap();
    let report = store.backup("/copy").unwrap();
    assert!(!report.is_complete());
    let copied: Vec<_> = report
        .sessions
        .iter()
        .map(|copied| copied.session)
        .collect();
    assert_eq!(copied, [id(2)]);
    let why: Vec<_> = report.left_out.iter().collect();
    assert!(
        matches!(why[0], (found, LeftOut::Damaged(lost)) if *found == id(1) && !lost.is_whole()),
        "{why:?}"
    );
    assert!(
        matches!(why[1], (found, LeftOut::NewerFormat { .. }) if *found == id(6)),
        "{why:?}"
    );
    assert!(
        matches!(why[2], (found, LeftOut::Damaged(_)) if *found == id(7)),
        "{why:?}"
    );
    assert!(
        on(&disk, "/copy")
            .unwrap()
            .verify(id(2))
            .unwrap()
            .is_intact()
    );
}

#[test]
fn a_target_that_holds_something_or_lies_within_is_refused() {
    let disk = disk();
    let store = on(&disk, "/store").unwrap();
    assert!(matches!(
        store.backup("/store"),
        Err(BackupError::TargetInside { .. })
    ));
    assert!(matches!(
        store.backup("/store/sub/dir"),
        Err(BackupError::TargetInside { .. })
    ));
    store.backup("/copy").unwrap();
    assert!(matches!(
        store.backup("/copy"),
        Err(BackupError::TargetNotEmpty { .. })
    ));
    disk.create_dir(Path::new("/empty")).unwrap();
    store.backup("/empty").unwrap();
}

/// A crash before every call, a failure of every call, and every kind of power loss: the target holds
/// all of it, or is no store and says why.
#[test]
fn a_backup_that_is_cut_off_never_looks_complete() {
    let original = disk();
    let whole = {
        let disk = original.snapshot();
        disk.set_tracing(true);
        on(&disk, "/store").unwrap().backup("/copy").unwrap();
        disk.trace()
            .iter()
            .filter(|call| call.op.changes_disk())
            .count() as u64
    };
    let (mut complete, mut unfinished, mut nothing) = (0, 0, 0);
    let mut judge = |disk: &SimVfs, what: &str| {
        match on(disk, "/copy") {
            Ok(store) => {
                complete += 1;
                assert_eq!(ids(&store), [id(1), id(2)], "{what}");
                for byte in [1, 2] {
                    assert!(store.verify(id(byte)).unwrap().is_intact(), "{what}");
                    assert_eq!(
                        lines(&store, id(byte)),
                        lines(&on(disk, "/store").unwrap(), id(byte))
                    );
                }
            }
            Err(StoreError::UnfinishedBackup { .. }) => {
                unfinished += 1;
                // Who would make a store of it is told the same.
                let made = Store::on(Arc::new(disk.clone()), "/copy", small());
                assert!(
                    matches!(made, Err(StoreError::UnfinishedBackup { .. })),
                    "{what}"
                );
                let again = on(disk, "/store").unwrap().backup("/copy");
                assert!(
                    matches!(again, Err(BackupError::TargetNotEmpty { .. })),
                    "{what}"
                );
            }
            Err(error @ (StoreError::NotFound { .. } | StoreError::StoreFileMissing { .. })) => {
                nothing += 1;
                // Who makes a store of it has all sessions, or finds none there.
                let made = Store::on(Arc::new(disk.clone()), "/copy", small()).unwrap();
                let found = ids(&made);
                assert!(
                    found.is_empty() || found == [id(1), id(2)],
                    "{what}: {found:?}"
                );
                let named = matches!(error, StoreError::StoreFileMissing { .. });
                assert_eq!(named, !found.is_empty(), "{what}: {error}");
                for id in found {
                    assert!(made.verify(id).unwrap().is_intact(), "{what}");
                }
            }
            Err(other) => panic!("{what}: {other}"),
        }
    };
    for calls in 0..whole {
        let disk = original.snapshot();
        let store = on(&disk, "/store").unwrap();
        disk.crash_after(calls);
        store.backup("/copy").unwrap_err();
        drop(store);
        let seeds = (0..4).map(|seed| Some(PowerLoss::Seeded(seed)));
        let losses = [None, Some(PowerLoss::DropAll), Some(PowerLoss::KeepAll)];
        for loss in losses.into_iter().chain(seeds) {
            let image = disk.snapshot();
            match loss {
                Some(loss) => image.power_loss(loss),
                None => image.kill(),
            }
            judge(&image, &format!("call {calls}, {loss:?}"));
        }
        // A call that fails takes the backup back.
        let disk = original.snapshot();
        disk.fail_nth(|op| op.changes_disk(), calls, FaultKind::Eio);
        let failed = on(&disk, "/store").unwrap().backup("/copy");
        if disk.faults_fired() > 0 && failed.is_err() {
            disk.clear_faults();
            assert!(
                disk.list(Path::new("/copy")).is_err(),
                "{calls}: {failed:?}"
            );
            on(&disk, "/store").unwrap().backup("/copy").unwrap();
        }
    }
    assert!(
        complete > 0 && unfinished > 100 && nothing > 5,
        "{complete} {unfinished} {nothing}"
    );
}

/// A session that is deleted while the backup runs is in it whole, or not at all.
#[test]
fn a_session_that_is_deleted_meanwhile_is_not_half_there() {
    let original = disk();
    let (mut left, mut there) = (0, 0);
    for after in (0..400).step_by(9) {
        let disk = original.snapshot();
        let other = store_with(&disk.new_process(), small());
        let state = Arc::new(Mutex::new(0));
        disk.set_hook(move |_| {
            if let Ok(mut calls) = state.try_lock() {
                *calls += 1;
                if *calls == after + 1 {
                    other.delete_session(id(1)).unwrap();
                }
            }
        });
        let report: BackupReport = on(&disk, "/store").unwrap().backup("/copy").unwrap();
        disk.clear_hook();
        let store = on(&disk, "/copy").unwrap();
        let found = ids(&store);
        assert!(report.is_complete(), "{report:?}");
        match found.contains(&id(1)) {
            true => {
                there += 1;
                assert!(store.verify(id(1)).unwrap().is_intact());
            }
            false => left += 1,
        }
        assert!(store.verify(id(2)).unwrap().is_intact());
        let listed: Vec<_> = report
            .sessions
            .iter()
            .map(|copied| copied.session)
            .collect();
        assert_eq!(listed, found);
    }
    assert!(left > 5, "{left} {there}");
}

/// A session's directory or a segment that is a link elsewhere is not followed.
#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = Store::open(folder.path().join("elsewhere")).unwrap();
    fill(&elsewhere, id(8), 1).close().unwrap();
    fill(&elsewhere, id(9), 1).close().unwrap();
    let store = Store::open(folder.path().join("store")).unwrap();
    fill(&store, id(1), 1).close().unwrap();
    fill(&store, id(9), 1).close().unwrap();
    std::os::unix::fs::symlink(elsewhere.session_dir(id(8)), store.session_dir(id(8))).unwrap();
    let segment = |store: &Store| {
        let entries = std::fs::read_dir(store.session_dir(id(9))).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths
            .find(|path| path.to_str().unwrap().contains("seg-"))
            .unwrap()
    };
    let mine = segment(&store);
    std::fs::remove_file(&mine).unwrap();
    std::os::unix::fs::symlink(segment(&elsewhere), &mine).unwrap();
    let to = folder.path().join("copy");
    let report = store.backup(&to).unwrap();
    let copied: Vec<_> = report
        .sessions
        .iter()
        .map(|copied| copied.session)
        .collect();
    assert_eq!(copied, [id(1)]);
    let named: Vec<_> = report.left_out.iter().map(|(id, _)| *id).collect();
    assert_eq!(named, [id(9)], "{report:?}");
    // Deleting removes the link, not what it leads to.
    store.delete_session(id(9)).unwrap();
    assert!(elsewhere.verify(id(9)).unwrap().is_intact());
    let _ = (Owner::Shared, OpenError::NoRandomness);
}
