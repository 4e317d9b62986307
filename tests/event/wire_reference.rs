//! The reference's own wire lines, where they are present: what we have must decode and re-encode to a
//! fixed point with equal meaning; what it refuses, we refuse with the same class.

use std::path::PathBuf;

use serde_json::Value;
use stepwell::content::ContentError;
use stepwell::event::{DecodeError, Kind, from_wire, to_wire};
use stepwell::identity::Timestamp;

fn shared(name: &str) -> Option<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../shared")
        .join(name);
    std::fs::read_to_string(path).ok()
}

/// Brings both spellings of content to one, and drops what both leave out when it is empty.
fn meaning(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(meaning).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| (spelling(&key), value))
            .map(|(key, value)| match (key.as_str(), value) {
                ("created_at", Value::String(text)) => {
                    let moment: Timestamp = text.parse().unwrap();
                    (
                        key,
                        Value::from(format!("{}.{}", moment.secs(), moment.nanos())),
                    )
                }
                (_, value) => (key, meaning(value)),
            })
            .filter(|(_, value)| {
                !matches!(value, Value::Null | Value::Bool(false))
                    && value != &Value::from("")
                    && value != &Value::from(0)
                    && value != &Value::Array(vec![])
            })
            .collect(),
        other => other,
    }
}

fn spelling(key: &str) -> String {
    match key {
        "Text" => "text",
        "Thinking" => "thinking",
        "Signature" => "signature",
        "SignatureFormat" => "signature_format",
        "ProviderState" => "provider_state",
        "ProviderStateFormat" => "provider_state_format",
        "ID" => "id",
        "Name" => "name",
        "Input" => "input",
        "MediaType" => "media_type",
        "Source" => "source",
        "URL" => "url",
        "Data" => "data",
        "InputTokens" => "input_tokens",
        "OutputTokens" => "output_tokens",
        "CacheReadTokens" => "cache_read_tokens",
        "CacheCreationTokens" => "cache_creation_tokens",
        "ReasoningTokens" => "reasoning_tokens",
        other => other,
    }
    .to_owned()
}

/// Whether the line is an event that we have; the kind is judged apart from our decoder.
fn is_ours(line: &str) -> bool {
    let probe: Value = match serde_json::from_str(line) {
        Ok(value) => value,
        // A number that no double holds, or a lone surrogate, inside an input of ours.
        Err(_) => return true,
    };
    let name = probe["type"].as_str().unwrap_or_default();
    Kind::from_name(name).is_some_and(Kind::is_on_wire)
}

fn check(line: &str) {
    let event = from_wire(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}"));
    let ours = to_wire(&event).unwrap_or_else(|error| panic!("{error}: {line}"));
    let again = from_wire(ours.as_bytes()).unwrap();
    assert_eq!(again, event, "{line}");
    assert_eq!(to_wire(&again).unwrap(), ours, "a fixed point");
    if let (Ok(theirs), Ok(ours)) = (serde_json::from_str(line), serde_json::from_str(&ours)) {
        assert_eq!(meaning(ours), meaning(theirs), "{line}");
    }
}

#[test]
fn example_lines_decode_and_reach_a_fixed_point() {
    let Some(text) = shared("wire-examples.jsonl") else {
        return;
    };
    let lines: Vec<&str> = text.lines().filter(|line| is_ours(line)).collect();
    assert!(
        lines.len() >= 19,
        "only {} lines were recognised",
        lines.len()
    );
    lines.into_iter().for_each(check);
}

#[test]
fn golden_lines_decode_and_reach_a_fixed_point() {
    let Some(text) = shared("wire-golden.jsonl") else {
        return;
    };
    let mut ours = 0;
    for line in text.lines() {
        let golden: Value = serde_json::from_str(line).unwrap();
        let wire = golden["wire"].as_str().unwrap();
        if is_ours(wire) {
            ours += 1;
            check(wire);
        } else {
            assert!(
                matches!(
                    from_wire(wire.as_bytes()),
                    Err(DecodeError::UnknownEventType { .. })
                ),
                "{line}"
            );
        }
    }
    assert!(ours >= 40, "only {ours} lines were recognised");
}

#[test]
fn tool_inputs_of_the_golden_lines_keep_their_bytes() {
    let Some(text) = shared("wire-golden.jsonl") else {
        return;
    };
    let mut seen = 0;
    for line in text.lines() {
        let golden: Value = serde_json::from_str(line).unwrap();
        if !golden["name"].as_str().unwrap().starts_with("input/") {
            continue;
        }
        let wire = golden["wire"].as_str().unwrap();
        // The lines put the input between these two keys.
        let start = wire.find("\"Input\":").unwrap() + "\"Input\":".len();
        let end = wire.find(",\"Name\":\"Probe\"").unwrap();
        let ours = to_wire(&from_wire(wire.as_bytes()).unwrap()).unwrap();
        let kept = format!("\"input\":{}", &wire[start..end]);
        assert!(ours.contains(&kept), "{kept} is not in {ours}");
        seen += 1;
    }
    assert!(seen >= 5, "only {seen} lines were recognised");
}

#[test]
fn invalid_lines_are_refused_with_the_named_class() {
    let Some(text) = shared("wire-invalid.jsonl") else {
        return;
    };
    let mut refused = 0;
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (wire, class) = (
            case["wire"].as_str().unwrap(),
            case["error"].as_str().unwrap(),
        );
        let result = from_wire(wire.as_bytes());
        if case["why"]
            .as_str()
            .unwrap()
            .starts_with("case-variant duplicate inside tool input")
        {
            // The exception: opaque JSON is never interpreted.
            check(wire);
            assert!(result.is_ok());
            continue;
        }
        let error = result.expect_err(wire);
        assert!(is_of_class(&error, class), "{error:?} is not {class}");
        refused += 1;
    }
    assert!(refused >= 17, "only {refused} lines were seen");
}

fn is_of_class(error: &DecodeError, class: &str) -> bool {
    match class {
        "EventDecode(UnknownMessageRole)" => {
            matches!(
                error,
                DecodeError::Content(ContentError::UnknownMessageRole { .. })
            )
        }
        "EventDecode(UnknownBlockType)" => {
            matches!(
                error,
                DecodeError::Content(ContentError::UnknownBlockType { .. })
            )
        }
        "UnsupportedSchema v=2" => matches!(error, DecodeError::UnsupportedSchema { version: 2 }),
        "UnknownEventType" => matches!(error, DecodeError::UnknownEventType { .. }),
        "EventDecode duplicate field" => {
            matches!(error, DecodeError::Json(error)
                if error.problem == stepwell::content::JsonProblem::DuplicateKey)
        }
        "EventDecode" => matches!(error, DecodeError::Json(_) | DecodeError::Body { .. }),
        _ => {
            let DecodeError::Invalid(error) = error else {
                return false;
            };
            class == format!("InvalidEvent {} {}", error.field, error.rule)
        }
    }
}
