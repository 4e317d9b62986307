//! `stepwell bench`: the shape of what it says. No time is judged: this machine may be busy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepwell"));
    command.arg("bench").arg(dir).args(args).output().unwrap()
}

fn stdout(ran: &Output) -> String {
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8(ran.stdout.clone()).unwrap()
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

/// The last line; its first fields are exactly these, in this order, and all numbers are sound.
fn last_line(stdout: &str, names: &[&str]) -> Value {
    let line = stdout.lines().last().unwrap();
    let first = format!("{{\"{}\":", names[0]);
    assert!(line.starts_with(&first), "{line}");
    let places = names.iter().map(|name| format!("\"{name}\":"));
    let at: Vec<usize> = places.map(|place| line.find(&place).unwrap()).collect();
    assert!(at.is_sorted(), "{line}");
    assert_eq!(
        line[..at[names.len() - 1]].matches(':').count(),
        names.len() - 1
    );
    let found: Value = serde_json::from_str(line).unwrap();
    for (name, value) in found.as_object().unwrap() {
        assert!(value.as_f64().is_some_and(f64::is_finite), "{name}: {line}");
    }
    found
}

const NAMES: [&str; 9] = [
    "writers",
    "size",
    "appends_per_s",
    "limit_per_s",
    "ratio",
    "p50_us",
    "p99_us",
    "p999_us",
    "syncs_per_append",
];

#[test]
fn one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let ran = bench(
        folder.path(),
        &["--seconds", "0.2", "--size", "700", "--json"],
    );
    let stdout = stdout(&ran);
    let found = last_line(&stdout, &NAMES);
    assert_eq!(found["writers"], 1);
    assert_eq!(found["size"], 700);
    assert!(found["growing_per_s"].as_f64().unwrap() > 0.0);
    assert!(found["ratio"].as_f64().unwrap() > 0.0);
    // Nobody to share a sync with.
    assert!(found["syncs_per_append"].as_f64().unwrap() >= 1.0);
    // A line for each round, and the last one.
    let rounds = found["rounds"].as_u64().unwrap();
    assert!(rounds >= 5);
    assert_eq!(stdout.lines().count() as u64, rounds + 1);
    assert!(is_empty(folder.path()));
}

#[test]
fn many_writers() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--seconds", "0.2", "--writers", "4", "--json"];
    let found = last_line(&stdout(&bench(folder.path(), &args)), &NAMES);
    assert_eq!(found["writers"], 4);
    assert_eq!(found["size"], 4096);
    assert!(found["growing_per_s"].as_f64().unwrap() > 0.0);
    assert!(is_empty(folder.path()));
}

#[test]
fn for_a_person() {
    let folder = tempfile::tempdir().unwrap();
    let shown = stdout(&bench(folder.path(), &["--seconds", "0.1"]));
    assert!(
        shown.starts_with("1 writer, 4096 B, medians of "),
        "{shown}"
    );
    for row in [
        "overwrite  ",
        "stepwell  ",
        "growing  ",
        "syncs per append  ",
    ] {
        assert!(shown.lines().any(|line| line.starts_with(row)), "{shown}");
    }
}

#[test]
fn replay_open_and_result() {
    let folder = tempfile::tempdir().unwrap();
    let replayed = stdout(&bench(folder.path(), &["--replay", "2", "--json"]));
    let names = ["replay_mib", "mib_per_s", "limit_mib_per_s", "ratio"];
    let found = last_line(&replayed, &names);
    assert_eq!(found["records"], 512);
    let opened = stdout(&bench(folder.path(), &["--open", "2", "--json"]));
    let names = ["open_mib", "clean_ms", "read_only_ms", "killed_ms"];
    assert_eq!(last_line(&opened, &names)["open_mib"], 2);
    let committed = stdout(&bench(folder.path(), &["--result", "8", "--json"]));
    let names = ["result_kib", "blob_ms", "inline_ms", "ratio"];
    assert_eq!(last_line(&committed, &names)["result_kib"], 8);
    assert!(is_empty(folder.path()));
}

#[test]
fn what_cannot_be_measured_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let absent = bench(&folder.path().join("absent"), &[]);
    assert_eq!(absent.status.code(), Some(1), "{absent:?}");
    let said = String::from_utf8(absent.stderr).unwrap();
    assert!(said.contains("give a directory on the disk"), "{said}");
    for wrong in [
        ["--writers", "0"],
        ["--size", "0"],
        ["--seconds", "nan"],
        ["--replay", "0"],
        ["--result", "5000"],
    ] {
        let ran = bench(folder.path(), &wrong);
        assert_eq!(ran.status.code(), Some(2), "{wrong:?} {ran:?}");
    }
    let both = bench(folder.path(), &["--replay", "1", "--writers", "2"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    assert!(is_empty(folder.path()));
}
