//! What is peculiar to the layout with one journal for all sessions. The tests of the store run over it
//! in `shared_layout`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::sync::atomic::{AtomicU64, Ordering};

use stepwell::event::HostEvent;
use stepwell::identity::SessionId;
use stepwell::journal::{self, Lsn, OpenError, Workers};
use stepwell::store::{
    BackupError, Draft, Filter, ForkError, ForkSpec, ImportError, ImportId, IndexHealth, Layout,
    Page, RepairError, RetentionPolicy, SessionStatus,
};
use store_support::*;

fn id(number: u8) -> SessionId {
    SessionId::from_bytes([number; 16])
}

fn shared() -> StoreOptions {
    StoreOptions {
        layout: Layout::Shared,
        workers: Workers::manual(),
        ..options()
    }
}

fn said(length: usize) -> Vec<Draft> {
    let event = HostEvent {
        name: "said".into(),
        version: 1,
        data: RawJson::parse(format!("\"{}\"", "x".repeat(length)).as_bytes()).unwrap(),
        optional: false,
    };
    vec![Draft::new(event)]
}

fn sessions(store: &Store, count: u8) -> Vec<Session> {
    (1..=count)
        .map(|number| {
            let spec = SessionSpec::new().id(id(number));
            store.create_session(spec).unwrap()
        })
        .collect()
}

/// Bytes that are read meanwhile.
fn read_by<T>(disk: &SimVfs, does: impl FnOnce() -> T) -> (T, u64) {
    let read = Arc::new(AtomicU64::new(0));
    let count = read.clone();
    disk.set_hook(move |op| {
        if let Op::Read { length, .. } = op {
            count.fetch_add(*length as u64, Ordering::Relaxed);
        }
    });
    let done = does();
    disk.clear_hook();
    (done, read.load(Ordering::Relaxed))
}

#[test]
fn commits_of_many_sessions_share_a_sync() {
    let disk = SimVfs::new();
    let options = shared();
    let store = store_with(&disk, options.clone());
    let all = sessions(&store, 32);
    while options.workers.run_one() {}
    let before = disk.sync_count("seg-");
    let tickets: Vec<_> = all.iter().map(|it| it.submit(said(40))).collect();
    assert!(options.workers.run_one());
    for ticket in tickets {
        assert_eq!(ticket.wait().unwrap().unwrap()[0].seq(), Seq::new(2));
    }
    assert_eq!(disk.sync_count("seg-") - before, 1);
}

#[test]
fn one_process_owns_the_store_and_others_look() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    let session = store
        .create_session(SessionSpec::new().title("mine"))
        .unwrap();
    session.commit(said(10)).unwrap();
    let other = disk.new_process();
    match Store::on(Arc::new(other.clone()), "/store", options()) {
        Err(StoreError::Journal(OpenError::Locked { holder, .. })) => {
            assert_eq!(holder, Some(disk.holder()));
        }
        opened => panic!("{opened:?}"),
    }
    let looking = Store::on_existing(Arc::new(other.clone()), "/store", options()).unwrap();
    assert_eq!(looking.layout(), Layout::Shared, "the file says it");
    let listed = looking.sessions().unwrap();
    assert_eq!(listed.len(), 1);
    let state = listed[0].state.as_ref().unwrap();
    assert_eq!(state.metadata.title.as_deref(), Some("mine"));
    assert_eq!(
        (state.last_seq, state.status),
        (Seq::new(2), SessionStatus::Idle)
    );
    let (read, report) = looking.open_session(session.id(), Mode::Read).unwrap();
    assert_eq!((report.committed, read.mode()), (Seq::new(2), Mode::Read));
    // Who only looks may not become a second owner by opening a session.
    assert!(matches!(
        looking.open_session(session.id(), Mode::Write),
        Err(SessionError::Journal(OpenError::Locked { .. }))
    ));
    store.close().unwrap();
    let mine = Store::on(Arc::new(other), "/store", options()).unwrap();
    let (again, _) = mine.open_session(session.id(), Mode::Write).unwrap();
    assert_eq!(again.title().as_deref(), Some("mine"));
}

