//! The flat JSON of events: order of checks, what is kept, what is refused.

use proptest::prelude::*;
use stepwell::content::{Block, ContentError, JsonError, JsonProblem, Message, RawJson};
use stepwell::event::*;
use stepwell::identity::{Agency, Visibility};

use crate::events::{any_event, header, raw, sample};

const OWN: &str = include_str!("../fixtures/wire-own.jsonl");

fn own(line: usize) -> Event {
    from_wire(OWN.lines().nth(line).unwrap().as_bytes()).unwrap()
}

#[test]
fn own_lines_decode_and_reach_a_fixed_point() {
    assert_eq!(OWN.lines().count(), 12);
    for line in OWN.lines() {
        let event = from_wire(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}"));
        let ours = to_wire(&event).unwrap();
        assert_eq!(from_wire(ours.as_bytes()), Ok(event), "{line}");
        assert!(!ours.contains('\n'));
    }
}

#[test]
fn own_lines_mean_what_they_say() {
    let turn = own(2);
    assert_eq!(
        turn.header.event_id.to_string(),
        "a0000000-0000-4000-8000-000000000003"
    );
    assert_eq!(turn.header.cause.agency, Agency::User);
    let body: &TurnStarted = turn.body_as().unwrap();
    assert_eq!(body.message.to_text(), "weigh <all> of it");
    assert!(matches!(&body.message.blocks[1], Block::Image(image) if image.source.data == b"GIF"));

    let step = own(3);
    let body: &StepDone = step.body_as().unwrap();
    let Block::Thinking(thinking) = &body.assistant().unwrap().blocks[0] else {
        panic!()
    };
    assert_eq!(
        thinking.provider_state.as_ref().unwrap().get(),
        r#"{"b":1,"a":"\ud800"}"#
    );
    let call = body.assistant().unwrap().tool_uses().next().unwrap();
    assert_eq!(
        call.input.get(),
        r#"{"box":1,"Box":2,"kg":1e400,"box":"\u00e9"}"#
    );
    assert!(matches!(&body.messages[1], Message::ToolResult(result) if result.is_error));

    let done = own(4);
    let body: &TurnDone = done.body_as().unwrap();
    assert_eq!(body.message.blocks, [Block::refusal("")]);
    assert_eq!(body.usage.unwrap().reasoning_tokens, 9);
    assert!(
        to_wire(&done)
            .unwrap()
            .contains(r#""usage":{"input_tokens":0,"output_tokens":4,"cache_read_tokens":0"#)
    );

    let failed = own(5);
    let body: &TurnFailed = failed.body_as().unwrap();
    assert_eq!(
        body.error.model_facing.as_deref(),
        Some("fewer calls, please")
    );
    assert_eq!(
        own(6).body_as::<TurnInterrupted>().unwrap().reason,
        Some(InterruptReason::Restart)
    );
    assert_eq!(own(10).header.visibility, Visibility::Internal);
    assert_eq!(
        own(11).body_as::<HostEvent>().unwrap().data.get(),
        r#"{"offset":-0.0,"OFFSET":"\ud83d"}"#
    );
}

#[test]
fn every_kind_on_the_wire_round_trips_and_the_others_are_refused() {
    for kind in Kind::ALL.iter().copied() {
        let event = sample(kind);
        if kind.is_on_wire() {
            let text = to_wire(&event).unwrap();
            assert_eq!(from_wire(text.as_bytes()), Ok(event), "{text}");
        } else {
            assert_eq!(
                to_wire(&event),
                Err(EncodeError::EphemeralNotPersistable { kind })
            );
        }
    }
}

/// A line that is right, with one text replaced.
fn changed(kind: Kind, from: &str, to: &str) -> Result<Event, DecodeError> {
    let text = to_wire(&sample(kind)).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    from_wire(text.replacen(from, to, 1).as_bytes())
}

fn name(result: Result<Event, DecodeError>) -> String {
    match result {
        Err(DecodeError::UnknownEventType { name }) => name,
        other => panic!("{other:?}"),
    }
}

#[test]
fn versions() {
    let v = |to| changed(Kind::StepDone, r#""v":1"#, to);
    assert_eq!(
        v(r#""v":2"#),
        Err(DecodeError::UnsupportedSchema { version: 2 })
    );
    let max = format!(r#""v":{}"#, u64::MAX);
    assert_eq!(
        v(&max),
        Err(DecodeError::UnsupportedSchema { version: u64::MAX })
    );
    for good in [r#""v":0"#, r#""v":null"#, r#""w":1"#] {
        assert_eq!(v(good), Ok(sample(Kind::StepDone)), "{good}");
    }
    for bad in [
        r#""v":"1""#,
        r#""v":-1"#,
        r#""v":1.0"#,
        r#""v":[]"#,
        r#""v":1e400"#,
    ] {
        assert!(matches!(v(bad), Err(DecodeError::Body { .. })), "{bad}");
    }
}

#[test]
fn types() {
    let tag = |to: &str| changed(Kind::LoopIdle, r#""type":"LoopIdle""#, to);
    assert_eq!(name(tag(r#""type":"LoopSnoozed""#)), "LoopSnoozed");
    assert_eq!(name(tag(r#""type":"loopidle""#)), "loopidle");
    assert_eq!(name(tag(r#""type":null"#)), "");
    assert_eq!(name(tag(r#""kind":"LoopIdle""#)), "");
    for live in [
        "TokenDelta",
        "ToolCallStarted",
        "ToolCallCompleted",
        "InputQueued",
    ] {
        assert_eq!(name(tag(&format!(r#""type":"{live}""#))), live);
    }
    assert!(matches!(tag(r#""type":7"#), Err(DecodeError::Body { .. })));
}

#[test]
fn the_order_of_checks_is_fixed() {
    let line = |rest: &str| from_wire(format!("{{{rest}}}").as_bytes());
    // Repeated keys before the version, the version before the type, the type before the body, the
    // body before the visibility, the visibility before the ids.
    assert!(matches!(
        line(r#""v":2,"V":1,"type":"No""#),
        Err(DecodeError::Json(_))
    ));
    assert!(matches!(
        line(r#""v":2,"type":"No""#),
        Err(DecodeError::UnsupportedSchema { .. })
    ));
    assert_eq!(name(line(r#""type":"No","messages":1"#)), "No");
    assert!(matches!(
        line(r#""type":"StepDone","messages":1,"visibility":7"#),
        Err(DecodeError::Body { .. })
    ));
    let broken = |result: Result<Event, DecodeError>| match result {
        Err(DecodeError::Invalid(error)) => error.field,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        broken(line(r#""type":"StepDone","messages":[],"visibility":7"#)),
        Field::Visibility
    );
    assert_eq!(
        broken(line(r#""type":"StepDone","messages":[null]"#)),
        Field::EventId
    );
    let id = "5".repeat(8);
    let id = format!(r#""event_id":"{id}-5555-4555-8555-555555555501""#);
    assert_eq!(
        broken(line(&format!(
            r#""type":"StepDone","messages":[null],{id}"#
        ))),
        Field::SessionId
    );
}

#[test]
fn malformed_lines_are_refused() {
    for text in [
        "",
        " ",
        "{",
        r#"{"a":"b"#,
        "{}x",
        "\u{feff}{}",
        r#"{"a":1,}"#,
    ] {
        assert!(
            matches!(from_wire(text.as_bytes()), Err(DecodeError::Json(_))),
            "{text:?}"
        );
    }
    for text in ["[]", "1", r#""s""#, "null", "[{}]"] {
        assert_eq!(
            from_wire(text.as_bytes()),
            Err(DecodeError::NotAnObject),
            "{text}"
        );
    }
    assert_eq!(name(from_wire(b"{}")), "");
    let bad_utf8 = from_wire(b"{\"type\":\"StepDone\",\"x\":\"\xff\"}");
    assert_eq!(
        bad_utf8,
        Err(DecodeError::Json(JsonError {
            offset: 24,
            problem: JsonProblem::NotUtf8
        }))
    );
    let huge = vec![b' '; (16 << 20) + 1];
    let Err(DecodeError::Limit(error)) = from_wire(&huge) else {
        panic!()
    };
    assert_eq!((error.got, error.max), ((16 << 20) + 1, 16 << 20));
}

#[test]
fn malformed_fields_are_refused() {
    let id = r#""event_id":"05050505-0505-0505-0505-050505050505""#;
    for (kind, from, to) in [
        (Kind::StepDone, id, r#""event_id":"05050505""#),
        (Kind::StepDone, id, r#""event_id":5"#),
        (Kind::StepDone, id, r#""event_id":null"#),
        (
            Kind::StepDone,
            r#""created_at":"2026"#,
            r#""created_at":"10000"#,
        ),
        (Kind::StepDone, r#""text":"Looking.""#, r#""text":7"#),
        (
            Kind::StepDone,
            r#""input_tokens":120"#,
            r#""input_tokens":-1"#,
        ),
        (
            Kind::StepDone,
            r#""input_tokens":120"#,
            r#""input_tokens":1.5"#,
        ),
        (Kind::TurnRejected, r#""reason":2"#, r#""reason":0"#),
        (Kind::TurnRejected, r#""reason":2"#, r#""reasons":2"#),
        (Kind::InputCancelled, r#""reason":2"#, r#""reason":3"#),
        (
            Kind::TurnInterrupted,
            r#""reason":"restart""#,
            r#""reason":"boredom""#,
        ),
        (
            Kind::HostEvent,
            r#""data":{"n":1e400,"N":-0.0}"#,
            r#""date":1"#,
        ),
    ] {
        let result = changed(kind, from, to);
        assert!(
            matches!(result, Err(DecodeError::Body { .. })),
            "{to}: {result:?}"
        );
    }
    let missing = changed(Kind::TurnStarted, r#""message":"#, r#""massage":"#);
    assert!(matches!(missing, Err(DecodeError::Invalid(error)) if error.field == Field::Message));
    let role = changed(
        Kind::TurnStarted,
        r#""role":"user""#,
        r#""role":"assistant""#,
    );
    assert!(matches!(
        role,
        Err(DecodeError::Content(ContentError::UnexpectedRole { .. }))
    ));
}

#[test]
fn unknown_roles_and_blocks_are_errors_of_the_codec() {
    let robot = changed(Kind::StepDone, r#""role":"tool""#, r#""role":"robot""#);
    assert_eq!(
        robot,
        Err(ContentError::UnknownMessageRole {
            role: "robot".into()
        }
        .into())
    );
    let missing = changed(Kind::StepDone, r#""role":"tool","#, "");
    assert_eq!(
        missing,
        Err(ContentError::UnknownMessageRole {
            role: String::new()
        }
        .into())
    );
    let block = changed(Kind::StepDone, r#""type":"text""#, r#""type":"hologram""#);
    assert_eq!(
        block,
        Err(ContentError::UnknownBlockType {
            tag: "hologram".into()
        }
        .into())
    );
    let null = changed(
        Kind::StepDone,
        r#"[{"type":"text""#,
        r#"[null,{"type":"text""#,
    );
    assert_eq!(null, Err(ContentError::NullBlock { index: 0 }.into()));
}

#[test]
fn a_null_among_the_messages_makes_the_step_invalid() {
    let null = changed(
        Kind::StepDone,
        r#"{"role":"tool""#,
        r#"null,{"role":"tool""#,
    );
    assert!(matches!(null, Err(DecodeError::Invalid(error)) if error.field == Field::Messages));
}

fn problem(result: Result<Event, DecodeError>) -> JsonProblem {
    match result {
        Err(DecodeError::Json(error)) => error.problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_that_repeat_outside_opaque_json_are_refused_at_any_depth() {
    for (kind, from, to) in [
        (Kind::StepDone, r#""v":1"#, r#""v":1,"V":1"#),
        (Kind::StepDone, r#""v":1"#, r#""v":1,"\u0076":1"#),
        (Kind::StepDone, r#""v":1"#, r#""v":1,"x":[{"é":1,"É":2}]"#),
        (
            Kind::StepDone,
            r#""role":"tool""#,
            r#""role":"tool","Role":"tool""#,
        ),
        (
            Kind::StepDone,
            r#""name":"List""#,
            r#""name":"List","Name":"List""#,
        ),
        (
            Kind::StepDone,
            r#""id":"call-1""#,
            r#""id":"call-1","INPUT":1"#,
        ),
        (
            Kind::TurnDone,
            r#""usage":{"#,
            r#""usage":{"InputTokens":1,"inputtokens":2,"#,
        ),
        (
            Kind::PermissionRequested,
            r#""command":"ls""#,
            r#""command":"ls","Command":"rm""#,
        ),
        (
            Kind::SessionStarted,
            r#"{"schema_version":3}"#,
            r#"{"schema_version":3,"Schema_Version":4}"#,
        ),
        (
            Kind::GateOpened,
            r#""title":"Allow?""#,
            r#""title":"Allow?","title":"Allow?""#,
        ),
    ] {
        assert_eq!(
            problem(changed(kind, from, to)),
            JsonProblem::DuplicateKey,
            "{to}"
        );
    }
    let many: Vec<String> = (0..200).map(|key| format!(r#""k{key}":1"#)).collect();
    let many = format!(r#""v":1,"x":{{{},"K77":1}}"#, many.join(","));
    assert_eq!(
        problem(changed(Kind::StepDone, r#""v":1"#, &many)),
        JsonProblem::DuplicateKey
    );
}

#[test]
fn keys_may_repeat_across_objects() {
    let more = r#""v":1,"x":[{"k":1},{"k":2,"x":{"k":3}},{"K":4}],"y":{"v":1,"type":2}"#;
    assert_eq!(
        changed(Kind::StepDone, r#""v":1"#, more),
        Ok(sample(Kind::StepDone))
    );
}

#[test]
fn opaque_json_may_hold_anything_valid() {
    let nasty = r#"{"a":1,"A":"\ud83d","a":1e400,"v":9,"type":"x","\udead":[{"b":0,"B":0}]}"#;
    let places: [(Kind, &str); 7] = [
        (Kind::StepDone, r#""input":{"path":"."}"#),
        (Kind::LoopStarted, r#""spec":{"a":1,"A":2}"#),
        (Kind::HostEvent, r#""data":{"n":1e400,"N":-0.0}"#),
        (Kind::GateOpened, r#""payload":{"k":1,"K":2}"#),
        (Kind::GateResolved, r#""answer":{"text":"\ud83d"}"#),
        (Kind::PermissionDecided, r#""data":{"x":[1.50]}"#),
        (Kind::StepDone, r#""text":"Looking.""#),
    ];
    for (kind, from) in places {
        let key = from.split(':').next().unwrap();
        // The last place turns the text block into one of reasoning with opaque state.
        let to = if key == r#""text""# {
            format!(r#""provider_state":{nasty}"#)
        } else {
            format!("{key}:{nasty}")
        };
        let event = if key == r#""text""# {
            let to = format!(r#"{{"type":"thinking",{to}}}"#);
            changed(kind, r#"{"type":"text","text":"Looking."}"#, &to)
        } else {
            changed(kind, from, &to)
        };
        let text = to_wire(&event.unwrap_or_else(|error| panic!("{error}: {to}"))).unwrap();
        assert!(text.contains(nasty), "{text}");
    }
}

#[test]
fn lone_surrogates_outside_opaque_json_are_refused() {
    for half in [
        r"\ud83d",
        r"\ude00",
        r"\ud83dx",
        r"\ud83d\n",
        r"\ud83d\ud83d",
        r"\ude00\ud83d",
    ] {
        let text = changed(Kind::StepDone, "Looking.", half);
        assert_eq!(problem(text), JsonProblem::LoneSurrogate, "{half}");
        let key = changed(Kind::StepDone, r#""v":1"#, &format!(r#""v":1,"{half}":1"#));
        assert_eq!(problem(key), JsonProblem::LoneSurrogate, "{half}");
    }
    let pair = changed(Kind::StepDone, "Looking.", r"\uD83D\ude00").unwrap();
    assert_eq!(
        pair.body_as::<StepDone>()
            .unwrap()
            .assistant()
            .unwrap()
            .to_text(),
        "\u{1f600}"
    );
}

#[test]
fn depth_outside_opaque_json_is_bounded() {
    let nested = |depth: usize, open: &str, close: &str| {
        let x = format!(
            r#""v":1,"x":{}1{}"#,
            open.repeat(depth),
            close.repeat(depth)
        );
        changed(Kind::StepDone, r#""v":1"#, &x)
    };
    // The event itself is the first level.
    assert!(nested(126, "[", "]").is_ok());
    assert!(nested(63, r#"[{"a":"#, "}]").is_ok());
    for depth in [127, 128, 129, 10_000, 100_000] {
        assert_eq!(
            problem(nested(depth, "[", "]")),
            JsonProblem::TooDeep { max: 127 },
            "{depth}"
        );
        assert_eq!(
            problem(nested(depth, r#"{"a":"#, "}")),
            JsonProblem::TooDeep { max: 127 }
        );
    }
    // Blocks in blocks reach the limit in the types, too.
    let blocks = |depth: usize| {
        let open = r#"{"type":"tool_result","content":["#.repeat(depth);
        let text = format!("{open}{{\"type\":\"text\"}}{}", "]}".repeat(depth));
        changed(
            Kind::StepDone,
            r#"{"type":"text","text":"Looking."}"#,
            &text,
        )
    };
    assert!(blocks(60).is_ok());
    for depth in 61..70 {
        match blocks(depth) {
            Ok(event) => assert!(to_wire(&event).is_ok()),
            Err(DecodeError::Json(error)) => {
                assert_eq!(error.problem, JsonProblem::TooDeep { max: 127 })
            }
            Err(DecodeError::Limit(error)) => assert_eq!(error.kind, LimitKind::Depth),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn lists_are_limited() {
    let blocks = |count: usize| {
        let text = vec![r#"{"type":"text"}"#; count].join(",");
        changed(
            Kind::TurnStarted,
            r#"{"type":"text","text":"list the files"}"#,
            &text,
        )
    };
    assert!(blocks(10_000).is_ok());
    let Err(DecodeError::Limit(error)) = blocks(10_001) else {
        panic!()
    };
    assert_eq!((error.kind, error.got), (LimitKind::Blocks, 10_001));
    let keys: Vec<String> = (0..=10_000).map(|key| format!(r#""k{key}":1"#)).collect();
    let keys = format!(r#""v":1,"x":{{{}}}"#, keys.join(","));
    assert_eq!(
        problem(changed(Kind::StepDone, r#""v":1"#, &keys)),
        JsonProblem::TooManyKeys { max: 10_000 }
    );
}

#[test]
fn an_event_is_one_line_and_its_opaque_json_loses_only_space() {
    let body = HostEvent {
        name: "n".into(),
        version: 1,
        data: raw("{\n  \"a b\" : [ 1,\t2 ] ,\r\n \"\\\" \" : \"x  \\\\\" }"),
        optional: false,
    };
    let event = Event::new(header(Kind::HostEvent), Body::from(body));
    let text = to_wire(&event).unwrap();
    assert!(
        text.contains(r#""data":{"a b":[1,2],"\" ":"x  \\"}"#),
        "{text}"
    );
    assert!(text.ends_with(r#","type":"HostEvent","v":1}"#));
    let again = from_wire(text.as_bytes()).unwrap();
    assert_eq!(to_wire(&again).unwrap(), text);
}

#[test]
fn an_error_is_model_facing_only_when_it_says_so() {
    let line = changed(Kind::TurnFailed, r#""model_facing":true,"#, "").unwrap();
    let body: &TurnFailed = line.body_as().unwrap();
    assert_eq!(
        body.error.model_facing, None,
        "a detail alone means nothing"
    );
    let unknown = changed(
        Kind::TurnFailed,
        r#""kind":"tool_limit""#,
        r#""kind":"sunspots""#,
    )
    .unwrap();
    assert_eq!(
        unknown.body_as::<TurnFailed>().unwrap().error.kind,
        ErrorKind::Unknown
    );
    let bare = changed(
        Kind::TurnFailed,
        r#""model_facing_detail":"try again""#,
        r#""x":1"#,
    )
    .unwrap();
    assert_eq!(
        bare.body_as::<TurnFailed>()
            .unwrap()
            .error
            .model_facing
            .as_deref(),
        Some("")
    );
    let text = to_wire(&bare).unwrap();
    assert_eq!(from_wire(text.as_bytes()), Ok(bare));
}

/// An event without the white space in opaque JSON that the wire form drops.
fn on_wire(event: &Event) -> Event {
    from_wire(to_wire(event).unwrap().as_bytes()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_event_reaches_a_fixed_point(event in any_event()) {
        let once = on_wire(&event);
        prop_assert_eq!(&on_wire(&once), &once);
        prop_assert_eq!(&once.header, &event.header);
        prop_assert_eq!(once.kind(), event.kind());
        let bytes = encode_record(&event, None, &Limits::default()).unwrap();
        if !bytes.windows(2).any(|pair| pair == b" :") {
            prop_assert_eq!(once, event);
        }
    }
}

#[test]
fn raw_json_from_outside_cannot_pass_for_a_tag() {
    let body = LoopStarted {
        spec: Some(RawJson::parse(r#"{"type":"StepDone","v":9}"#).unwrap()),
        ..LoopStarted::default()
    };
    let event = Event::new(header(Kind::LoopStarted), Body::from(body));
    assert_eq!(on_wire(&event), event);
}
