//! Opening costs the active segment and a footer, however large the log (P13); and it is not made
//! dearer by having been done often.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::sync::atomic::{AtomicU64, Ordering};

use stepwell::identity::SessionId;
use stepwell::journal::Lsn;
use store_support::*;

const SEGMENT: u64 = 64 * 1024;
/// Zeros that a segment is filled up with, its header and claims, and what is read ahead of them.
const ROUGHLY: u64 = 64 * 1024;

fn journal(supersede_limit: u64) -> StoreOptions {
    StoreOptions {
        journal: JournalOptions {
            first_capacity: SEGMENT,
            max_capacity: SEGMENT,
            supersede_limit,
            ..JournalOptions::default()
        },
        ..options()
    }
}

fn write(session: &Session, steps: usize, keyed: bool) {
    let mut main = match session.loop_by_name("main").unwrap() {
        Some(main) => main,
        None => session.create_loop(LoopSpec::new("main")).unwrap(),
    };
    let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
    for number in 0..steps {
        let mut step = text_step(&"x".repeat(1000));
        if keyed {
            step = step.key(Key::new(format!("{}-{number}", turn.index())).unwrap());
        }
        turn.commit_step(step).unwrap();
    }
    turn.finish().unwrap();
}

/// A session of so many segments.
fn log(segments: usize, options: StoreOptions) -> (SimVfs, Session) {
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let session = store_with(&disk, options)
        .create_session(SessionSpec::new())
        .unwrap();
    while files(&disk) < segments {
        write(&session, 20, false);
    }
    // All with the same fill.
    write(&session, 10, false);
    (disk, session)
}

fn files(disk: &SimVfs) -> usize {
    let files = disk.files();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let segments = files
        .iter()
        .filter(|(path, _)| name(path).starts_with("seg-") && !name(path).contains("footer"));
    segments.count()
}

/// Bytes read by an opening.
fn opening(disk: &SimVfs, id: SessionId, mode: Mode, options: StoreOptions) -> u64 {
    let read = Arc::new(AtomicU64::new(0));
    let count = read.clone();
    let store = store_with(disk, options);
    disk.set_hook(move |op| {
        if let Op::Read { length, .. } = op {
            count.fetch_add(*length as u64, Ordering::Relaxed);
        }
    });
    let (session, report) = store.open_session(id, mode).unwrap();
    disk.clear_hook();
    assert!(report.is_clean());
    // What is proven is folded and let go: at most the last batch is not.
    assert!(report.recovered.len() <= 3);
    assert!(session.steps() > 0);
    drop(session);
    read.load(Ordering::Relaxed)
}

#[test]
fn opening_reads_as_much_of_a_long_log_as_of_a_short_one() {
    for mode in [Mode::Read, Mode::Write] {
        for (killed, limit) in [
            (false, 4096),
            (false, SEGMENT),
            (true, 4096),
            (true, SEGMENT),
        ] {
            let costs = [2, 40].map(|segments| {
                let (disk, session) = log(segments, journal(limit));
                let id = session.id();
                match killed {
                    true => session.witness().unwrap(),
                    false => session.close().unwrap(),
                }
                drop(session);
                disk.kill();
                opening(&disk, id, mode, journal(limit))
            });
            let [short, long] = costs;
            println!("{mode:?}, killed {killed}, {limit}: {costs:?}");
            let difference = short.abs_diff(long);
            // Each manifest names each segment, and is read up to four times.
            let manifests = 40 * 80 * 4;
            // Only where a segment is active may the two be filled differently.
            let active = if killed || limit == SEGMENT {
                SEGMENT
            } else {
                0
            };
            assert!(
                difference < manifests + active && long < 8 * SEGMENT,
                "{mode:?}, killed {killed}, {limit}: {costs:?}"
            );
        }
    }
}

/// Lives that each end with a kill, or with a close, and whose segment recovery closes: what it closes
/// has a carry record too.
#[test]
fn segments_that_recovery_closed_are_not_read_by_later_openings() {
    for killed in [true, false] {
        let (disk, session) = log(1, journal(4096));
        let id = session.id();
        drop(session);
        disk.kill();
        let mut costs = Vec::new();
        for _ in 0..30 {
            costs.push(opening(&disk, id, Mode::Read, journal(4096)));
            let store = store_with(&disk, journal(4096));
            let (session, _) = store.open_session(id, Mode::Write).unwrap();
            write(&session, 20, false);
            if !killed {
                session.close().unwrap();
            }
            drop(session);
            disk.kill();
        }
        assert!(files(&disk) > 10);
        let most = costs.iter().max().unwrap();
        println!("closed by recovery, killed {killed}: {costs:?}");
        assert!(*most < 6 * SEGMENT + ROUGHLY, "{costs:?}");
        assert!(
            store_with(&disk, journal(4096))
                .verify(id)
                .unwrap()
                .is_intact()
        );
    }
}

/// Robustness 39.
#[test]
fn a_thousand_restores_stay_small_and_fast() {
    let (disk, session) = log(4, journal(4096));
    let id = session.id();
    drop(session);
    disk.kill();
    let bytes = |disk: &SimVfs| -> u64 {
        let view = store(disk).journal_view(id).unwrap();
        view.read(Lsn::ZERO)
            .map(|entry| entry.unwrap().payload.len() as u64 + 80)
            .sum()
    };
    let before = bytes(&disk);
    let mut costs = Vec::new();
    for _ in 0..1000 {
        costs.push(opening(&disk, id, Mode::Write, journal(4096)));
        disk.kill();
    }
    let most = |costs: &[u64]| *costs.iter().max().unwrap();
    let (first, last) = (most(&costs[..100]), most(&costs[900..]));
    println!("restores: {first} {last}");
    assert!(last < first + ROUGHLY, "{first} {last}");
    assert!(most(&costs) < 12 * SEGMENT, "{}", most(&costs));
    let grown = (bytes(&disk) - before) / 1000;
    assert!(grown < 1024, "{grown} bytes each");
}

