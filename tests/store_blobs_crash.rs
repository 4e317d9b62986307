//! Large bodies and crashes: a kill and a power loss at every call to the disk, also inside the opening
//! that follows. What was acknowledged is there with its bytes; what was not is there whole or not at
//! all (P1, P3, P5); no file without a record is left by an opening for writing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::path::PathBuf;

use stepwell::identity::SessionId;
use stepwell::journal::Workers;
use stepwell::store::Draft;
use store_support::*;

fn id() -> SessionId {
    SessionId::from_bytes([0xb2; 16])
}

fn try_store(disk: &SimVfs) -> Option<(Store, Workers)> {
    let options = StoreOptions {
        journal: JournalOptions {
            first_capacity: 4096,
            max_capacity: 4096,
            supersede_limit: 2048,
            ..JournalOptions::default()
        },
        workers: Workers::manual(),
        blob_threshold: 500,
        ..options()
    };
    let workers = options.workers.clone();
    let store = Store::on(Arc::new(disk.clone()), "/store", options).ok()?;
    Some((store, workers))
}

fn blobs(disk: &SimVfs) -> Vec<PathBuf> {
    let files = disk.files().into_iter().map(|(path, _)| path);
    files
        .filter(|path| {
            let mut around = path.ancestors().skip(1).take(2);
            around.any(|dir| dir.ends_with("blobs"))
        })
        .collect()
}

fn is_new(path: &std::path::Path) -> bool {
    path.extension().is_some_and(|end| end == "new")
}

/// The test's own books.
#[derive(Debug, Default, Clone)]
struct Books {
    /// The text of each step that was acknowledged, in order.
    acknowledged: Vec<String>,
    /// Those of the batch under way.
    offered: Vec<String>,
}

fn text(number: usize, large: bool) -> String {
    let length = if large { 700 } else { 20 };
    format!("{number} {}", "z".repeat(length))
}

fn host(text: &str) -> HostEvent {
    HostEvent {
        name: "host".into(),
        version: 1,
        data: RawJson::from_serialize(&text).unwrap(),
        optional: false,
    }
}

/// The life of a session: steps with a host's event in one batch, both large, or one of them, or none,
/// committed by who waits and by the workers. Gives up at the first error.
fn live(disk: &SimVfs, books: &mut Books) -> Option<()> {
    let (store, workers) = try_store(disk)?;
    let (session, _) = store.open_session(id(), Mode::Write).ok()?;
    let mut main = match session.loop_by_name("main").ok()? {
        Some(main) => main,
        None => session.create_loop(LoopSpec::new("main")).ok()?,
    };
    let mut turn = main.begin_turn(UserMessage::text("go")).ok()?;
    for number in 0..4 {
        let texts = [text(number, number > 0), text(number, number % 2 > 0)];
        books.offered = texts.to_vec();
        let step = text_step(&texts[0]).host_event(host(&texts[1]));
        turn.commit_step(step).ok()?;
        books.acknowledged.append(&mut books.offered);
        books.offered = vec![text(100 + number, number > 1)];
        let ticket = session.submit(vec![Draft::new(host(&books.offered[0]))]);
        while workers.run_one() {}
        ticket.wait().ok()?.ok()?;
        books.acknowledged.append(&mut books.offered);
    }
    drop(turn);
    session.close().ok()
}

/// What the log says of it, each body read and checked; the errors are those of the disk only.
fn said(session: &Session) -> Vec<String> {
    let texts = session.replay(Seq::new(1)).filter_map(|event| {
        let event = event.unwrap();
        match &event.event().body {
            Body::StepDone(step) => Some(step.messages[0].to_text()),
            Body::HostEvent(host) => Some(serde_json::from_str(host.data.get()).unwrap()),
            _ => None,
        }
    });
    texts.collect()
}

/// What must be in the log: all that was acknowledged, then the batch that was offered, whole or not.
fn judge(found: &[String], books: &Books, what: &str) {
    let (acknowledged, rest) = found
        .split_at_checked(books.acknowledged.len())
        .unwrap_or_else(|| panic!("{what}: acknowledged steps are lost: {found:?}"));
    assert_eq!(acknowledged, books.acknowledged, "{what}");
    assert!(rest.is_empty() || rest == books.offered, "{what}: {rest:?}");
}

/// A session before its life: a kill left it.
fn prepared() -> SimVfs {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let (store, _) = try_store(&disk).unwrap();
    drop(store.create_session(SessionSpec::new().id(id())).unwrap());
    disk.kill();
    disk
}

const KINDS: [Option<PowerLoss>; 6] = [
    None,
    Some(PowerLoss::DropAll),
    Some(PowerLoss::KeepAll),
    Some(PowerLoss::Seeded(1)),
    Some(PowerLoss::Seeded(2)),
    Some(PowerLoss::Seeded(3)),
];

fn crash(disk: &SimVfs, kind: Option<PowerLoss>) {
    match kind {
        None => disk.kill(),
        Some(loss) => disk.power_loss(loss),
    }
}

/// The blob files must be those of the records, each under its last name, unless a quarantined file may
/// name one more.
fn no_orphans(disk: &SimVfs, session: &Session, what: &str) {
    let quarantine = |(path, _): &(PathBuf, u64)| path.to_string_lossy().contains("quarantine");
    if disk.files().iter().any(quarantine) {
        return;
    }
    let files = blobs(disk);
    assert!(files.iter().all(|path| !is_new(path)), "{what}: {files:?}");
    let large = said(session).iter().filter(|text| text.len() > 500).count();
    assert_eq!(files.len(), large, "{what}");
}

