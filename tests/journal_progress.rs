//! Opening and verifying tell how far they have come, and can be ended when nothing is half done.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;
mod support;

use std::ops::ControlFlow;
use std::path::PathBuf;

use stepwell::journal::{
    Journal, JournalOptions, JournalView, Lsn, OpenError, Owner, Phase, Progress,
};
use stepwell::store::LoopSpec;
use store_support::{
    Arc, Mode, Mutex, SessionError, SessionSpec, SimVfs, Store, StoreOptions, UserMessage,
    text_step,
};
use support::{append, begin, create, dir, disk, open, payload, records, session, vfs};

const MIB: u64 = 1024 * 1024;

fn large(supersede: u64) -> JournalOptions {
    JournalOptions {
        first_capacity: 4 * MIB,
        max_capacity: 4 * MIB,
        supersede_limit: supersede,
        ..JournalOptions::default()
    }
}

/// A killed journal of 2 MiB in one segment.
fn log(options: &JournalOptions) -> (SimVfs, Vec<Vec<u8>>) {
    let disk = disk();
    disk.set_tracing(false);
    let journal = create(&disk, options).unwrap();
    let payloads: Vec<Vec<u8>> = (0..128).map(|number| payload(number, 16 * 1024)).collect();
    for chunk in payloads.chunks(8) {
        let _ = append(&journal, chunk).unwrap();
    }
    drop(journal);
    disk.kill();
    (disk, payloads)
}

fn seen() -> (
    Arc<Mutex<Vec<Progress>>>,
    impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    (seen, move |progress| {
        told.lock().unwrap().push(progress);
        ControlFlow::Continue(())
    })
}

/// Each phase begins at nothing, goes on in steps of 256 KiB or a little more, and is never above
/// its total.
fn judge(reports: &[Progress], phases: &[Phase]) {
    let mut found = Vec::new();
    let mut before: Option<Progress> = None;
    // What is read before the active segment is known has no total yet.
    for report in reports.iter().skip_while(|report| report.done > 0) {
        assert!(
            report.done <= report.total && report.total > 0,
            "{report:?}"
        );
        match before {
            Some(before) if report.done > 0 => {
                assert_eq!(report.phase, before.phase);
                assert!(report.done >= before.done, "{reports:?}");
                let step = report.done - before.done;
                assert!(step >= 256 * 1024 || report.done == report.total, "{step}");
                assert!(step < 600 * 1024, "{before:?} {report:?}");
            }
            _ => {
                assert_eq!(report.done, 0, "{report:?}");
                if found.last() != Some(&report.phase) {
                    found.push(report.phase);
                }
            }
        }
        before = Some(*report);
    }
    assert_eq!(found, phases);
}

fn watched(
    disk: &SimVfs,
    options: &JournalOptions,
    told: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
) -> Result<stepwell::journal::Opening, OpenError> {
    let owner = Owner::Session(session());
    Journal::open_with_progress(vfs(disk), &dir(), owner, options.clone(), told)
}

#[test]
fn opening_tells_how_far_it_has_come() {
    let options = large(0);
    let (disk, payloads) = log(&options);
    let (reports, told) = seen();
    let view = JournalView::open_with_progress(vfs(&disk), &dir(), told).unwrap();
    judge(&reports.lock().unwrap(), &[Phase::Recovery]);
    assert!(reports.lock().unwrap().len() > 10);
    // The view is open, and nobody is told of what is read later.
    let before = reports.lock().unwrap().len();
    assert_eq!(records(view.read(Lsn::ZERO)), payloads);
    assert_eq!(reports.lock().unwrap().len(), before);
    let (reports, told) = seen();
    let opening = watched(&disk, &options, told).unwrap();
    judge(&reports.lock().unwrap(), &[Phase::Recovery]);
    assert_eq!(records(opening.read(Lsn::ZERO)), payloads);
}

fn segments(disk: &SimVfs) -> Vec<(PathBuf, Vec<u8>)> {
    let files = disk.files().into_iter().map(|(path, _)| path);
    let segments = files.filter(|path| path.to_string_lossy().contains("seg-"));
    segments
        .map(|path| (path.clone(), disk.read_file(&path).unwrap()))
        .collect()
}

