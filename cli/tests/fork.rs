//! `fork` and `rewind` at the command line.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub,
    dead_code
)]

mod sample;

use sample::{ID, Sample};
use stepwell::store::Mode;

/// A sample that is settled and closed, with the sequence of its first step.
fn settled() -> (Sample, u64) {
    let sample = Sample::new();
    let opened = sample.store.open_session(sample.session, Mode::Write);
    opened.unwrap().0.close().unwrap();
    let lines = sample.run(&["history", "{}", ID, "--json"]).objects();
    let step = lines.iter().find(|line| !line["step"].is_null()).unwrap();
    let seq = step["seq"].as_u64().unwrap();
    (sample, seq)
}

#[test]
fn a_fork_is_a_session_of_its_own() {
    let (sample, step) = settled();
    let at = step.to_string();
    let forked = sample.run(&[
        "fork",
        "{}",
        &ID[..8],
        "--at",
        &at,
        "--title",
        "other",
        "--json",
    ]);
    assert_eq!(forked.status, 0, "{forked:?}");
    let line = &forked.objects()[0];
    assert_eq!((&line["parent"], &line["at"]), (&ID.into(), &step.into()));
    let child = line["session"].as_str().unwrap().to_owned();
    let of_parent = sample.run(&["history", "{}", ID, "--at", &at, "--json"]);
    let of_child = sample.run(&["history", "{}", &child, "--json"]);
    assert_eq!(of_child.stdout, of_parent.stdout);
    assert_ne!(
        sample.run(&["history", "{}", ID, "--json"]).stdout,
        of_child.stdout
    );
    assert_eq!(sample.run(&["verify", "{}"]).status, 0);
    assert_eq!(sample.run(&["sessions", "{}", "--json"]).objects().len(), 2);
    // Its files can be looked into, those of its parent too.
    let files = std::fs::read_dir(sample.store.session_dir(child.parse().unwrap())).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    let is_of_log = |name: &str| {
        ["seg-", "foot-", "MANIFEST-"]
            .iter()
            .any(|kind| name.starts_with(kind))
    };
    let of_log = files
        .iter()
        .filter(|file| is_of_log(file.file_name().unwrap().to_str().unwrap()));
    let mut looked = 0;
    for file in of_log {
        let inspected = sample.run(&["inspect", file.to_str().unwrap(), "--json"]);
        assert_eq!(inspected.status, 0, "{inspected:?}");
        looked += 1;
    }
    assert!(looked >= 3, "{files:?}");
    // To the end, and told to a person.
    let told = sample.run(&["fork", "{}", ID]);
    assert!(
        told.stdout
            .contains(&format!("is a fork of {ID} up to record")),
        "{told:?}"
    );
    sample.run(&["delete", "{}", ID, "--yes"]);
    assert_eq!(
        sample.run(&["history", "{}", &child, "--json"]).stdout,
        of_child.stdout
    );
    sample
        .run(&["fork", "{}", &child, "--at", "9999"])
        .fails(1, "is not there");
}

#[test]
fn a_loop_is_rewound_and_what_it_left_is_still_shown() {
    let (sample, step) = settled();
    let to = step.to_string();
    let before = sample.run(&["history", "{}", ID, "--at", &to, "--json"]);
    let all = sample.run(&["history", "{}", ID, "--json"]);
    let last = all.objects().last().unwrap()["seq"].to_string();
    let args = [
        "rewind",
        "{}",
        ID,
        "--to",
        &to,
        "--reason",
        "wrong way",
        "--json",
    ];
    let rewound = sample.run(&args);
    assert_eq!(rewound.status, 0, "{rewound:?}");
    assert_eq!(rewound.objects()[0]["to"], step);
    assert_eq!(
        sample.run(&["history", "{}", ID, "--json"]).stdout,
        before.stdout
    );
    assert_eq!(
        sample
            .run(&["history", "{}", ID, "--at", &last, "--json"])
            .stdout,
        all.stdout
    );
    sample
        .run(&["rewind", "{}", ID, "--to", "9999"])
        .fails(1, "cannot be rewound");
    sample
        .run(&["rewind", "{}", ID, "--to", "1", "--loop", "none"])
        .fails(1, "has no loop");
    let told = sample.run(&["rewind", "{}", ID, "--to", "0", "--loop", "side"]);
    assert!(
        told.stdout.contains("the loop side goes on from record 0"),
        "{told:?}"
    );
}