#[test]
fn a_session_has_one_writer() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    let session = store.create_session(SessionSpec::new().id(id(1))).unwrap();
    let open = |mode| store.open_session(id(1), mode);
    let held = |opened| match opened {
        Err(SessionError::Journal(OpenError::Locked { holder, .. })) => {
            assert_eq!(holder, Some(disk.holder()));
        }
        opened => panic!("{opened:?}"),
    };
    held(open(Mode::Write));
    assert!(matches!(
        store.create_session(SessionSpec::new().id(id(1))),
        Err(SessionError::AlreadyExists(_))
    ));
    assert!(open(Mode::Read).is_ok());
    session.close().unwrap();
    assert!(matches!(
        session.commit(said(1)),
        Err(CommitError::NotCommitted(_))
    ));
    let (second, _) = open(Mode::Write).unwrap();
    held(open(Mode::Write));
    second.commit(said(1)).unwrap();
    drop(second);
    let (third, _) = open(Mode::Write).unwrap();
    // The late drop of a handle that was closed takes nothing away from the one that has it now.
    drop(session);
    held(open(Mode::Write));
    third.commit(said(1)).unwrap();
}

/// What waits when a session is closed is settled before somebody else can have it.
#[test]
fn a_close_waits_for_what_is_under_way() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    let all = sessions(&store, 2);
    let ticket = all[0].submit(said(10));
    let other = all[1].submit(said(10));
    all[0].close().unwrap();
    let ticket = ticket.wait_for(std::time::Duration::ZERO);
    let ticket = ticket.expect("settled before the close returned");
    assert_eq!(ticket.unwrap().unwrap()[0].seq(), Seq::new(2));
    assert!(other.wait().unwrap().is_ok());
    let (again, report) = store.open_session(id(1), Mode::Write).unwrap();
    assert_eq!(report.committed, Seq::new(2));
    again.commit(said(10)).unwrap();
    all[1].commit(said(10)).unwrap();
}

/// P8: one journal, one fault; it is brought back once for all.
#[test]
fn a_fault_is_one_of_every_session_and_reopening_brings_the_journal_back_once() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    let all = sessions(&store, 3);
    let idle = Watcher::on(&disk, &all[2]);
    disk.fail_nth(Op::is_sync, 0, FaultKind::Eio);
    let failed = all[0].commit(said(10));
    assert!(
        matches!(failed, Err(CommitError::Unknown { .. })),
        "{failed:?}"
    );
    let fault = all[0].fault().unwrap();
    assert_eq!(*idle.faults.lock().unwrap(), std::slice::from_ref(&fault));
    for session in &all {
        assert_eq!(session.fault(), Some(fault.clone()));
        assert!(session.commit(said(1)).is_err());
        assert!(session.replay(Seq::new(1)).all(|event| event.is_ok()));
    }
    assert_eq!(store.health().faulted.len(), 3);
    let epoch = |session: &Session| {
        let (session, report) = store.reopen(session).unwrap();
        session.commit(said(1)).unwrap();
        (report.journal.epoch, session)
    };
    let (first, a) = epoch(&all[0]);
    let (second, b) = epoch(&all[1]);
    assert_eq!((first, second), (2, 2), "opened again once");
    // One that nobody reopened stays as it was and is in nobody's way.
    assert_eq!(all[2].fault(), Some(fault));
    let (c, _) = store.open_session(id(3), Mode::Write).unwrap();
    for session in [&a, &b, &c] {
        session.commit(said(1)).unwrap();
    }
    assert_eq!(idle.faults.lock().unwrap().len(), 1);
}

/// What recovery kept above the watermark is given to each session that has some of it, once.
#[test]
fn what_recovery_kept_is_given_to_each_session_once() {
    let disk = SimVfs::new();
    let options = shared();
    let store = store_with(&disk, options.clone());
    let all = sessions(&store, 3);
    while options.workers.run_one() {}
    let tickets: Vec<_> = all[..2].iter().map(|it| it.submit(said(40))).collect();
    // One group, and no witness slot that would vouch for it.
    assert!(options.workers.run_one());
    for ticket in tickets {
        ticket.wait().unwrap().unwrap();
    }
    drop((all, store));
    disk.kill();
    let store = store_with(&disk, shared());
    for (number, expected) in [(1, 1), (2, 1), (3, 0)] {
        // An opening that fails gives nothing away.
        disk.fail_from(|op| matches!(op, Op::Read { .. }), 0, FaultKind::Eio);
        assert!(store.open_session(id(number), Mode::Write).is_err());
        disk.clear_faults();
        let (session, report) = store.open_session(id(number), Mode::Write).unwrap();
        assert_eq!(report.recovered.len(), expected, "session {number}");
        let last = report.committed.get();
        assert_eq!(report.proven.get(), last - expected as u64);
        session.commit(said(10)).unwrap();
        session.close().unwrap();
        let (_again, report) = store.open_session(id(number), Mode::Write).unwrap();
        assert_eq!(report.recovered, [], "once");
        assert_eq!(report.proven, report.committed);
    }
}

