//! How many files a store holds open, what it says when there are too many, and thousands of
//! sessions in a process that may have few.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::path::Path;
use std::process::Command;

use stepwell::content::RawJson;
use stepwell::event::HostEvent;
use stepwell::journal::{JournalOptions, NotCommitted, OpenError, Seq};
use stepwell::store::{
    CommitError, Draft, Mode, Refusal, Session, SessionError, SessionSpec, Store, StoreOptions,
};
use tempfile::TempDir;

/// A folder where a sync costs nothing, if there is one.
fn folder() -> TempDir {
    let shm = Path::new("/dev/shm");
    match shm.is_dir() {
        true => TempDir::new_in(shm).unwrap(),
        false => TempDir::new().unwrap(),
    }
}

fn store(folder: &TempDir) -> Store {
    let options = StoreOptions {
        journal: JournalOptions {
            first_capacity: 4096,
            max_capacity: 4096,
            ..JournalOptions::default()
        },
        ..StoreOptions::default()
    };
    Store::open_with(folder.path().join("store"), options).unwrap()
}

/// The files of this process in a folder, by name, without the numbers.
fn held(folder: &Path) -> Vec<String> {
    let mut held = Vec::new();
    for handle in std::fs::read_dir("/proc/self/fd").unwrap() {
        let Ok(target) = std::fs::read_link(handle.unwrap().path()) else {
            continue;
        };
        if target.starts_with(folder) {
            let name = target.file_name().unwrap().to_str().unwrap();
            held.push(name.chars().take_while(|letter| *letter != '-').collect());
        }
    }
    held.sort();
    held
}

/// A small event, committed.
fn say(session: &Session, number: u64) -> Result<Seq, CommitError> {
    let event = HostEvent {
        name: "said".into(),
        version: 1,
        data: RawJson::parse(number.to_string().as_bytes()).unwrap(),
        optional: false,
    };
    session.commit(vec![Draft::new(event)])?;
    Ok(session.last_seq())
}

/// A session at rest holds its lock, its manifest and its active segment; at a roll one more; a
/// parked one its lock.
#[test]
fn a_session_holds_few_files() {
    let folder = folder();
    let store = store(&folder);
    let session = store.create_session(SessionSpec::new()).unwrap();
    let first = session.id();
    let held = || held(folder.path());
    // The manifest was linked from its first name.
    let few = ["LOCK", "seg", "tmp"];
    assert_eq!(held(), few);
    let mut most = 0;
    for number in 0..200 {
        say(&session, number).unwrap();
        most = most.max(held().len());
    }
    // While the next segment is made there are the directory, its file, and a manifest for a moment.
    assert!(most <= 8, "{most}");
    let settled = |expected: &[&str]| {
        for _ in 0..200 {
            if held() == expected {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{:?} and not {expected:?}", held());
    };
    // Over the life of a segment: one more at most, the sealed one or the prepared one.
    for number in 200..240 {
        say(&session, number).unwrap();
        let few = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            held().len() <= few.len() + 1
        });
        assert!(few, "{:?}", held());
    }
    session.park().unwrap();
    settled(&["LOCK"]);
    assert_eq!(session.history().unwrap().len(), 0);
    say(&session, 240).unwrap();
    session.park().unwrap();
    settled(&["LOCK"]);
    session.close().unwrap();
    drop(session);
    settled(&[]);
    let id = first;
    let (view, _) = store.open_session(id, Mode::Read).unwrap();
    // Of a view: the active segment, and the one before it until a manifest ends that.
    let viewed = held();
    assert!(
        viewed.len() <= 2 && viewed.iter().all(|name| name == "seg"),
        "{viewed:?}"
    );
    assert_eq!(view.last_seq(), Seq::new(242));
}

/// The limit of handles of the process that the other test starts.
const LIMIT: u64 = 2_200;
const SESSIONS: usize = 2_000;

/// Runs the test below in a process that may hold few files.
#[test]
fn thousands_of_sessions_in_a_process_with_few_handles() {
    let test = std::env::current_exe().unwrap();
    let run = Command::new("sh")
        .args(["-c", &format!("ulimit -n {LIMIT} && exec \"$0\" \"$@\"")])
        .arg(test)
        .args(["--exact", "with_few_handles", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    let wrong = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}\n{wrong}");
    assert!(said.contains("1 passed"), "{said}");
}

fn is_lacking(error: &SessionError) -> bool {
    match error {
        SessionError::Journal(OpenError::TooManyHandles { limit }) => {
            assert_eq!(*limit, Some(LIMIT));
            true
        }
        _ => false,
    }
}

#[test]
#[ignore = "run by the test above, with few handles"]
fn with_few_handles() {
    let folder = folder();
    let store = store(&folder);
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        let session = store.create_session(SessionSpec::new()).unwrap();
        say(&session, number as u64).unwrap();
        session.park().unwrap();
        sessions.push(session);
    }
    // All of them are in use, a few at a time.
    for (number, session) in sessions.iter().enumerate() {
        assert_eq!(say(session, number as u64).unwrap(), Seq::new(3));
        session.park().unwrap();
    }
    // Others that are not parked use up what is left: typed, with the limit.
    let mut open = Vec::new();
    let error = loop {
        match store.create_session(SessionSpec::new()) {
            Ok(session) => open.push(session),
            Err(error) => break error,
        }
    };
    assert!(is_lacking(&error), "{error}");
    assert!(error.to_string().contains("2200"), "{error}");
    assert!(open.len() > 20, "{}", open.len());
    // Each last handle is taken.
    let mut spare = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        spare.push(file);
    }
    // Those that are open go on; those that are parked are refused for certain.
    say(&open[0], 1).unwrap();
    let refused = say(&sessions[0], 1).unwrap_err();
    let lacking = NotCommitted::TooManyHandles { limit: Some(LIMIT) };
    assert_eq!(
        refused,
        CommitError::NotCommitted(Refusal::Journal(lacking))
    );
    let unread = store
        .open_session(sessions[1].id(), Mode::Read)
        .unwrap_err();
    assert!(is_lacking(&unread), "{unread}");
    // When others are parked or closed it works again, without opening it again.
    drop(spare);
    for session in &open[..open.len() / 2] {
        session.park().unwrap();
    }
    assert_eq!(say(&sessions[0], 1).unwrap(), Seq::new(4));
    for session in open.iter().chain(&sessions) {
        assert_eq!(session.fault(), None);
        session.close().unwrap();
    }
    let ids: Vec<_> = sessions.iter().map(Session::id).collect();
    drop((open, sessions));
    for id in ids.into_iter().step_by(50) {
        let (session, report) = store.open_session(id, Mode::Read).unwrap();
        assert!(report.is_clean(), "{report}");
        assert!(session.last_seq() >= Seq::new(3));
    }
}
