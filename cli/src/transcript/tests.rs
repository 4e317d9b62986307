use std::io::Cursor;
use std::path::Path;

use stepwell::content::{Block, Thinking};

use super::*;

fn read(lines: &str) -> Transcript {
    Transcript::read(&mut Cursor::new(lines.as_bytes())).unwrap()
}

fn fixture() -> Transcript {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/two-turns.jsonl");
    Transcript::open(&path).unwrap()
}

fn problems(transcript: &Transcript) -> Vec<String> {
    let problems = transcript.report.problems.iter();
    problems.map(ToString::to_string).collect()
}

/// An assistant's line; its blocks are given as JSON.
fn said(id: &str, blocks: &str) -> String {
    format!(r#"{{"type":"assistant","message":{{"id":"{id}","content":[{blocks}]}}}}"#) + "\n"
}

fn heard(content: &str) -> String {
    format!(r#"{{"type":"user","message":{{"content":{content}}}}}"#) + "\n"
}

fn call(id: &str) -> String {
    format!(r#"{{"type":"tool_use","id":"{id}","name":"t","input":{{}}}}"#)
}

fn result(id: &str, text: &str) -> String {
    heard(&format!(
        r#"[{{"type":"tool_result","tool_use_id":"{id}","content":"{text}"}}]"#
    ))
}

/// The results of every step, as `id=text`.
fn results(transcript: &Transcript) -> Vec<Vec<String>> {
    let steps = transcript.turns.iter().flat_map(|turn| &turn.steps);
    steps
        .map(|step| {
            let results = step.results.iter();
            results
                .map(|result| format!("{}={}", result.tool_use_id, result.to_text()))
                .collect()
        })
        .collect()
}

#[test]
fn lines_with_one_id_are_one_message() {
    let transcript = fixture();
    let [first, second, third] = &transcript.turns[..] else {
        panic!("{transcript:#?}");
    };
    assert_eq!(first.user.to_text(), "Count the stones in the well.");
    let message = &first.steps[0].assistant;
    let tags: Vec<&str> = message.blocks.iter().map(Block::tag).collect();
    assert_eq!(tags, ["thinking", "text", "tool_use", "tool_use"]);
    assert_eq!(message.usage.unwrap().output_tokens, 44);
    assert_eq!(first.steps.len(), 3);
    assert_eq!(second.steps.len(), 2);
    assert_eq!(
        (third.user.to_text().as_str(), third.steps.len()),
        ("no", 0)
    );
}

#[test]
fn signatures_and_inputs_keep_their_bytes() {
    let transcript = fixture();
    let blocks = &transcript.turns[0].steps[0].assistant.blocks;
    let thinking = Thinking {
        thinking: "First look, then count.".into(),
        signature: "EqQBCkYI/+==".into(),
        signature_format: "anthropic".into(),
        ..Thinking::default()
    };
    assert_eq!(blocks[0], Block::Thinking(thinking));
    let inputs: Vec<&str> = transcript.turns[0].steps[0]
        .assistant
        .tool_uses()
        .map(|call| call.input.get())
        .collect();
    assert_eq!(
        inputs,
        [
            r#"{"command": "ls -la",  "timeout":1.50e3}"#,
            "{\"path\":\"w\\u00e4ll\"}"
        ]
    );
}

#[test]
fn results_stand_in_call_order_and_answer_calls_without_an_id() {
    let transcript = fixture();
    let steps = &transcript.turns[0].steps;
    assert_eq!(
        results(&transcript)[..3],
        [
            vec![
                "toolu_1=3 stones\n".to_owned(),
                "toolu_2=no such file".into()
            ],
            vec!["made-up-10-1=".into()],
            vec![]
        ]
    );
    assert_eq!(
        [false, true],
        [steps[0].results[0].is_error, steps[0].results[1].is_error]
    );
    let made_up = steps[1].assistant.tool_uses().next().unwrap();
    assert_eq!(made_up.id, "made-up-10-1");
}

#[test]
fn what_is_not_used_is_counted_or_reported() {
    let transcript = fixture();
    let report = &transcript.report;
    assert_eq!(
        (report.lines, report.sidechains, report.skipped_lines()),
        (22, 1, 3)
    );
    assert_eq!(report.skipped["progress"], 1);
    let told = problems(&transcript);
    assert_eq!(
        told[0],
        "line 15: message dropped: 1 of its 1 calls never got a result (toolu_3)"
    );
    assert!(told[1].starts_with("line 16: skipped: "), "{told:?}");
    assert_eq!(
        told[2],
        "line 17: message dropped: 1 of its 2 calls never got a result (toolu_5)"
    );
    assert_eq!(
        told[3],
        "line 19: result dropped: there is no open call 'toolu_9'"
    );
    assert_eq!(told.len(), 4);
}

#[test]
fn what_cannot_be_kept_leaves_a_text() {
    let transcript = fixture();
    let turn = &transcript.turns[1];
    assert_eq!(
        turn.user.to_text(),
        "And in this picture?\n[an image, not kept]"
    );
    assert_eq!(
        turn.steps[0].assistant.to_text(),
        "Water, and no stone.\n[a block of type 'fallback', not kept]"
    );
}

#[test]
fn parts_and_results_may_be_interleaved() {
    let lines = heard("\"go\"")
        + &said("m", &call("a"))
        + &result("a", "1")
        + &said("m", &call("b"))
        + &said("n", &call("c"))
        + &result("c", "3")
        + &result("b", "2");
    let transcript = read(&lines);
    assert_eq!(results(&transcript), [vec!["a=1", "b=2"], vec!["c=3"]]);
    assert_eq!(problems(&transcript), [""; 0]);
}

#[test]
fn an_id_may_come_again_in_another_step_and_turn() {
    let lines = heard("\"one\"")
        + &said("m", &call("a"))
        + &result("a", "1")
        + &said("n", &call("a"))
        + &result("a", "2")
        + &heard("\"two\"")
        + &said("m", &call("a"))
        + &result("a", "3");
    let transcript = read(&lines);
    assert_eq!(results(&transcript), [["a=1"], ["a=2"], ["a=3"]]);
    assert_eq!(transcript.turns.len(), 2);
}

#[test]
fn a_result_belongs_to_the_last_message_with_its_call() {
    let lines =
        heard("\"one\"") + &said("m", &call("a")) + &said("n", &call("a")) + &result("a", "2");
    let transcript = read(&lines);
    assert_eq!(results(&transcript), [["a=2"]]);
    assert_eq!(
        problems(&transcript),
        ["line 2: message dropped: 1 of its 1 calls never got a result (a)"]
    );
}

#[test]
fn a_part_that_was_written_twice_counts_once() {
    let lines =
        heard("\"go\"") + &said("m", &call("a")) + &said("m", &call("a")) + &result("a", "1");
    let transcript = read(&lines);
    assert_eq!(results(&transcript), [["a=1"]]);
    // The same id for another call is another call: it gets an id of its own.
    let other = r#"{"type":"tool_use","id":"a","name":"t","input":[]}"#;
    let lines = heard("\"go\"")
        + &said("m", &format!("{},{other}", call("a")))
        + &result("a", "1")
        + &result("a", "2");
    assert_eq!(results(&read(&lines)), [["a=1", "made-up-2-1=2"]]);
}

#[test]
fn text_beside_results_begins_a_turn_behind_them() {
    let both =
        r#"[{"type":"tool_result","tool_use_id":"a","content":"1"},{"type":"text","text":"stop"}]"#;
    let lines = heard("\"go\"")
        + &said("m", &call("a"))
        + &heard(both)
        + &said("m", r#"{"type":"text","text":"yes"}"#);
    let transcript = read(&lines);
    assert_eq!(transcript.turns.len(), 2);
    assert_eq!(results(&transcript)[0], ["a=1"]);
    assert_eq!(transcript.turns[1].steps[0].assistant.to_text(), "yes");
}

#[test]
fn a_model_that_speaks_first_gets_a_user() {
    let transcript = read(&said("m", r#"{"type":"text","text":"hello"}"#));
    assert_eq!(transcript.turns.len(), 1);
    assert!(
        transcript.turns[0]
            .user
            .to_text()
            .contains("begins without")
    );
}

#[test]
fn an_empty_message_is_dropped() {
    let lines = heard("\"go\"")
        + &said(
            "m",
            r#"{"type":"text","text":""},{"type":"thinking","thinking":""}"#,
        );
    assert_eq!(
        problems(&read(&lines)),
        ["line 2: message dropped: it holds nothing"]
    );
}

#[test]
fn long_lines_are_skipped_and_lines_at_the_limit_are_read() {
    let mut input = Cursor::new(b"12345\n123456\n1234567890123456\n\n12345".to_vec());
    let mut sizes = Vec::new();
    while let Some(line) = next_line(&mut input, 5).unwrap() {
        sizes.push(match line {
            Bounded::Line(line) => Some(line.len()),
            Bounded::TooLong => None,
        });
    }
    assert_eq!(sizes, [Some(5), None, None, Some(0), Some(5)]);
}

#[test]
fn hostile_lines_are_reported_and_never_fatal() {
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let lines = [
        "null".to_owned(),
        "[]".into(),
        "\"user\"".into(),
        "{}".into(),
        "{\"type\":7}".into(),
        "{\"type\":\"user\"}".into(),
        "{\"type\":\"user\",\"message\":null}".into(),
        "{\"type\":\"user\",\"message\":[1]}".into(),
        "{\"type\":\"user\",\"type\":\"user\",\"message\":{}}".into(),
        "{\"type\":\"user\",\"message\":{\"content\":7}}".into(),
        "{\"type\":\"user\",\"message\":{\"content\":[null]}}".into(),
        "{\"type\":\"user\",\"message\":{\"content\":\"\\ud800\"}}".into(),
        "{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"tool_use\",\"id\":7}]}}"
            .into(),
        format!("{{\"type\":\"x\",\"a\":{}}}", deep("[", "]")),
        format!(
            "{{\"type\":\"user\",\"message\":{{\"content\":{}}}}}",
            deep("[", "]")
        ),
        deep("{\"message\":", "}"),
        "\u{feff}{\"type\":\"user\",\"message\":{\"content\":\"with a mark\"}}\r".into(),
        "{\"type\":\"user\",\"message\":{}}".into(),
    ];
    let transcript = read(&lines.join("\n"));
    let texts: Vec<String> = transcript
        .turns
        .iter()
        .map(|turn| turn.user.to_text())
        .collect();
    assert_eq!(texts, ["with a mark"]);
    assert_eq!(transcript.report.lines, lines.len() as u64);
    let read_lines: Vec<u64> = transcript
        .report
        .problems
        .iter()
        .map(|problem| problem.line)
        .collect();
    assert!(
        read_lines.contains(&1) && read_lines.contains(&13) && read_lines.contains(&15),
        "{read_lines:?}"
    );
}

#[test]
fn every_prefix_and_every_changed_byte_of_a_transcript_is_survived() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/two-turns.jsonl");
    let bytes = std::fs::read(path).unwrap();
    for end in 0..bytes.len() {
        let whole = Transcript::read(&mut Cursor::new(&bytes[..end])).unwrap();
        for step in whole.turns.iter().flat_map(|turn| &turn.steps) {
            assert_eq!(step.assistant.tool_uses().count(), step.results.len());
        }
        let mut changed = bytes.clone();
        changed[end] ^= 0x11;
        Transcript::read(&mut Cursor::new(&changed)).unwrap();
    }
}

#[test]
fn many_calls_of_one_id_take_no_quadratic_time() {
    let calls: Vec<String> = (0..50_000)
        .map(|number| {
            format!(r#"{{"type":"tool_use","id":"a","name":"t","input":{{"n":{number}}}}}"#)
        })
        .collect();
    let answers: Vec<String> = (0..50_000)
        .map(|_| r#"{"type":"tool_result","tool_use_id":"a","content":"x"}"#.to_owned())
        .collect();
    let lines = heard("\"go\"")
        + &said("m", &calls.join(","))
        + &heard(&format!("[{}]", answers.join(",")));
    let began = std::time::Instant::now();
    let transcript = read(&lines);
    assert_eq!(transcript.turns[0].steps[0].results.len(), 50_000);
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn a_file_without_turns_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    std::fs::write(&path, "{\"type\":\"summary\"}\n").unwrap();
    assert!(matches!(
        Transcript::open(&path),
        Err(TranscriptError::NoTurns { .. })
    ));
    assert!(matches!(
        Transcript::open(folder.path()),
        Err(TranscriptError::Io { .. })
    ));
}

/// The recorded samples beside the project, where they are present.
#[test]
fn recorded_samples_can_be_read() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/samples/claude-code");
    let Ok(entries) = std::fs::read_dir(samples) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let transcript = Transcript::open(&path).unwrap();
        let steps: usize = transcript.turns.iter().map(|turn| turn.steps.len()).sum();
        assert!(steps > 0, "{}", path.display());
    }
}