/// P13: reading or opening one of a thousand costs its own bytes and a bounded part.
#[test]
fn one_session_of_a_thousand_is_read_without_the_others() {
    let roomy = || StoreOptions {
        journal: JournalOptions {
            first_capacity: 1024 * 1024,
            max_capacity: 1024 * 1024,
            supersede_limit: 4096,
            ..JournalOptions::default()
        },
        ..shared()
    };
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let store = store_with(&disk, roomy());
    let ids: Vec<SessionId> = (0..1000_u32)
        .map(|number| {
            let mut bytes = [7; 16];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            SessionId::from_bytes(bytes)
        })
        .collect();
    let all: Vec<Session> = ids
        .iter()
        .map(|id| store.create_session(SessionSpec::new().id(*id)).unwrap())
        .collect();
    for _ in 0..10 {
        for session in &all {
            session.commit(said(2000)).unwrap();
        }
    }
    let whole: u64 = disk.files().iter().map(|(_, length)| length).sum();
    let mine = &all[500];
    let (entries, read) = read_by(&disk, || mine.replay(Seq::new(1)).count());
    assert_eq!(entries, 11);
    // In each segment where it has a record: the rows of the sessions there, twice, its own bytes, and
    // a little more for each.
    let segments = whole / (1024 * 1024) + 1;
    println!("{read} of {whole} bytes in {segments} segments");
    assert!(
        read < 11 * 4096 + 11 * 2 * 72 * 600,
        "{read} of {whole} bytes"
    );
    drop(all);
    store.close().unwrap();
    let store = store_with(&disk, roomy());
    let (opened, read) = read_by(&disk, || store.open_session(ids[500], Mode::Write));
    let (session, report) = opened.unwrap();
    assert_eq!(report.committed, Seq::new(11));
    println!("{read} bytes to open it");
    assert!(read < 512 * 1024, "{read} of {whole} bytes");
    assert!(session.replay(Seq::new(1)).all(|event| event.is_ok()));
    let (listed, read) = read_by(&disk, || store.sessions().unwrap().len());
    println!("{read} bytes to list {listed}");
    assert_eq!(listed, 1000);
    assert!(read < whole, "{read} of {whole} bytes");
}

/// Damage to the records of one session is met by that one only.
#[test]
fn damage_in_a_finished_segment_hits_the_session_that_it_hits() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    let all = sessions(&store, 3);
    for _ in 0..60 {
        for session in &all {
            session.commit(said(500)).unwrap();
        }
    }
    let view = store.journal_view(id(2)).unwrap();
    let hit = view.read(Lsn::ZERO).map(Result::unwrap);
    let hit = hit.filter(|entry| entry.session == id(2)).nth(3).unwrap();
    let file = store
        .session_dir(id(2))
        .join(hit.position.segment.to_string());
    drop(all);
    store.close().unwrap();
    disk.flip_byte(&file, hit.position.offset + 100).unwrap();
    let store = store_with(&disk, shared());
    for number in [1, 3] {
        assert!(store.verify(id(number)).unwrap().is_intact());
        let (session, _) = store.open_session(id(number), Mode::Write).unwrap();
        assert!(session.replay(Seq::new(1)).all(|event| event.is_ok()));
        session.commit(said(1)).unwrap();
    }
    let verified = store.verify(id(2)).unwrap();
    assert_eq!(verified.unreadable.len(), 1, "{:?}", verified.unreadable);
    let (session, _) = store.open_session(id(2), Mode::Read).unwrap();
    let errors = session.replay(Seq::new(1)).filter(Result::is_err).count();
    assert_eq!(errors, 1);
    assert_eq!(store.sessions().unwrap().len(), 3);
}

/// A footer only says faster what the frames say.
#[test]
fn without_any_footer_everything_is_as_before() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    let all = sessions(&store, 3);
    for _ in 0..60 {
        for session in &all {
            session.commit(said(500)).unwrap();
        }
    }
    let dir = store.session_dir(id(1));
    drop(all);
    store.close().unwrap();
    let mut flipped = 0;
    for (path, length) in disk.files() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.starts_with(&dir) && name.starts_with("seg-") && length > 16 * 1024 {
            let bytes = disk.read_file(&path).unwrap();
            let footer = bytes.windows(4).rposition(|window| window == b"SWO1");
            if let Some(at) = footer {
                disk.flip_byte(&path, at as u64 + 20).unwrap();
                flipped += 1;
            }
        }
    }
    assert!(flipped > 3, "{flipped}");
    let store = store_with(&disk, shared());
    for number in 1..=3 {
        let (session, report) = store.open_session(id(number), Mode::Write).unwrap();
        assert_eq!(report.committed, Seq::new(61));
        assert_eq!(
            session.replay(Seq::new(1)).filter(Result::is_ok).count(),
            63
        );
        session.commit(said(1)).unwrap();
    }
    assert_eq!(store.sessions().unwrap().len(), 3);
}

