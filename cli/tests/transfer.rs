//! `export`, `import`, `backup`, `delete` and `prune` at the command line.
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

use sample::{ID, Run, Sample, binary};
use stepwell::Store;
use stepwell::identity::SessionId;
use stepwell::store::{Mode, SessionChange};

fn run(args: &[&str]) -> Run {
    Run::of(
        std::process::Command::new(binary())
            .args(args)
            .output()
            .unwrap(),
    )
}

fn at(sample: &Sample, name: &str) -> String {
    let dir = sample.dir();
    dir.parent()
        .unwrap()
        .join(name)
        .to_str()
        .unwrap()
        .to_owned()
}

#[test]
fn an_export_is_imported_elsewhere_and_under_a_new_id() {
    let sample = Sample::new();
    let (file, other) = (at(&sample, "lines.jsonl"), at(&sample, "other"));
    let to_stdout = sample.run(&["export", "{}", &ID[..8]]);
    assert_eq!(to_stdout.status, 0, "{to_stdout:?}");
    // It was killed: its last record is not proven, and that is said beside the lines.
    assert!(to_stdout.stderr.contains("not proven"), "{to_stdout:?}");
    let written = sample.run(&["export", "{}", ID, "--out", &file, "--json"]);
    assert_eq!(written.status, 0, "{written:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), to_stdout.stdout);
    let lines = to_stdout.objects();
    assert_eq!(written.objects()[0]["events"], lines.len() as u64);
    assert_eq!(lines[0]["type"], "SessionStarted");
    sample
        .run(&["export", "{}", ID, "--out", &file])
        .fails(1, "exists");

    let imported = run(&["import", &file, "--store", &other]);
    assert_eq!(imported.status, 0, "{imported:?}");
    assert!(
        imported
            .stdout
            .contains("none of them has an idempotency key"),
        "{imported:?}"
    );
    let (one, two) = (
        sample.run(&["history", "{}", ID, "--json"]),
        run(&["history", &other, ID, "--json"]),
    );
    assert_eq!(one.stdout, two.stdout);
    run(&["import", &file, "--store", &other]).fails(1, "exists already");
    let fresh = run(&["import", &file, "--store", &other, "--new-id", "--json"]);
    assert_ne!(fresh.objects()[0]["session"], ID);
    assert_eq!(run(&["verify", &other]).status, 0);
    assert_eq!(run(&["sessions", &other, "--json"]).objects().len(), 2);

    std::fs::write(&file, format!("{}{{\"type\":\n", to_stdout.stdout)).unwrap();
    let third = at(&sample, "third");
    run(&["import", &file, "--store", &third]).fails(1, &format!("line {}", lines.len() + 1));
    assert_eq!(run(&["sessions", &third, "--json"]).objects().len(), 0);
}

#[test]
fn an_export_of_a_damaged_session_fails_and_leaves_no_file_of_the_name() {
    let sample = Sample::new();
    let file = at(&sample, "lines.jsonl");
    sample.flip(5);
    let failed = sample.run(&["export", "{}", ID, "--out", &file]);
    failed.fails(1, "ends behind record 4");
    assert!(!std::path::Path::new(&file).exists());
    let part = std::fs::read_to_string(format!("{file}.part")).unwrap();
    assert_eq!(part.lines().count(), 4);
    let failed = sample.run(&["export", "{}", ID]);
    failed.fails(1, "ends behind record 4");
    assert_eq!(failed.objects().len(), 4);
}

#[test]
fn a_backup_verifies_and_says_what_is_not_in_it() {
    let sample = Sample::new();
    let copy = at(&sample, "copy");
    let other: SessionId = "0197bbbb-0000-7000-8000-000000000002".parse().unwrap();
    sample.fill(other, "damaged");
    // Opening settles what is not proven.
    sample
        .store
        .open_session(sample.session, Mode::Write)
        .unwrap()
        .0
        .close()
        .unwrap();
    let clean = sample.run(&["backup", "{}", &copy, "--json"]);
    assert_eq!(clean.status, 0, "{clean:?}");
    assert_eq!(clean.objects()[0]["complete"], true);
    assert_eq!(clean.objects()[0]["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(run(&["verify", &copy]).status, 0);
    assert_eq!(
        run(&["history", &copy, ID, "--json"]).stdout,
        sample.run(&["history", "{}", ID, "--json"]).stdout
    );
    sample.run(&["backup", "{}", &copy]).fails(1, "not empty");

    sample.flip(4);
    let second = at(&sample, "second");
    let lossy = sample.run(&["backup", "{}", &second]);
    assert_eq!(lossy.status, 1, "{lossy:?}");
    assert!(
        lossy.stdout.contains(&format!("NOT in it: {ID}: ")),
        "{lossy:?}"
    );
    assert!(lossy.stdout.contains("stepwell repair"), "{lossy:?}");
    let listed = run(&["sessions", &second, "--json"]).objects();
    assert_eq!(
        (listed.len(), listed[0]["title"].as_str()),
        (1, Some("damaged"))
    );

    std::fs::create_dir_all(format!("{}/backup-unfinished", at(&sample, "cut"))).unwrap();
    run(&["sessions", &at(&sample, "cut")]).fails(1, "cut off");
}

#[test]
fn deleting_takes_the_whole_id_and_a_yes() {
    let sample = Sample::new();
    sample
        .run(&["delete", "{}", &ID[..8], "--yes"])
        .fails(1, "whole session id");
    sample.run(&["delete", "{}", ID]).fails(1, "--yes");
    assert_eq!(sample.run(&["sessions", "{}", "--json"]).objects().len(), 1);
    let open = sample
        .store
        .open_session(sample.session, Mode::Write)
        .unwrap()
        .0;
    sample
        .run(&["delete", "{}", ID, "--yes"])
        .fails(1, "is open for writing");
    let title = SessionChange::title("new").label("team", "core");
    open.change(title).unwrap();
    let listed = sample.run(&["sessions", "{}", "--json"]).objects();
    assert_eq!(
        (
            listed[0]["title"].as_str(),
            listed[0]["labels"]["team"].as_str()
        ),
        (Some("new"), Some("core"))
    );
    open.close().unwrap();
    let deleted = sample.run(&["delete", "{}", ID, "--yes", "--json"]);
    assert_eq!(deleted.status, 0, "{deleted:?}");
    assert!(deleted.objects()[0]["bytes"].as_u64().unwrap() > 16384);
    assert_eq!(sample.run(&["sessions", "{}", "--json"]).objects().len(), 0);
    sample
        .run(&["delete", "{}", ID, "--yes"])
        .fails(1, "was deleted");
    let nowhere = at(&sample, "nowhere");
    run(&["delete", &nowhere, ID, "--yes"]).fails(1, "there is no store");
    assert!(!std::path::Path::new(&nowhere).exists());
}

#[test]
fn prune_does_what_it_is_asked_for_and_nothing_else() {
    let sample = Sample::new();
    let other: SessionId = "0197bbbb-0000-7000-8000-000000000002".parse().unwrap();
    sample.fill(other, "younger");
    assert_eq!(sample.run(&["prune", "{}"]).status, 2);
    assert_eq!(sample.run(&["prune", "{}", "--older-than", "1y"]).status, 2);
    let none = sample.run(&["prune", "{}", "--older-than", "30d", "--json"]);
    assert_eq!((none.status, none.objects().len()), (0, 0), "{none:?}");
    let dry = sample.run(&["prune", "{}", "--keep-last", "1", "--dry-run", "--json"]);
    assert_eq!(dry.objects()[0]["what"], "delete");
    assert_eq!(dry.objects()[0]["session"], ID);
    assert_eq!(sample.store.sessions().unwrap().len(), 2);
    let held = sample.store.open_session(other, Mode::Write).unwrap().0;
    let done = sample.run(&["prune", "{}", "--max-bytes", "1", "--json"]);
    let lines = done.objects();
    assert_eq!(done.status, 0, "{done:?}");
    assert_eq!(
        (lines[0]["what"].as_str(), lines[0]["session"].as_str()),
        (Some("deleted"), Some(ID))
    );
    assert_eq!(
        (lines[1]["what"].as_str(), lines[1]["reason"].as_str()),
        (Some("passed over"), Some("it is open"))
    );
    drop(held);
    let left: Vec<_> = Store::open(sample.dir()).unwrap().sessions().unwrap();
    assert_eq!((left.len(), left[0].id), (1, other));
}

#[test]
fn prune_says_that_a_lock_could_not_be_taken_and_fails() {
    let sample = Sample::new();
    let lock = sample.store.session_dir(sample.session).join("LOCK");
    std::fs::remove_file(&lock).unwrap();
    // No lock can be taken here, whoever asks.
    std::fs::create_dir(&lock).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let pruned = sample.run(&[&["prune", "{}", "--max-bytes", "1"], more].concat());
        assert_eq!(pruned.status, 1, "{pruned:?}");
        assert!(
            pruned
                .stdout
                .contains("passed over (its lock could not be taken: "),
            "{pruned:?}"
        );
    }
    assert_eq!(sample.store.sessions().unwrap().len(), 1);
}
