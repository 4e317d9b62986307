//! `stepwell demo`: kills on the real disk, with a fixed seed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_stepwell")
}

/// Runs the demo; temporary directories are made below `temporary`.
fn demo(temporary: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("demo").args(args).env("TMPDIR", temporary);
    command.output().unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn what_was_acknowledged_survives_kills() {
    let folder = tempfile::tempdir().unwrap();
    let ran = demo(folder.path(), &["--seed", "7", "--kills", "6", "--json"]);
    assert!(ran.status.success(), "{ran:?}");
    let stdout = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let names = [
        "kills",
        "steps_acknowledged",
        "steps_restored",
        "lost",
        "phantom",
        "history_equal",
        "open_turns_closed",
    ];
    // Exactly these, in this order.
    let at: Vec<usize> = names
        .iter()
        .map(|name| stdout.find(&format!("\"{name}\":")).unwrap())
        .collect();
    assert!(at.is_sorted(), "{stdout}");
    let found: Value = serde_json::from_str(stdout.trim()).unwrap();
    assert_eq!(found.as_object().unwrap().len(), names.len());
    assert_eq!(found["kills"], 6);
    assert_eq!((&found["lost"], &found["phantom"]), (&0.into(), &0.into()));
    assert_eq!(found["history_equal"], true);
    let acknowledged = found["steps_acknowledged"].as_u64().unwrap();
    assert!(
        acknowledged > 0 && found["steps_restored"].as_u64().unwrap() >= acknowledged,
        "{found}"
    );
    assert!(
        is_empty(folder.path()),
        "the temporary directory is gone after success"
    );
}

#[test]
fn the_table_is_for_people_and_the_directory_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kept");
    let at = dir.to_str().unwrap();
    let ran = demo(folder.path(), &["--seed", "1", "--kills", "2", "--dir", at]);
    assert!(ran.status.success(), "{ran:?}");
    let stdout = String::from_utf8(ran.stdout).unwrap();
    let squeezed: Vec<String> = stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for expected in [
        "kills (SIGKILL) 2",
        "acknowledged, but lost 0",
        "history equal yes",
    ] {
        assert!(
            squeezed.iter().any(|line| line == expected),
            "{expected}: {stdout}"
        );
    }
    // No progress line when nobody watches.
    assert_eq!(String::from_utf8(ran.stderr).unwrap(), "");
    let store = dir.join("store");
    let run = |args: &[&str]| {
        Command::new(binary())
            .args(args)
            .arg(&store)
            .output()
            .unwrap()
    };
    let listed = String::from_utf8(run(&["sessions"]).stdout).unwrap();
    assert!(listed.contains("demo round 1"), "{listed}");
    assert!(run(&["verify"]).status.success());
    // The tools really worked.
    assert!(!is_empty(&dir.join("scratch/round-0")));
    // A second demo does not mix with the first.
    let again = demo(folder.path(), &["--kills", "1", "--dir", at]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(
        String::from_utf8(again.stderr)
            .unwrap()
            .contains("is not empty")
    );
}

#[test]
fn a_transcript_is_replayed_until_all_kills_have_happened() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kept");
    let transcript = fixture("two-turns.jsonl");
    let args = [
        "--seed",
        "3",
        "--kills",
        "5",
        "--json",
        "--dir",
        dir.to_str().unwrap(),
        "--transcript",
        transcript.to_str().unwrap(),
    ];
    let ran = demo(folder.path(), &args);
    assert!(ran.status.success(), "{ran:?}");
    let found: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(found["kills"], 5);
    let told = String::from_utf8(ran.stderr).unwrap();
    assert!(
        told.contains("of 22 lines of the transcript, 3 of other types and 1 of side"),
        "{told}"
    );
    assert!(told.contains("line 15: message dropped"), "{told}");

    // The first session holds what the transcript says, byte for byte where it must.
    let store = dir.join("store");
    let listed = Command::new(binary())
        .args(["sessions", "--json"])
        .arg(&store)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let first = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let first = first
        .into_iter()
        .find(|line| line["title"] == "demo round 1")
        .unwrap();
    let id = first["session"].as_str().unwrap();
    let shown = Command::new(binary())
        .arg("history")
        .arg(&store)
        .args([id, "--json"])
        .output()
        .unwrap();
    assert!(shown.status.success());
    let shown = String::from_utf8(shown.stdout).unwrap();
    for kept in [
        r#""input":{"command": "ls -la",  "timeout":1.50e3}"#,
        r#""signature":"EqQBCkYI/+==""#,
        "no such file",
        "There are 3 stones.",
        "Anything else?",
    ] {
        assert_eq!(shown.matches(kept).count(), 1, "{kept}: {shown}");
    }
    assert!(
        !shown.contains("toolu_3") && !shown.contains("elsewhere"),
        "{shown}"
    );
}

#[test]
fn what_cannot_be_replayed_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.jsonl");
    let ran = demo(folder.path(), &["--transcript", missing.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let told = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains("none.jsonl"), "{told}");
    assert!(is_empty(folder.path()));
    assert_eq!(
        demo(folder.path(), &["--kills", "x"]).status.code(),
        Some(2)
    );
}

/// A child that cannot work ends the demo with its own message, and what it left is kept and named.
#[test]
fn a_child_that_ends_by_itself_fails_the_demo() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kept");
    std::fs::create_dir(&dir).unwrap();
    let mut running = Command::new(binary())
        .args(["demo", "--kills", "100000", "--dir"])
        .arg(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let store = dir.join("store/STORE");
    wait_until(|| store.exists());
    std::fs::write(store, b"garbage").unwrap();
    wait_until(|| running.try_wait().unwrap().is_some());
    let ran = running.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let told = String::from_utf8(ran.stderr).unwrap();
    assert!(
        told.contains("the child ended by itself") && told.contains("is damaged"),
        "{told}"
    );
    assert!(
        told.contains(&format!(
            "kept in {}",
            dir.canonicalize().unwrap().display()
        )),
        "{told}"
    );
}

/// However the parent goes, its child goes too.
#[cfg(target_os = "linux")]
#[test]
fn no_child_outlives_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("kept");
    let mut running = Command::new(binary())
        .args(["demo", "--kills", "100000", "--dir"])
        .arg(&dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ledger = dir.join("side-channel.jsonl");
    wait_until(|| {
        std::fs::read_to_string(&ledger).is_ok_and(|text| text.matches("opening").count() > 2)
    });
    running.kill().unwrap();
    running.wait().unwrap();
    let of_this_demo = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
            .filter(|line| String::from_utf8_lossy(line).contains(dir.to_str().unwrap()))
            .count()
    };
    wait_until(|| of_this_demo() == 0);
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "it never happened"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
