//! Listings in pages, and the index behind them over real processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

mod store_support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stepwell::event::Forked;
use stepwell::identity::{SessionId, Timestamp};
use stepwell::journal::OpenError;
use stepwell::store::{
    Cursor, Draft, Filter, IndexHealth, IndexOptions, Page, SessionChange, SessionEntry,
    SessionStatus,
};
use store_support::*;

fn said(text: &str) -> Vec<Draft> {
    vec![Draft::new(HostEvent {
        name: text.into(),
        version: 1,
        data: RawJson::empty_object(),
        optional: false,
    })]
}

fn closed(store: &Store, title: &str) -> SessionId {
    let spec = SessionSpec::new().title(title);
    let session = store.create_session(spec).unwrap();
    session.commit(said("said")).unwrap();
    session.close().unwrap();
    session.id()
}

fn touch(store: &Store, id: SessionId) {
    let (session, _) = store.open_session(id, Mode::Write).unwrap();
    session.change(SessionChange::title("touched")).unwrap();
    session.close().unwrap();
}

fn ids(entries: &[SessionEntry]) -> Vec<SessionId> {
    entries.iter().map(|entry| entry.id).collect()
}

#[track_caller]
fn agrees(store: &Store) {
    let mut entries = store.list(&Filter::new(), &Page::all()).unwrap().entries;
    entries.sort_by_key(|entry| entry.id);
    assert_eq!(entries, store.sessions().unwrap());
}

/// All pages, one behind the other; between them something happens.
fn paged(store: &Store, limit: usize, mut between: impl FnMut()) -> Vec<SessionId> {
    let mut seen = Vec::new();
    let mut page = Page::first(limit);
    loop {
        let listing = store.list(&Filter::new(), &page).unwrap();
        assert!(listing.entries.len() <= limit);
        seen.extend(ids(&listing.entries));
        let Some(next) = listing.next else {
            return seen;
        };
        // As a host keeps it.
        let next: Cursor = next.to_string().parse().unwrap();
        page = Page::first(limit).after(next);
        between();
    }
}

#[test]
fn pages_give_every_session_once_the_last_active_first() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut made: Vec<SessionId> = (0..23).map(|n| closed(&store, &format!("{n}"))).collect();
    made.reverse();
    for limit in [1, 2, 5, 22, 23, 24] {
        assert_eq!(paged(&store, limit, || {}), made, "{limit}");
    }
    touch(&store, made[9]);
    let first = store.list(&Filter::new(), &Page::first(1)).unwrap();
    assert_eq!((ids(&first.entries), first.total), (vec![made[9]], 23));
    // Nobody knows when a session was active whose log is gone: it comes last, and is turned to.
    for file in std::fs::read_dir(store.session_dir(made[4])).unwrap() {
        let path = file.unwrap().path();
        if path.to_string_lossy().contains("MANIFEST") {
            std::fs::write(path, b"no manifest").unwrap();
        }
    }
    let last = *paged(&store, 4, || {}).last().unwrap();
    let listed = store.list(&Filter::new(), &Page::all()).unwrap();
    let damaged = listed.entries.iter().find(|entry| entry.id == made[4]);
    assert_eq!(damaged.unwrap().status(), SessionStatus::Damaged);
    assert_eq!(ids(&listed.entries).last(), Some(&last));
    agrees(&store);
}

