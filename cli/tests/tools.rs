//! `inspect`, `repair` and `verify` after a repair, on a store that is sound or damaged.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod sample;

use std::path::{Path, PathBuf};

use sample::{ID, Run, Sample, binary};
use serde_json::json;
use stepwell::journal::FrameKind;

fn run(args: &[&str]) -> Run {
    Run::of(
        std::process::Command::new(binary())
            .args(args)
            .output()
            .unwrap(),
    )
}

fn file_of(sample: &Sample, prefix: &str) -> PathBuf {
    let dir = sample.store.session_dir(sample.session);
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(prefix)
        })
        .collect();
    found.sort();
    found.remove(0)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The log id is a secret: no spelling of it may be shown (W5).
fn hides_the_log_id(run: &Run, segment: &Path) {
    let id = std::fs::read(segment).unwrap()[16..32].to_vec();
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let shown = format!("{}{}", run.stdout, run.stderr)
        .to_lowercase()
        .replace(['-', ' ', ','], "");
    assert!(!shown.contains(&hex), "{run:?}");
    let decimal: Vec<String> = id.iter().map(|byte| byte.to_string()).collect();
    assert!(!shown.contains(&decimal.join("")), "{run:?}");
}

#[test]
fn inspect_shows_a_segment() {
    let sample = Sample::new();
    let segment = file_of(&sample, "seg-");
    let shown = run(&["inspect", text(&segment)]);
    assert_eq!(shown.status, 0, "{shown:?}");
    let has = |text: &str| assert!(shown.stdout.contains(text), "{text}: {shown:?}");
    has("segment seg-0000000001-000000-0000000001, 65536 bytes for frames");
    has("witness slot: never written");
    has("seal: never written");
    has("16384  Lsn 1 fence, 32 bytes, batch 1 of 2, watermark 0, epoch 1");
    has(&format!("Lsn 2 record 1 of session {ID}"));
    has(" zeros");
    assert!(!shown.stdout.contains("Looking"), "{shown:?}");
    hides_the_log_id(&shown, &segment);

    let json = run(&["inspect", text(&segment), "--json"]);
    let objects = json.objects();
    let entries = sample.entries();
    let frames: Vec<_> = objects
        .iter()
        .filter(|part| part["part"] == "frame")
        .collect();
    assert_eq!(frames.len(), entries.len());
    for (frame, entry) in frames.iter().zip(&entries) {
        assert_eq!(frame["offset"], entry.position.offset);
        assert_eq!(frame["lsn"], entry.lsn.get());
        assert_eq!(frame["seq"], entry.seq.get());
        assert_eq!(frame["epoch"], entry.epoch);
        assert_eq!(frame["payload_len"], entry.payload.len());
        assert_eq!(frame["payload_intact"], true);
        assert_eq!(frame["follows"], true);
        assert_eq!(frame.get("payload"), None);
        let record = entry.kind == FrameKind::Record;
        assert_eq!(frame["kind"], if record { "record" } else { "fence" });
    }
    let parts: Vec<&str> = objects
        .iter()
        .map(|part| part["part"].as_str().unwrap())
        .collect();
    assert_eq!(parts[..4], ["header", "blank", "blank", "blank"]);
    assert_eq!(objects.last().unwrap()["zeros"], true);
    hides_the_log_id(&json, &segment);

    let payload = run(&["inspect", text(&segment), "--payload"]);
    assert!(payload.stdout.contains("Looking"), "{payload:?}");
    assert!(!payload.stdout.contains('\x1b'), "{payload:?}");
    let short = run(&["inspect", text(&segment), "--payload", "2", "--json"]);
    for part in short.objects() {
        assert!(
            part["payload"].as_str().is_none_or(|hex| hex.len() == 4),
            "{part}"
        );
    }
}

#[test]
fn inspect_shows_a_manifest_and_refuses_other_files() {
    let sample = Sample::new();
    let (manifest, segment) = (file_of(&sample, "MANIFEST-"), file_of(&sample, "seg-"));
    let shown = run(&["inspect", text(&manifest)]);
    assert_eq!(shown.status, 0, "{shown:?}");
    assert!(
        shown.stdout.contains(&format!("epoch 1, session {ID}")),
        "{shown:?}"
    );
    assert!(
        shown
            .stdout
            .contains("seg-0000000001-000000-0000000001  no end is named"),
        "{shown:?}"
    );
    hides_the_log_id(&shown, &segment);
    let json = run(&["inspect", text(&manifest), "--json"]);
    assert_eq!(json.objects()[0]["owner"], ID);
    hides_the_log_id(&json, &segment);
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let damaged = run(&["inspect", text(&manifest)]);
    assert!(damaged.stdout.contains("manifest: DAMAGED"), "{damaged:?}");
    let store = sample.dir().join("STORE");
    run(&["inspect", text(&store)]).fails(1, "no manifest, segment or footer");
    run(&["inspect", text(&store.join("x"))]).fails(1, "Open of");
}