/// The journal of a store whose STORE file is there is never made anew in silence.
#[test]
fn a_lost_journal_is_told() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    sessions(&store, 1);
    let dir = store.session_dir(id(1));
    store.close().unwrap();
    drop(store);
    for (path, _) in disk.files() {
        if path.starts_with(&dir) {
            disk.remove(&path).unwrap();
        }
    }
    assert!(matches!(
        Store::on(Arc::new(disk.clone()), "/store", shared()),
        Err(StoreError::Journal(OpenError::NotFound { .. }))
    ));
}

/// What this layout does not do says so, and writes nothing.
#[test]
fn what_needs_a_journal_for_each_session_is_refused() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    let all = sessions(&store, 2);
    all[0].commit(said(10)).unwrap();
    let files = disk.files();
    let shared = Layout::Shared;
    for spec in [ForkSpec::new(), ForkSpec::at(Seq::new(1)).id(id(9))] {
        let forked = store.fork(id(1), spec).unwrap_err();
        assert_eq!(forked, ForkError::Layout(shared));
    }
    assert_eq!(
        store.delete_session(id(1)).unwrap_err(),
        SessionError::Layout(shared)
    );
    let refused = StoreError::Layout(shared);
    let retention = store.retention(RetentionPolicy::default());
    assert_eq!(retention.unwrap_err(), refused);
    assert_eq!(
        store.repair(id(1), "/elsewhere", true).unwrap_err(),
        RepairError::Store(refused.clone())
    );
    let backup = store.backup("/elsewhere").unwrap_err();
    assert!(
        matches!(&backup, BackupError::Store(error) if *error == refused),
        "{backup}"
    );
    let imported = store.import(&b""[..], ImportId::Same).unwrap_err();
    assert!(matches!(imported, ImportError::Layout(Layout::Shared)));
    // Nor can it be had by the journal.
    let view = store.journal_view(id(1)).unwrap();
    assert!(matches!(
        view.fork_point(None),
        Err(journal::ForkError::Shared { .. })
    ));
    assert_eq!(disk.files(), files);
    drop(all);
    let all = store.sessions().unwrap();
    assert_eq!(all.len(), 2);
}

/// A listing says what the sessions are, by their newest states and what stands behind them.
#[test]
fn a_listing_says_what_each_session_is() {
    let disk = SimVfs::new();
    let store = store_with(&disk, shared());
    let all = sessions(&store, 3);
    let mut loops: Vec<_> = all
        .iter()
        .map(|session| session.create_loop(LoopSpec::new("main")).unwrap())
        .collect();
    for number in 0..40 {
        for (index, main) in loops.iter_mut().enumerate() {
            let mut turn = main.begin_turn(UserMessage::text("go")).unwrap();
            for _ in 0..=index {
                turn.commit_step(text_step(&"x".repeat(300))).unwrap();
            }
            match (index, number) {
                // The last one stays open.
                (2, 39) => drop(turn),
                _ => drop(turn.finish().unwrap()),
            }
        }
    }
    assert!(disk.files().len() > 10, "many segments");
    let look = look(&disk);
    for store in [&store, &look] {
        let found = store.sessions().unwrap();
        assert_eq!(found.len(), 3);
        for (index, entry) in found.iter().enumerate() {
            let listed = entry.state.as_ref().unwrap();
            let steps = 40 * (index as u64 + 1);
            assert_eq!(entry.id, id(index as u8 + 1));
            assert_eq!(listed.unreadable, None);
            assert_eq!((listed.turns, listed.steps), (40, steps));
            assert_eq!(listed.last_seq, all[index].last_seq());
            assert_eq!(listed.open_turns, usize::from(index == 2));
            let status = match index {
                2 => SessionStatus::Active,
                _ => SessionStatus::Idle,
            };
            assert_eq!(entry.status(), status);
        }
        let mut page = store.list(&Filter::new(), &Page::all()).unwrap().entries;
        page.sort_by_key(|entry| entry.id);
        assert_eq!(page, found);
    }
}

/// An index would be held against files that are the session's alone.
#[test]
fn there_is_no_index() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open_with(&path, shared()).unwrap();
    let all = sessions(&store, 2);
    for round in 0..3 {
        all[1].commit(said(10)).unwrap();
        let mut listed = store.list(&Filter::new(), &Page::all()).unwrap().entries;
        listed.sort_by_key(|entry| entry.id);
        assert_eq!(listed, store.sessions().unwrap());
        let last = listed[1].state.as_ref().unwrap().last_seq;
        assert_eq!(last, Seq::new(round + 2));
        assert_eq!(store.health().index, IndexHealth::Off);
    }
    assert!(!path.join("index").exists());
}