#[test]
fn a_crash_at_every_call_keeps_what_was_acknowledged_with_its_bytes() {
    let start = prepared();
    let mut torn = 0;
    for calls in 0.. {
        let mut finished = false;
        for kind in KINDS {
            let disk = start.snapshot();
            let mut books = Books::default();
            disk.crash_after(calls);
            finished = live(&disk, &mut books).is_some();
            crash(&disk, kind);
            let what = format!("call {calls}, {kind:?}");
            let (store, _) = try_store(&disk).unwrap();
            // A reader changes nothing.
            let before = blobs(&disk);
            let (session, report) = store.open_session(id(), Mode::Read).unwrap();
            assert_eq!((report.damage, report.unreadable), (None, None), "{what}");
            let seen = said(&session);
            judge(&seen, &books, &what);
            assert!(store.verify(id()).unwrap().is_intact(), "{what}");
            assert_eq!(blobs(&disk), before, "{what}");
            torn += usize::from(before.iter().any(|path| is_new(path)));
            let (session, report) = store.open_session(id(), Mode::Write).unwrap();
            assert_eq!(report.unreadable, None, "{what}");
            assert_eq!(said(&session), seen, "{what}");
            no_orphans(&disk, &session, &what);
            // And what it did is as good as durable.
            drop((session, store));
            disk.power_loss(PowerLoss::DropAll);
            let (store, _) = try_store(&disk).unwrap();
            let (session, _) = store.open_session(id(), Mode::Write).unwrap();
            assert_eq!(said(&session), seen, "{what}");
            no_orphans(&disk, &session, &what);
        }
        if finished {
            assert!(calls > 60, "{calls}");
            break;
        }
    }
    assert!(torn > 50, "files without a last name were met {torn} times");
}

/// Crashes within the opening that settles what a crash left: a file that a record names is never
/// removed.
#[test]
fn a_crash_within_the_opening_that_sweeps_loses_nothing() {
    let start = prepared();
    let mut swept = 0;
    for calls in (0..).step_by(3) {
        let disk = start.snapshot();
        let mut books = Books::default();
        disk.crash_after(calls);
        let finished = live(&disk, &mut books).is_some();
        for first in [None, Some(PowerLoss::Seeded(7))] {
            let disk = disk.snapshot();
            crash(&disk, first);
            if !blobs(&disk).iter().any(|path| is_new(path)) {
                continue;
            }
            swept += 1;
            for within in 0.. {
                let disk = disk.snapshot();
                disk.crash_after(within);
                let opened = try_store(&disk)
                    .is_some_and(|(store, _)| store.open_session(id(), Mode::Write).is_ok());
                disk.power_loss(PowerLoss::Seeded(within));
                let what = format!("call {calls}, {first:?}, within {within}");
                let (store, _) = try_store(&disk).unwrap();
                let (session, _) = store.open_session(id(), Mode::Write).unwrap();
                judge(&said(&session), &books, &what);
                no_orphans(&disk, &session, &what);
                if opened {
                    break;
                }
            }
        }
        if finished {
            break;
        }
    }
    assert!(swept > 5, "{swept}");
}

/// P1, step by step: when the record is handed to the log, the body is on the medium, and so is every
/// name on the way to it.
#[test]
fn a_body_is_durable_with_its_name_before_its_record_is_written() {
    let disk = prepared();
    let (store, _) = try_store(&disk).unwrap();
    let (session, _) = store.open_session(id(), Mode::Write).unwrap();
    let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let seen = Arc::new(Mutex::new(0));
    let (looker, count) = (disk.clone(), seen.clone());
    disk.set_hook(move |op| {
        if !matches!(op, Op::Write { .. }) || !op.path().to_string_lossy().contains("seg-") {
            return;
        }
        for path in blobs(&looker) {
            let bytes = looker.read_file(&path).unwrap();
            let durable = looker.read_durable(&path);
            assert_eq!(durable.as_ref().ok(), Some(&bytes), "{}", path.display());
            *count.lock().unwrap() += 1;
        }
    });
    for number in 1..4 {
        turn.commit_step(text_step(&text(number, true))).unwrap();
    }
    disk.clear_hook();
    assert!(*seen.lock().unwrap() >= 6);
}

/// A write of the log whose outcome is unknown keeps its file: the record may be there (P7).
#[test]
fn an_unknown_outcome_keeps_the_file() {
    let mut kept = 0;
    for seed in 0..8 {
        for fault in [
            FaultKind::SyncKept(PowerLoss::Seeded(seed)),
            FaultKind::FailedWrite(100),
        ] {
            let disk = prepared();
            let (store, _) = try_store(&disk).unwrap();
            let (session, _) = store.open_session(id(), Mode::Write).unwrap();
            let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
            let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
            let log = |op: &Op| op.path().to_string_lossy().contains("seg-");
            disk.fail_nth(log, 0, fault);
            let books = Books {
                offered: vec![text(1, true)],
                ..Books::default()
            };
            let failed = turn.commit_step(text_step(&books.offered[0])).unwrap_err();
            assert!(!failed.is_definite(), "{failed:?}");
            assert_eq!(blobs(&disk).len(), 1);
            let (session, _) = store.reopen(&session).unwrap();
            let found = said(&session);
            judge(&found, &books, "reopened");
            kept += found.len();
            no_orphans(&disk, &session, "reopened");
        }
    }
    assert!(kept > 0);
}