/// Keys of earlier processes are read when the first keyed commit comes, and only then; repeats are
/// found as if they had never been forgotten.
#[test]
fn keys_are_read_for_the_first_keyed_commit_only() {
    let disk = SimVfs::new();
    let horizon = |keyed_horizon| StoreOptions {
        keyed_horizon,
        ..journal(4096)
    };
    let session = store_with(&disk, horizon(100))
        .create_session(SessionSpec::new())
        .unwrap();
    for _ in 0..8 {
        write(&session, 40, true);
    }
    let id = session.id();
    session.close().unwrap();
    drop(session);
    let key = |turn: u64, number: u32| Key::new(format!("{turn}-{number}")).unwrap();
    // The horizon, and others: the one that is wider knows all.
    for (width, oldest) in [(100, (6, 20)), (30, (8, 10)), (1000, (1, 0))] {
        let disk = disk.snapshot();
        let store = store_with(&disk, horizon(width));
        let (session, _) = store.open_session(id, Mode::Write).unwrap();
        let mut main = session.loop_by_name("main").unwrap().unwrap();
        let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
        let unkeyed = bytes_of(&disk, || {
            drop(turn.commit_step(text_step("plain")).unwrap())
        });
        assert_eq!(unkeyed, 0);
        let step = || text_step(&"x".repeat(1000));
        let mut repeat = |turn_index, number| {
            let step = step().key(key(turn_index, number));
            turn.commit_step(step).unwrap().is_duplicate()
        };
        let loading = bytes_of(&disk, || assert!(repeat(8, 39)));
        assert!(loading > 4096, "{loading}");
        let known = bytes_of(&disk, || assert!(repeat(8, 38)));
        assert!(known < 64 * 1024, "{known}");
        assert!(repeat(oldest.0, oldest.1), "{width}");
        if width < 1000 {
            assert!(
                !repeat(oldest.0, oldest.1 - 1),
                "{width}: beyond the horizon"
            );
        }
    }
}

/// Commits with and without keys that come while the keys are read stay in their order.
#[test]
fn commits_that_wait_for_keys_stay_in_order() {
    let disk = SimVfs::new();
    let session = store_with(&disk, journal(4096))
        .create_session(SessionSpec::new())
        .unwrap();
    write(&session, 100, true);
    let id = session.id();
    session.close().unwrap();
    drop(session);
    let (session, _) = store_with(&disk, journal(4096))
        .open_session(id, Mode::Write)
        .unwrap();
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let (of, name) = (main.id(), main.name().clone());
    let turn = main.begin_turn(UserMessage::text("go")).unwrap();
    let in_turn = turn.id();
    let draft = |step: StepDraft| step.into_drafts(of, in_turn, name.clone());
    let stall = disk.stall(|op| matches!(op, Op::Read { .. }));
    let key = Key::new("1-99").unwrap();
    let repeated = session.submit(draft(text_step(&"x".repeat(1000)).key(key)));
    assert!(stall.wait_for(1, std::time::Duration::from_secs(10)));
    let first = Key::new("first").unwrap();
    let last = Key::new("last").unwrap();
    let waiting = [
        session.submit(draft(text_step("first").key(first))),
        session.submit(draft(text_step("plain"))),
        session.submit(draft(text_step("last").key(last))),
    ];
    let begun = session.last_seq();
    drop(stall);
    assert!(repeated.wait().unwrap().unwrap()[0].is_duplicate());
    // One that has no key does not go ahead of one of its loop that waits.
    let seqs = waiting.map(|ticket| ticket.wait().unwrap().unwrap()[0].seq().get());
    assert_eq!(seqs, [1, 2, 3].map(|nth| begun.get() + nth));
}

/// What models see is in memory within a limit for all loops together: the loop that was not asked
/// for the longest is read again when it is.
#[test]
fn contexts_are_held_within_their_limit() {
    let disk = SimVfs::new();
    let room = StoreOptions {
        context_bytes: 50_000,
        ..journal(4096)
    };
    let session = store_with(&disk, room).create_session(SessionSpec::new());
    let session = session.unwrap();
    let loops = ["a", "b", "c"].map(|name| {
        let mut made = session.create_loop(LoopSpec::new(name)).unwrap();
        let mut turn = made.begin_turn(UserMessage::text("go")).unwrap();
        for _ in 0..20 {
            turn.commit_step(text_step(&"x".repeat(1000))).unwrap();
        }
        turn.finish().unwrap();
        made.id()
    });
    let reads = |of: usize| bytes_of(&disk, || drop(session.loop_context(loops[of]).unwrap())) > 0;
    let asked = [0, 1, 0, 2, 0, 1, 2];
    assert_eq!(
        asked.map(reads),
        [true, true, false, true, false, true, true]
    );
}

fn bytes_of(disk: &SimVfs, work: impl FnOnce()) -> u64 {
    let read = Arc::new(AtomicU64::new(0));
    let count = read.clone();
    disk.set_hook(move |op| {
        if let Op::Read { length, path, .. } = op
            && path.to_string_lossy().contains("seg-")
        {
            count.fetch_add(*length as u64, Ordering::Relaxed);
        }
    });
    work();
    disk.clear_hook();
    read.load(Ordering::Relaxed)
}