/// Ended at every report, a journal is as it was but for its epoch, and opens.
#[test]
fn ending_it_leaves_nothing_half_done() {
    for supersede in [0, 4 * MIB] {
        let options = large(supersede);
        let (start, payloads) = log(&options);
        let mut opened = false;
        for calls in 0..200 {
            let disk = start.snapshot();
            let mut left = calls;
            let ended = watched(&disk, &options, move |_| {
                left -= i32::from(left > 0);
                match left {
                    0 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            });
            match ended {
                Err(error) => {
                    assert_eq!(error, OpenError::Aborted { path: dir() });
                    assert_eq!(segments(&disk), segments(&start));
                }
                // It broke too late: the action was under way, or all was over.
                Ok(opening) => {
                    assert!(calls > 10, "opened after {calls} reports");
                    assert_eq!(records(opening.read(Lsn::ZERO)), payloads);
                    opened = true;
                }
            }
            let opening = open(&disk, &options).unwrap();
            assert_eq!(records(opening.read(Lsn::ZERO)), payloads);
            drop(begin(opening).unwrap());
            if opened {
                break;
            }
        }
        assert!(opened);
    }
}

/// While the action is under way, a `Break` is passed over.
#[test]
fn an_action_goes_on_to_its_end() {
    let options = large(4 * MIB);
    let (disk, payloads) = log(&options);
    let (looking, asked) = (disk.new_process(), Arc::new(Mutex::new(0)));
    let count = asked.clone();
    let opening = watched(&disk, &options, move |_| {
        if segments(&looking).len() == 1 {
            return ControlFlow::Continue(());
        }
        *count.lock().unwrap() += 1;
        ControlFlow::Break(())
    })
    .unwrap();
    assert!(*asked.lock().unwrap() > 2);
    assert_eq!(records(opening.read(Lsn::ZERO)), payloads);
}

fn store() -> (SimVfs, Store) {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let options = StoreOptions {
        journal: large(0),
        ..store_support::options()
    };
    let store = store_support::store_with(&disk, options);
    let created = store
        .create_session(SessionSpec::new().id(session()))
        .unwrap();
    let mut main = created.create_loop(LoopSpec::new("main")).unwrap();
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    for _ in 0..40 {
        turn.commit_step(text_step(&"x".repeat(50_000))).unwrap();
    }
    drop((main, created));
    (disk, store)
}

#[test]
fn a_store_tells_recovery_and_replay() {
    let (_disk, store) = store();
    let both = [Phase::Recovery, Phase::Replay];
    for mode in [Mode::Read, Mode::Write] {
        let (reports, told) = seen();
        let opened = store.open_session_with_progress(session(), mode, told);
        let (opened, _) = opened.unwrap();
        judge(&reports.lock().unwrap(), &both);
        let last = *reports.lock().unwrap().last().unwrap();
        assert_eq!((last.phase, last.done), (Phase::Replay, last.total));
        let before = reports.lock().unwrap().len();
        assert_eq!(opened.history().unwrap().len(), 41);
        assert!(opened.replay(stepwell::journal::Seq::new(1)).count() > 41);
        assert_eq!(reports.lock().unwrap().len(), before);
    }
    let (reports, told) = seen();
    let report = store.verify_with_progress(session(), told).unwrap();
    assert!(report.is_intact());
    judge(&reports.lock().unwrap(), &both);
}

/// Ended while the records are folded: the session is whole and can be opened at once.
#[test]
fn a_store_ends_in_both_phases() {
    let (disk, store) = store();
    for phase in [Phase::Recovery, Phase::Replay] {
        let told = move |progress: Progress| match progress.phase == phase && progress.done > 0 {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let path = store.session_dir(session());
        let aborted = OpenError::Aborted { path };
        for mode in [Mode::Read, Mode::Write] {
            let ended = store.open_session_with_progress(session(), mode, told);
            let error = ended.map(|_| ()).unwrap_err();
            assert_eq!(error, SessionError::Journal(aborted.clone()));
        }
        let ended = store.verify_with_progress(session(), told);
        assert_eq!(ended.unwrap_err(), aborted);
        let (opened, report) = store.open_session(session(), Mode::Write).unwrap();
        assert!(report.is_clean());
        assert_eq!(opened.history().unwrap().len(), 41);
    }
    drop(disk);
}