/// Sessions that are damaged, of a newer format or held by another writer are listed as such, and hide
/// no other, with an index that knew them whole and without one.
#[test]
fn what_cannot_be_read_is_listed_as_such_and_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let made: Vec<SessionId> = (0..6).map(|n| closed(&store, &format!("{n}"))).collect();
    agrees(&store);
    let manifest = |id| {
        let files = std::fs::read_dir(store.session_dir(id)).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let manifests = paths.filter(|path| path.to_string_lossy().contains("MANIFEST-"));
        manifests.max().unwrap()
    };
    // Of a newer format: by the version field, behind a checksum that is right.
    let mut newer = std::fs::read(manifest(made[1])).unwrap();
    newer[12] = 9;
    let crc = crc32fast::hash(&newer[12..]);
    newer[8..12].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(manifest(made[1]), newer).unwrap();
    std::fs::write(manifest(made[2]), b"no manifest").unwrap();
    // Held by a writer that is another store's.
    let beside = Store::open(dir.path()).unwrap();
    let (held, _) = beside.open_session(made[3], Mode::Write).unwrap();
    held.change(SessionChange::title("held")).unwrap();
    for _ in 0..2 {
        let listing = store.list(&Filter::new(), &Page::all()).unwrap();
        assert_eq!(listing.total, 6);
        let found = |id| listing.entries.iter().find(|entry| entry.id == id).unwrap();
        assert!(matches!(
            found(made[1]).state,
            Err(OpenError::NewerFormat { version: 9, .. })
        ));
        assert_eq!(found(made[1]).status(), SessionStatus::Damaged);
        assert_eq!(found(made[2]).status(), SessionStatus::Damaged);
        let said = found(made[3]).state.as_ref().unwrap();
        assert_eq!(said.metadata.title.as_deref(), Some("held"));
        for whole in [0, 4, 5] {
            assert_eq!(found(made[whole]).status(), SessionStatus::Idle);
        }
        let harmed = Filter::new().status(SessionStatus::Damaged);
        assert_eq!(store.list(&harmed, &Page::all()).unwrap().total, 2);
        agrees(&store);
        agrees(&beside);
    }
}

#[test]
fn sessions_that_change_between_pages_hide_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let made: Vec<SessionId> = (0..30).map(|n| closed(&store, &format!("{n}"))).collect();
    // Each time one moves to the front, one is new, and one is gone.
    let (mut moved, mut gone, mut round) = (BTreeSet::new(), BTreeSet::new(), 0);
    let seen = paged(&store, 3, || {
        if round < 5 {
            touch(&store, made[round]);
            moved.insert(made[round]);
            closed(&store, "new");
            store.delete_session(made[8 + round]).unwrap();
            gone.insert(made[8 + round]);
        }
        round += 1;
    });
    assert!(round > 4);
    for id in &made {
        let times = seen.iter().filter(|other| *other == id).count();
        match moved.contains(id) || gone.contains(id) {
            true => assert!(times <= 2),
            false => assert_eq!(times, 1, "{id}"),
        }
    }
}

#[test]
fn a_cursor_is_read_by_what_wrote_it_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    closed(&store, "a");
    closed(&store, "b");
    let next = store.list(&Filter::new(), &Page::first(1)).unwrap().next;
    let text = next.unwrap().to_string();
    assert_eq!(text.parse::<Cursor>(), Ok(next.unwrap()));
    assert!(text.len() < 64);
    let id = SessionId::new();
    assert!(format!("1.-.-.{id}").parse::<Cursor>().is_ok());
    for bad in [
        "".to_owned(),
        text.to_uppercase() + " ",
        format!(" {text}"),
        text.replacen('1', "2", 1),
        format!("1.-.0.{id}"),
        format!("1.+5.000000000.{id}"),
        format!("1.5.0.{id}"),
        format!("1.5.1000000000.{id}"),
        format!("1.99999999999999.000000000.{id}"),
        format!("1.5.000000000.{id}.x"),
        "1.5.000000000.nobody".to_owned(),
    ] {
        assert!(bad.parse::<Cursor>().is_err(), "{bad}");
    }
}

#[test]
fn a_filter_shows_what_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let idle = closed(&store, "Straße nach Oslo");
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut agent = session.create_loop(LoopSpec::new("agent")).unwrap();
    let mut turn = agent.begin_turn(UserMessage::text("go")).unwrap();
    turn.commit_step(text_step("step")).unwrap();
    for _ in 0..2 {
        let show = |filter: Filter| store.list(&filter, &Page::all()).unwrap();
        let active = show(Filter::new().status(SessionStatus::Active));
        assert_eq!(ids(&active.entries), [session.id()]);
        let listed = active.entries[0].state.as_ref().unwrap();
        let counts = (
            listed.turns,
            listed.steps,
            listed.open_turns,
            listed.pending_gates,
        );
        assert_eq!(counts, (1, 1, 1, 0));
        assert_eq!(ids(&show(Filter::new().title("STRASSE")).entries), []);
        assert_eq!(
            ids(&show(Filter::new().title("STRAßE NACH o")).entries),
            [idle]
        );
        let both = Filter::new()
            .status(SessionStatus::Active)
            .status(SessionStatus::Idle);
        assert_eq!(show(both).total, 2);
        let at = listed.last_active.unwrap();
        assert_eq!(
            ids(&show(Filter::new().active_since(at)).entries),
            [session.id()]
        );
        assert_eq!(ids(&show(Filter::new().active_before(at)).entries), [idle]);
    }
    turn.finish().unwrap();
    let filter = Filter::new().status(SessionStatus::Active);
    assert_eq!(store.list(&filter, &Page::all()).unwrap().total, 0);
}