#[test]
fn inspect_works_on_damaged_segments() {
    let sample = Sample::new();
    let (manifest, segment) = (file_of(&sample, "MANIFEST-"), file_of(&sample, "seg-"));
    let entries = sample.entries();
    let whole = std::fs::read(&segment).unwrap();
    let at = |index: usize| usize::try_from(entries[index].position.offset).unwrap();
    let mut bytes = whole.clone();
    bytes[at(2) + 90] ^= 1;
    bytes[at(4) + 20] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    let shown = run(&["inspect", text(&segment), "--json"]);
    let objects = shown.objects();
    let frame = |lsn: u64| objects.iter().find(|part| part["lsn"] == lsn);
    assert_eq!(frame(3).unwrap()["payload_intact"], false);
    assert_eq!(frame(5), None);
    assert_eq!(frame(6).unwrap()["follows"], false);
    let hole = objects
        .iter()
        .find(|part| part["part"] == "unknown")
        .unwrap();
    assert_eq!(hole["offset"], at(4));
    assert_eq!(hole["bytes"], at(5) - at(4));
    assert_eq!(hole["zeros"], false);
    // Without its header the log id is not known: the manifest gives it.
    let mut bytes = whole.clone();
    bytes[100] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    let refused = run(&["inspect", text(&segment)]);
    refused.fails(1, "--manifest FILE");
    assert!(
        refused.stdout.contains("static header: DAMAGED"),
        "{refused:?}"
    );
    let shown = run(&[
        "inspect",
        text(&segment),
        "--manifest",
        text(&manifest),
        "--json",
    ]);
    let frames = shown
        .objects()
        .iter()
        .filter(|part| part["part"] == "frame")
        .count();
    assert_eq!(frames, entries.len());
    run(&["inspect", text(&segment), "--manifest", text(&segment)]).fails(1, "no manifest");
}

fn new_store(sample: &Sample) -> String {
    let path = sample.dir().with_file_name("new");
    text(&path).to_owned()
}

#[test]
fn repair_of_a_sound_session_gives_a_store_to_use() {
    let sample = Sample::new();
    let new = new_store(&sample);
    let done = sample.run(&["repair", "{}", ID, "--to", &new]);
    assert_eq!(done.status, 0, "{done:?}");
    assert!(done.stdout.contains("9 records are intact"), "{done:?}");
    assert_eq!(done.stderr, "");
    // Without the ages of messages, which change while the test runs.
    let old = sample.run(&["history", "{}", ID, "--json"]);
    let history = run(&["history", &new, ID, "--json"]);
    assert_eq!((history.status, &history.stdout), (0, &old.stdout));
    assert_eq!(run(&["verify", &new]).status, 0);
    sample
        .run(&["repair", "{}", ID, "--to", &new])
        .fails(1, "not empty");
}

#[test]
fn repair_of_a_damaged_session_asks_first_and_names_what_is_lost() {
    let sample = Sample::new();
    sample.flip(5);
    let new = new_store(&sample);
    let refused = sample.run(&["repair", "{}", ID, "--to", &new]);
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stdout.contains("record 5: lost"), "{refused:?}");
    assert!(
        refused.stdout.contains("Nothing was written"),
        "{refused:?}"
    );
    assert!(!Path::new(&new).exists());
    let json = sample.run(&["repair", "{}", ID, "--to", &new, "--json"]);
    assert_eq!(
        (json.status, &json.objects()[0]["store"]),
        (1, &json!(null))
    );

    let done = sample.run(&["repair", "{}", ID, "--to", &new, "--accept-loss", "--json"]);
    assert_eq!(done.status, 0, "{done:?}");
    let report = &done.objects()[0];
    assert_eq!(
        (&report["records"], &report["last_seq"]),
        (&json!(8), &json!(9))
    );
    assert_eq!(report["lost"][0]["first_seq"], 5);
    // verify names the gap, and exits with 0.
    let verified = run(&["verify", &new]);
    assert_eq!(verified.status, 0, "{verified:?}");
    assert!(
        verified.stdout.contains("intact, with gaps"),
        "{verified:?}"
    );
    assert!(verified.stdout.contains("record 5: lost"), "{verified:?}");
    let verified = run(&["verify", &new, "--json"]);
    assert_eq!(verified.objects()[0]["gaps"][0]["last_seq"], 5);
    // The records on both sides of it are readable, and both commands say that there is one.
    let history = run(&["history", &new, ID]);
    assert!(history.stdout.contains("list the files"), "{history:?}");
    let told = format!("{}{}", history.stdout, history.stderr);
    assert!(told.contains("Lost"), "{history:?}");
    let dump = run(&["dump", &new, ID, "--json"]);
    let seqs: Vec<u64> = dump
        .objects()
        .iter()
        .filter_map(|line| line["seq"].as_u64())
        .collect();
    assert_eq!(seqs, [1, 2, 3, 4, 6, 7, 8, 9]);
    assert!(
        dump.stdout
            .contains("nothing is left of the record with Lsn"),
        "{dump:?}"
    );
    assert_eq!(run(&["sessions", &new]).status, 0);
    let forked = run(&["fork", &new, ID, "--at", "4", "--json"]);
    assert_eq!(forked.objects()[0]["at"], 4, "{forked:?}");
}