/// Each session has its large bodies in a directory of its own, and meets the loss of its own only.
#[test]
fn large_bodies_stand_apart_for_each_session() {
    let disk = SimVfs::new();
    let options = StoreOptions {
        blob_threshold: 1000,
        ..shared()
    };
    let store = store_with(&disk, options.clone());
    let all = sessions(&store, 2);
    for session in &all {
        session.commit(said(5000)).unwrap();
        session.commit(said(10)).unwrap();
    }
    let files_of = |number: u8| {
        let dir = format!("/store/blobs/{}", id(number));
        let mut files = disk.files();
        files.retain(|(path, _)| path.starts_with(&dir));
        files
    };
    assert_eq!((files_of(1).len(), files_of(2).len()), (1, 1));
    drop(all);
    store.close().unwrap();
    drop(store);
    // They are of the store also where its file is lost.
    disk.remove("/store/STORE").unwrap();
    assert!(matches!(
        Store::on_existing(Arc::new(disk.clone()), "/store", options.clone()),
        Err(StoreError::StoreFileMissing { .. })
    ));
    disk.remove(&files_of(2)[0].0).unwrap();
    let store = store_with(&disk, options);
    assert_eq!(store.layout(), Layout::Shared);
    assert!(store.verify(id(1)).unwrap().is_intact());
    assert_eq!(store.verify(id(2)).unwrap().unreadable.len(), 1);
    for (number, lost) in [(1, 0), (2, 1)] {
        let (session, report) = store.open_session(id(number), Mode::Write).unwrap();
        assert!(report.is_clean(), "{report}");
        let errors = session.replay(Seq::new(1)).filter(Result::is_err).count();
        assert_eq!(errors, lost);
        session.commit(said(5000)).unwrap();
        assert_eq!(files_of(number).len(), 2 - lost);
        let exported = store.export(id(number), &mut Vec::new());
        assert_eq!(exported.is_err(), lost == 1);
    }
}

/// 64 threads, each with sessions of its own, commit, close, open again and read, while others list and
/// verify: everything is there in the end, each in its order.
#[test]
fn sixty_four_threads_work_side_by_side() {
    const ROUNDS: usize = 12;
    let disk = SimVfs::new();
    disk.set_tracing(false);
    let store = store_with(
        &disk,
        StoreOptions {
            workers: Workers::threads(),
            ..shared()
        },
    );
    std::thread::scope(|scope| {
        for number in 1..=64 {
            let store = store.clone();
            scope.spawn(move || {
                let spec = SessionSpec::new().id(id(number));
                let mut session = store.create_session(spec).unwrap();
                for round in 0..ROUNDS {
                    let before = session.last_seq();
                    let ticket = session.submit(said(200));
                    session.commit(said(20 * round)).unwrap();
                    assert_eq!(ticket.wait().unwrap().unwrap()[0].seq(), before.next());
                    if round % 4 == 3 {
                        session.close().unwrap();
                        let (again, report) = store.open_session(id(number), Mode::Write).unwrap();
                        assert_eq!(report.committed.get(), before.get() + 2);
                        session = again;
                    }
                    if round % 5 == 4 {
                        let read = session.replay(Seq::new(1)).map(Result::unwrap).count();
                        assert_eq!(read as u64, session.last_seq().get());
                    }
                }
            });
        }
        for _ in 0..2 {
            let store = store.clone();
            scope.spawn(move || {
                for _ in 0..10 {
                    for entry in store.sessions().unwrap() {
                        let state = entry.state.unwrap();
                        assert_eq!((state.damage, state.unreadable), (None, None));
                    }
                    if let Ok(report) = store.verify(id(7)) {
                        assert!(report.is_intact(), "{:?}", report.unreadable);
                    }
                }
            });
        }
    });
    store.close().unwrap();
    let store = store_with(&disk, shared());
    for number in 1..=64 {
        let report = store.verify(id(number)).unwrap();
        assert!(report.is_intact(), "{:?}", report.unreadable);
        let (session, _) = store.open_session(id(number), Mode::Read).unwrap();
        let said = session.replay(Seq::new(1)).map(Result::unwrap);
        let said = said.filter(|it| it.event().kind() == Kind::HostEvent);
        assert_eq!(said.count(), 2 * ROUNDS);
    }
}