/// The counts of a listing are those of the fold, also where the tail begins with a carry record.
#[test]
fn counts_are_carried_over_segments() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path(), options()).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut agent = session.create_loop(LoopSpec::new("agent")).unwrap();
    for _ in 0..40 {
        let mut turn = agent.begin_turn(UserMessage::text("go")).unwrap();
        turn.commit_step(text_step(&"x".repeat(700))).unwrap();
        turn.finish().unwrap();
    }
    let turn = agent.begin_turn(UserMessage::text("go")).unwrap();
    let entries = store.list(&Filter::new(), &Page::all()).unwrap().entries;
    let listed = entries[0].state.as_ref().unwrap();
    assert_eq!((listed.turns, listed.steps, listed.open_turns), (41, 40, 1));
    assert_eq!(listed.last_seq, session.last_seq());
    drop(turn);
}

/// What a session is doing is known although the segment that says so is not read.
#[test]
fn a_status_is_carried_over_segments() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_with(dir.path(), options()).unwrap();
    let session = store.create_session(SessionSpec::new()).unwrap();
    let mut agent = session.create_loop(LoopSpec::new("agent")).unwrap();
    let parent = SessionId::new();
    let forked = Forked { parent, at: 7 };
    session.commit(vec![Draft::new(forked)]).unwrap();
    let status = || {
        // Several segments behind it.
        for _ in 0..60 {
            session.commit(said(&"x".repeat(200))).unwrap();
        }
        agrees(&store);
        let entries = store.list(&Filter::new(), &Page::all()).unwrap().entries;
        let listed = entries[0].state.as_ref().unwrap();
        let from = listed.forked_from.unwrap();
        assert_eq!((from.parent, from.at.get()), (parent, 7));
        let before = listed.bytes;
        assert!(before > 60 * 200);
        listed.status
    };
    assert_eq!(status(), SessionStatus::Idle);
    let turn = agent.begin_turn(UserMessage::text("go")).unwrap();
    assert_eq!(status(), SessionStatus::Active);
    let error = ErrorProjection::new(ErrorKind::Unknown, "no");
    turn.fail(error).unwrap();
    assert_eq!(status(), SessionStatus::Failed);
    let turn = agent.begin_turn(UserMessage::text("go")).unwrap();
    turn.finish().unwrap();
    assert_eq!(status(), SessionStatus::Idle);
    // A turn that is cut off is closed as interrupted by the next opening.
    drop(agent.begin_turn(UserMessage::text("go")).unwrap());
    drop(agent);
    session.close().unwrap();
    let (session, _) = store.open_session(session.id(), Mode::Write).unwrap();
    for _ in 0..60 {
        session.commit(said(&"x".repeat(200))).unwrap();
    }
    let entries = store.list(&Filter::new(), &Page::all()).unwrap().entries;
    assert_eq!(entries[0].status(), SessionStatus::Interrupted);
    agrees(&store);
    assert!(store.verify(session.id()).unwrap().is_intact());
}

const CHILD: &str = "STEPWELL_CATALOG_CHILD";

/// The process that is killed: it commits, closes and lists without an end.
#[test]
fn the_child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let store = Store::open(dir).unwrap();
    println!("begins");
    loop {
        let id = closed(&store, "of the child");
        agrees(&store);
        touch(&store, id);
        println!("made {id}");
    }
}