/// Nobody knows how far a log went whose end is cut off. The copy keeps saying that: it is not written
/// to, so no sequence that was acknowledged comes again.
#[test]
fn a_repaired_session_whose_end_is_lost_keeps_saying_so() {
    let sample = Sample::new();
    let segment = file_of(&sample, "seg-");
    let entries = sample.entries();
    let at = entries.iter().find(|entry| entry.seq.get() == 7).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(segment);
    file.unwrap().set_len(at.position.offset).unwrap();
    let new = new_store(&sample);
    let refused = sample.run(&["repair", "{}", ID, "--to", &new]);
    assert!(refused.stdout.contains("the end of the log is missing"));
    // A slot may have proven more.
    let refused = sample.run(&["repair", "{}", ID, "--to", &new, "--json"]);
    let at = refused.objects()[0]["fork_at"].as_u64().unwrap();
    assert!((5..=6).contains(&at), "{refused:?}");
    let at = at.to_string();
    let done = sample.run(&["repair", "{}", ID, "--to", &new, "--accept-loss"]);
    assert_eq!(done.status, 0, "{done:?}");
    let goes_on = format!("stepwell fork {new} {ID} --at {at}");
    assert!(done.stdout.contains(&goes_on), "{done:?}");
    let verified = run(&["verify", &new]);
    assert!(
        verified.stdout.contains("intact, with gaps"),
        "{verified:?}"
    );
    run(&["rewind", &new, ID, "--to", "3"]).fails(1, "nothing is left of the record");
    let forked = run(&["fork", &new, ID, "--at", &at, "--json"]);
    assert_eq!(forked.status, 0, "{forked:?}");
    // Also what is repaired again.
    let again = format!("{new}-again");
    let report = run(&["repair", &new, ID, "--to", &again, "--json"]);
    let report = &report.objects()[0];
    assert_eq!(report["gaps"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(report["lost"].as_array().unwrap().len(), 0, "{report}");
}

/// A session of several segments: the seals, the footers, and what a repair writes beside them.
#[test]
fn inspect_shows_seals_and_footers() {
    let sample = Sample::new();
    let (session, _) = sample
        .store
        .open_session(sample.session, stepwell::store::Mode::Write)
        .unwrap();
    let mut main = session.loop_by_name("main").unwrap().unwrap();
    let mut turn = main
        .begin_turn(stepwell::content::UserMessage::text("much"))
        .unwrap();
    for _ in 0..12 {
        let text = "x".repeat(40_000);
        let step = stepwell::content::AssistantMessage::text(text);
        turn.commit_step(stepwell::store::StepDraft::new(step))
            .unwrap();
    }
    drop((main, session));
    let sealed = file_of(&sample, "seg-");
    let json = run(&["inspect", text(&sealed), "--json"]);
    let objects = json.objects();
    let part = |name: &str| objects.iter().find(|part| part["part"] == name).unwrap();
    let seal = part("seal");
    assert!(seal["count"].as_u64().unwrap() > 5, "{seal}");
    let last = objects
        .iter()
        .rfind(|part| part["part"] == "frame")
        .unwrap();
    assert_eq!(seal["last"], last["lsn"]);
    let end = last["offset"].as_u64().unwrap() + last["bytes"].as_u64().unwrap();
    assert_eq!(seal["end"], end);
    let footer = part("footer");
    assert_eq!(footer["offset"], seal["footer"]);
    assert_eq!(footer["last"], seal["last"]);
    assert_eq!(footer["sessions"][0]["session"], ID);
    let shown = run(&["inspect", text(&sealed)]);
    assert!(shown.stdout.contains("carry record of"), "{shown:?}");
    hides_the_log_id(&shown, &sealed);
}
