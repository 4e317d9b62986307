//! `sessions`, `history`, `verify` and `dump` on a store that is sound, torn or damaged.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod sample;

use std::io::Read as _;
use std::process::{Command, Stdio};

use sample::{ID, Sample, binary};
use serde_json::json;

/// The last record of the sample: nothing vouches for it yet.
const LAST: u64 = 9;

#[test]
fn sessions_is_a_table_for_people() {
    let run = Sample::new().run(&["sessions", "{}"]);
    assert_eq!(run.status, 0, "{run:?}");
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{run:?}");
    assert!(lines[0].starts_with("SESSION  "), "{run:?}");
    let cells: Vec<&str> = lines[1]
        .split("  ")
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
        .collect();
    assert_eq!(cells[0], ID);
    assert_eq!(cells[1..3], ["active", "9"]);
    assert_eq!(*cells.last().unwrap(), "listing files");
}

#[test]
fn sessions_as_json() {
    let run = Sample::new().run(&["sessions", "{}", "--json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let [line] = &run.objects()[..] else {
        panic!("{run:?}");
    };
    assert_eq!(line["session"], ID);
    assert_eq!(line["title"], "listing files");
    assert_eq!(line["status"], "active");
    assert_eq!(line["last_seq"], LAST);
    let counts = ["turns", "steps", "open_turns", "pending_gates"].map(|key| &line[key]);
    assert_eq!(counts, [2, 3, 1, 0], "{line}");
    assert!(line["bytes"].as_u64().unwrap() > 1000, "{line}");
    assert_eq!(line["forked_from"], json!(null));
    assert_eq!(line["problem"], json!(null));
    assert!(line["created"].as_str().unwrap().ends_with('Z'), "{line}");
}

#[test]
fn sessions_are_listed_in_pages_and_by_filters() {
    let sample = Sample::new();
    let others = [
        "0197bbbb-0000-7000-8000-000000000002",
        "0197bbbb-0000-7000-8000-000000000003",
    ];
    for (other, title) in others.into_iter().zip(["Sound", "other"]) {
        sample.fill(other.parse().unwrap(), title);
    }
    // All pages, one behind the other.
    let mut seen = Vec::new();
    let mut page = sample.run(&["sessions", "{}", "--json", "--limit", "1"]);
    loop {
        assert_eq!(page.status, 0, "{page:?}");
        let lines = page.objects();
        seen.push(lines[0]["session"].as_str().unwrap().to_owned());
        let Some(next) = lines.get(1) else { break };
        assert_eq!(next["total"], 3);
        let next = next["next"].as_str().unwrap();
        let asked = ["sessions", "{}", "--json", "--limit", "1", "--after", next];
        page = sample.run(&asked);
    }
    assert_eq!(seen, [others[1], others[0], ID]);
    let table = sample.run(&["sessions", "{}", "--limit", "2"]).stdout;
    let (_, next) = table
        .rsplit_once("2 of 3 sessions; the next ones: ")
        .unwrap();
    let next: Vec<&str> = next.split_whitespace().collect();
    let rest = [&["sessions", "{}", "--limit", "2"][..], &next].concat();
    let rest = sample.run(&rest).stdout;
    assert!(rest.contains(ID) && !rest.contains("--after"), "{rest}");

    let shown = |filter: &[&str]| {
        let run = sample.run(&[&["sessions", "{}", "--json"][..], filter].concat());
        assert_eq!(run.status, 0, "{run:?}");
        run.objects().len()
    };
    assert_eq!(shown(&["--title", "sOuNd"]), 1);
    assert_eq!(shown(&["--status", "active"]), 3);
    assert_eq!(shown(&["--status", "idle", "--status", "damaged"]), 0);
    assert_eq!(shown(&["--since", "1d"]), 3);
    assert_eq!(shown(&["--since", "9999-12-31T00:00:00Z"]), 0);
    sample.flip(5);
    assert_eq!(shown(&["--status", "damaged"]), 1);
    for wrong in [
        &["--after", "somewhere"][..],
        &["--since", "yesterday"],
        &["--status", "busy"],
        &["--limit", "0"],
    ] {
        let run = sample.run(&[&["sessions", "{}"][..], wrong].concat());
        run.fails(2, wrong[1]);
    }
    // Nothing was written into the store that was only looked at.
    let index = std::path::Path::new(&sample.dir()).join("index");
    assert!(!index.exists());
}

#[test]
fn history_shows_the_first_loop_for_reading() {
    let sample = Sample::new();
    let run = sample.run(&["history", "{}", ID]);
    assert_eq!(run.status, 0, "{run:?}");
    let shown: Vec<&str> = run.stdout.lines().map(str::trim).collect();
    assert_eq!(shown[0], format!("{ID}  listing files"));
    assert_eq!(shown[1], "loop main, 4 messages");
    assert_eq!(shown[2], "other loops (--loop NAME): side");
    assert!(
        shown.contains(&r#"-> list {"path": ".", "n":1.50}  [call-1]"#),
        "{run:?}"
    );
    assert!(shown.contains(&"tool  call-1"), "{run:?}");
    assert!(shown.contains(&"\\u{1b}[2Jb.txt"), "{run:?}");
    assert!(!run.stdout.contains('\x1b'), "{run:?}");
    assert!(!run.stdout.contains("on the side"), "{run:?}");

    let run = sample.run(&["history", "{}", ID, "--loop", "side"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(run.stdout.contains("on the side"), "{run:?}");
    sample
        .run(&["history", "{}", ID, "--loop", "x"])
        .fails(1, "main, side");
}

#[test]
fn history_as_json_keeps_bytes() {
    let run = Sample::new().run(&["history", "{}", ID, "--json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let lines = run.objects();
    let roles: Vec<&str> = lines
        .iter()
        .map(|line| line["message"]["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    let seqs: Vec<u64> = lines
        .iter()
        .map(|line| line["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, [4, 5, 5, 6]);
    assert_eq!(lines[0]["step"], json!(null));
    assert!(lines[1]["step"].is_string());
    assert!(
        run.stdout.contains(r#"{"path": ".",  "n":1.50}"#),
        "{run:?}"
    );
}

#[test]
fn at_is_inclusive() {
    let sample = Sample::new();
    for (at, messages) in [("1", 0), ("3", 0), ("4", 1), ("5", 3), ("6", 4), ("99", 4)] {
        let run = sample.run(&["history", "{}", ID, "--at", at, "--json"]);
        assert_eq!(
            (run.status, run.objects().len()),
            (0, messages),
            "--at {at}: {run:?}"
        );
    }
}

#[test]
fn verify_a_sound_store() {
    let sample = Sample::new();
    let run = sample.run(&["verify", "{}"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(run.stdout.contains("1 session verified"), "{run:?}");
    let run = sample.run(&["verify", "{}", ID, "--json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let line = &run.objects()[0];
    assert_eq!(line["intact"], true);
    assert_eq!(
        (&line["events"], &line["steps"], &line["last_seq"]),
        (&json!(9), &json!(3), &json!(LAST))
    );
    assert_eq!(
        (&line["torn_tail"], &line["problems"]),
        (&json!(null), &json!([]))
    );
}

#[test]
fn dump_gives_every_record_and_the_fence() {
    let sample = Sample::new();
    let run = sample.run(&["dump", "{}", ID, "--json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let lines = run.objects();
    let kinds: Vec<&str> = lines
        .iter()
        .map(|line| line["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "fence",
            "SessionStarted",
            "LoopStarted",
            "LoopStarted",
            "TurnStarted",
            "StepDone",
            "StepDone",
            "TurnDone",
            "TurnStarted",
            "StepDone"
        ]
    );
    for (index, (line, entry)) in lines.iter().zip(sample.entries()).enumerate() {
        assert_eq!(line["lsn"], index + 1);
        assert_eq!(
            line["position"]["segment"],
            entry.position.segment.to_string()
        );
        assert_eq!(line["position"]["offset"], entry.position.offset);
        assert_eq!(
            line["proven"],
            index + 1 < lines.len(),
            "only the last is not proven: {line}"
        );
        if index == 0 {
            assert_eq!(
                (&line["frame"], &line["seq"], &line["event"]),
                (&json!("fence"), &json!(null), &json!(null))
            );
        } else {
            assert_eq!(
                (&line["frame"], &line["seq"]),
                (&json!("record"), &json!(index))
            );
            assert_eq!(line["event"]["type"], line["kind"]);
            assert_eq!(line["event"]["session_id"], ID);
        }
    }

    // For reading: the same objects, spread over lines.
    let run = sample.run(&["dump", "{}", ID]);
    assert_eq!(run.status, 0, "{run:?}");
    let stream = serde_json::Deserializer::from_str(&run.stdout).into_iter();
    let spread: Vec<serde_json::Value> = stream.collect::<Result<_, _>>().unwrap();
    assert_eq!(spread, lines);
    assert!(run.stdout.starts_with("{\n  \"seq\": null,\n"), "{run:?}");
}

#[test]
fn a_torn_tail_is_a_note_and_no_damage() {
    let sample = Sample::new();
    sample.flip(LAST);
    let run = sample.run(&["verify", "{}"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(run.stdout.contains("intact, torn tail"), "{run:?}");
    assert!(run.stdout.contains("note: "), "{run:?}");
    let run = sample.run(&["verify", "{}", "--json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let line = &run.objects()[0];
    assert_eq!(
        (&line["intact"], &line["last_seq"]),
        (&json!(true), &json!(LAST - 1))
    );
    assert!(line["torn_tail"]["bytes"].as_u64().unwrap() > 0, "{line}");
    assert_eq!(sample.run(&["history", "{}", ID]).status, 0);
    // Looking changed nothing: it is still there to be seen.
    let run = sample.run(&["verify", "{}"]);
    assert!(run.stdout.contains("intact, torn tail"), "{run:?}");
}

#[test]
fn damage_is_told_by_every_command() {
    let sample = Sample::new();
    let other = "0197bbbb-0000-7000-8000-000000000002";
    sample.fill(other.parse().unwrap(), "sound");
    sample.flip(5);

    let run = sample.run(&["sessions", "{}"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(
        run.stdout.contains("damaged") && run.stdout.contains(other),
        "{run:?}"
    );
    // The one that was active last comes first.
    let lines = sample.run(&["sessions", "{}", "--json"]).objects();
    assert_eq!((&lines[0]["session"], lines.len()), (&json!(other), 2));
    assert_eq!(
        (&lines[0]["status"], &lines[1]["status"]),
        (&json!("active"), &json!("damaged"))
    );
    assert!(
        lines[1]["problem"].as_str().unwrap().contains("row 9"),
        "{lines:?}"
    );

    let run = sample.run(&["verify", "{}"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stdout.contains("DAMAGED"), "{run:?}");
    assert!(
        run.stdout.contains("1 of 2 sessions are damaged"),
        "{run:?}"
    );
    let repair = format!(
        "stepwell repair {} SESSION --to NEWDIR",
        sample.dir().display()
    );
    assert!(run.stdout.contains(&repair), "{run:?}");
    let listed = sample.run(&["sessions", "{}"]);
    assert!(listed.stdout.contains(&repair), "{listed:?}");
    let run = sample.run(&["verify", "{}", "--json"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert_eq!(run.objects()[0]["intact"], false);
    assert_eq!(run.objects()[1]["intact"], true);
    assert_eq!(sample.run(&["verify", "{}", other]).status, 0);

    // What is intact on both sides of the gap is shown, and the gap is named.
    let run = sample.run(&["history", "{}", ID]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stdout.contains("list the files"), "{run:?}");
    assert!(
        run.stdout.contains("GAP: ") && run.stdout.contains("offset"),
        "{run:?}"
    );
    assert!(run.stdout.contains("Two files."), "{run:?}");
    assert!(!run.stdout.contains("Looking."), "{run:?}");
    let run = sample.run(&["history", "{}", ID, "--json"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert_eq!(
        run.objects()
            .iter()
            .filter(|line| line.get("gap").is_some())
            .count(),
        1,
        "{run:?}"
    );

    let run = sample.run(&["dump", "{}", ID, "--json"]);
    assert_eq!(run.status, 1, "{run:?}");
    let lines = run.objects();
    let read = lines
        .iter()
        .filter(|line| line.get("lsn").is_some())
        .count();
    let unread = lines
        .iter()
        .filter(|line| line["kind"] == "unreadable")
        .count();
    assert_eq!(read, 9, "{run:?}");
    assert!(unread >= 1, "{run:?}");
}

#[test]
fn a_lost_segment_is_named() {
    let sample = Sample::new();
    let entries = sample.entries();
    let segment = entries[0].position.segment.to_string();
    std::fs::remove_file(sample.store.session_dir(sample.session).join(segment)).unwrap();
    for command in ["history", "verify", "dump"] {
        let run = sample.run(&[command, "{}", ID]);
        assert_eq!(run.status, 1, "{command}: {run:?}");
        assert!(run.stdout.contains("absent"), "{command}: {run:?}");
    }
    let run = sample.run(&["sessions", "{}"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert!(run.stdout.contains("damaged"), "{run:?}");
}

#[test]
fn a_session_is_found_by_the_beginning_of_its_id() {
    let sample = Sample::new();
    let all = sample.run(&["history", "{}", ID, "--json"]).stdout;
    for given in ["0197", "0197AAAA-0000", "0"] {
        let run = sample.run(&["history", "{}", given, "--json"]);
        assert_eq!((run.status, &run.stdout), (0, &all), "{given}");
    }
    sample.fill("0197aabb-0000-7000-8000-000000000002".parse().unwrap(), "x");
    assert_eq!(sample.run(&["history", "{}", "0197aaa"]).status, 0);
    for command in ["history", "verify", "dump"] {
        let run = sample.run(&[command, "{}", "0197aa"]);
        run.fails(1, "ambiguous");
        assert!(run.stderr.contains(ID), "{run:?}");
        sample
            .run(&[command, "{}", "ffff"])
            .fails(1, "no session begins with 'ffff'");
        let absent = ID.replace('a', "f");
        sample
            .run(&[command, "{}", &absent])
            .fails(1, "list them with");
    }
}

#[test]
fn wrong_usage_is_status_2_and_one_line() {
    let sample = Sample::new();
    sample.run(&[]).fails(2, "--help");
    sample.run(&["sing"]).fails(2, "sing");
    sample.run(&["history", "{}"]).fails(2, "SESSION");
    sample
        .run(&["history", "{}", ID, "--at", "x"])
        .fails(2, "--at");
    sample
        .run(&["history", "{}", ID, "--at", "0"])
        .fails(2, "--at");
    sample.run(&["sessions", "{}", "--loud"]).fails(2, "--loud");
    for args in [&["--help"][..], &["--version"], &["dump", "--help"]] {
        let run = sample.run(args);
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{run:?}");
        assert!(run.stdout.contains("stepwell"), "{run:?}");
    }
}

#[test]
fn a_directory_that_is_no_store_is_told_and_left_alone() {
    let sample = Sample::new();
    let empty = tempfile::tempdir().unwrap();
    let at = empty.path().to_str().unwrap();
    for args in [
        &["sessions", at][..],
        &["verify", at],
        &["history", at, ID],
        &["dump", at, ID],
    ] {
        sample.run(args).fails(1, "there is no store at");
    }
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
    std::fs::write(sample.dir().join("STORE"), b"garbage").unwrap();
    sample.run(&["sessions", "{}"]).fails(1, "damaged");
    std::fs::remove_file(sample.dir().join("STORE")).unwrap();
    for args in [
        &["sessions", "{}"][..],
        &["verify", "{}"],
        &["history", "{}", ID],
        &["delete", "{}", ID, "--yes"],
    ] {
        sample.run(args).fails(1, "STORE is missing");
    }
}

#[test]
fn what_was_meant_otherwise_is_told() {
    let sample = Sample::new();
    let late = sample.run(&["history", "{}", ID, "--at", "9999"]);
    assert_eq!(late.status, 0, "{late:?}");
    let note = "stepwell: note: the session ends at 9, before 9999\n";
    assert_eq!(late.stderr, note);
    assert_eq!(sample.run(&["history", "{}", ID, "--at", "9"]).stderr, "");
    sample
        .run(&["history", "{}", ID, "--wrong"])
        .fails(2, "see 'stepwell history --help'");
    sample.run(&["wrong"]).fails(2, "see 'stepwell --help'");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let sample = Sample::new();
    let session = "0197cccc-0000-7000-8000-000000000003";
    sample.fill(session.parse().unwrap(), "x");
    for args in [
        &["dump"][..],
        &["dump", "--json"],
        &["history"],
        &["history", "--json"],
        &["verify"],
        &["sessions"],
    ] {
        let mut command = Command::new(binary());
        command.arg(args[0]).arg(sample.dir());
        if matches!(args[0], "dump" | "history") {
            command.arg(session);
        }
        command
            .args(&args[1..])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), stderr.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

/// Bodies that stand in files of their own are shown where the event is, and named where only the record
/// is; a lost one is named and hides nothing.
#[test]
fn bodies_in_files_are_shown_and_lost_ones_named() {
    let sample = Sample::new();
    let options = stepwell::store::StoreOptions {
        blob_threshold: 1000,
        ..Default::default()
    };
    let store = stepwell::Store::open_with(sample.dir(), options).unwrap();
    let (session, _) = store
        .open_session(sample.session, stepwell::store::Mode::Write)
        .unwrap();
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let long = "what the tool found ".repeat(100);
    let message = stepwell::content::UserMessage::text(&long);
    let turn = main.begin_turn(message).unwrap();
    turn.finish().unwrap();
    let seq = session.last_seq().get() - 1;
    drop(main);
    session.close().unwrap();
    let outside = |run: &str| -> Vec<serde_json::Value> {
        let lines = run.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines = lines.filter(|line: &serde_json::Value| line.get("outside").is_some());
        lines.collect()
    };
    let run = sample.run(&["dump", "{}", ID, "--json"]);
    assert_eq!(run.status, 0, "{run:?}");
    let [record] = &outside(&run.stdout)[..] else {
        panic!("{run:?}");
    };
    assert_eq!(record["seq"], seq);
    assert!(record["event"].to_string().contains(long.trim_end()));
    let bytes = record["outside"].as_u64().unwrap();
    assert!(bytes > 2000);
    let segment = record["position"]["segment"].as_str().unwrap();
    let file = store.session_dir(sample.session).join(segment);
    let file = file.to_str().unwrap();
    let run = sample.run(&["inspect", file, "--json"]);
    let [frame] = &outside(&run.stdout)[..] else {
        panic!("{run:?}");
    };
    assert_eq!(
        (frame["seq"].as_u64(), &frame["outside"]),
        (Some(seq), &record["outside"])
    );
    assert!(frame.get("payload").is_none(), "it was not asked for");
    let run = sample.run(&["inspect", file]);
    let said = format!("outside: {bytes} bytes of body in a file");
    assert_eq!(run.stdout.matches(&said).count(), 1, "{run:?}");
    let run = sample.run(&["history", "{}", ID]);
    assert!(run.stdout.contains(long.trim_end()));

    let blobs = store.session_dir(sample.session).join("blobs");
    let blob = std::fs::read_dir(blobs).unwrap().next().unwrap().unwrap();
    std::fs::remove_file(blob.path()).unwrap();
    let name = blob.file_name().into_string().unwrap();
    for command in ["verify", "dump"] {
        let run = sample.run(&[command, "{}", ID]);
        assert_eq!(run.status, 1, "{run:?}");
        assert!(run.stdout.contains(&name), "{run:?}");
        assert!(run.stdout.contains("there is no such file"), "{run:?}");
    }
    let run = sample.run(&["sessions", "{}"]);
    assert_eq!(run.status, 0, "{run:?}");
    let new = sample.dir().parent().unwrap().join("new");
    let run = sample.run(&["repair", "{}", ID, "--to", new.to_str().unwrap()]);
    assert_eq!(run.status, 1, "{run:?}");
    let said = format!("the body of record {seq} is not whole");
    assert!(
        run.stdout.contains(&said) && run.stdout.contains(&name),
        "{run:?}"
    );
}