fn child(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_child_that_is_killed", "--nocapture"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_process_that_is_killed_or_lives_beside_costs_only_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for n in 0..5 {
        closed(&store, &format!("{n}"));
    }
    agrees(&store);
    drop(store);
    for round in 0..12 {
        let mut child = child(dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..=round % 3 {
            let until = lines.find(|line| line.as_ref().unwrap().contains("made"));
            assert!(until.is_some());
        }
        // Beside it: another process has the index, and writes.
        let beside = Store::open(dir.path()).unwrap();
        beside.list(&Filter::new(), &Page::all()).unwrap();
        assert_eq!(beside.health().index, IndexHealth::Locked);
        drop(beside);
        std::thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open(dir.path()).unwrap();
        agrees(&store);
        let id = closed(&store, "by the parent");
        agrees(&store);
        touch(&store, id);
        agrees(&store);
        assert!(!matches!(store.health().index, IndexHealth::Broken { .. }));
    }
}

/// Figures, not a test: `STEPWELL_SESSIONS=10000 cargo test --release --test store_catalog -- --ignored
/// --nocapture figures`.
#[test]
#[ignore = "measures"]
fn figures() {
    listings();
    commits();
}

/// What a commit pays for the index: rounds with and without one, in turns.
fn commits() {
    let (indexed, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let off = StoreOptions {
        index: IndexOptions::off(),
        ..StoreOptions::default()
    };
    let stores = [
        Store::open(indexed.path()).unwrap(),
        Store::open_with(plain.path(), off).unwrap(),
    ];
    let sessions = stores.each_ref().map(|store| {
        agrees(store);
        store.create_session(SessionSpec::new()).unwrap()
    });
    let data = RawJson::parse(format!(r#"{{"text":"{}"}}"#, "x".repeat(4096)).as_bytes());
    let data = data.unwrap();
    let said = || {
        vec![Draft::new(HostEvent {
            name: "said".into(),
            version: 1,
            data: data.clone(),
            optional: false,
        })]
    };
    let mut ratios = Vec::new();
    for round in 0..21 {
        let mut took = [Duration::ZERO; 2];
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let began = Instant::now();
            for _ in 0..200 {
                sessions[which].commit(said()).unwrap();
            }
            took[which] = began.elapsed();
        }
        ratios.push(took[0].as_secs_f64() / took[1].as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "a commit with the index by one without: {:.3} (quartiles {:.3} and {:.3}) over {} rounds",
        ratios[10],
        ratios[5],
        ratios[15],
        ratios.len()
    );
    println!("the index then: {:?}", stores[0].health().index);
}

fn listings() {
    let many = std::env::var("STEPWELL_SESSIONS").map_or(1000, |n| n.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let began = Instant::now();
    for n in 0..many {
        closed(&store, &format!("session {n}"));
    }
    println!("{many} sessions made in {:?}", began.elapsed());
    let timed = |what: &str, store: &Store| {
        let began = Instant::now();
        let page = Page::first(50);
        let total = store.list(&Filter::new(), &page).unwrap().total;
        println!("{what}: {:?} for {total}", began.elapsed());
    };
    let off = StoreOptions {
        index: IndexOptions::off(),
        ..StoreOptions::default()
    };
    let without = Store::open_with(dir.path(), off).unwrap();
    timed("without an index", &without);
    timed("without an index, again", &without);
    timed("the first listing, which fills it", &store);
    timed("the second", &store);
    while store.health().index != (IndexHealth::Ready { behind: 0 }) {
        std::thread::sleep(Duration::from_millis(50));
    }
    timed("with it", &store);
    let began = Instant::now();
    drop(store);
    println!("closed in {:?}", began.elapsed());
    let began = Instant::now();
    let store = Store::open(dir.path()).unwrap();
    println!("opened in {:?}", began.elapsed());
    timed("with it, opened again", &store);
    timed("with it", &store);
    let now = Timestamp::now();
    let filter = Filter::new().active_before(now).title("99");
    let began = Instant::now();
    let found = store.list(&filter, &Page::first(50)).unwrap().total;
    println!("filtered, with it: {:?} for {found}", began.elapsed());
    agrees(&store);
}
