//! The record codec: what the journal stores (P10, P11).

use proptest::prelude::*;
use stepwell::content::{
    AssistantMessage, Block, JsonProblem, RawJson, ToolResult, ToolResultMessage,
};
use stepwell::event::*;
use stepwell::identity::{LoopId, SessionId, StepId, TurnId};

use crate::events::{SESSION, any_event, header, id, raw, sample, step};

fn session() -> SessionId {
    SESSION.parse().unwrap()
}

fn encode(event: &Event) -> Result<Vec<u8>, EncodeError> {
    encode_record(event, None, &Limits::default())
}

fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    decode_record(session(), bytes, &Limits::default())
}

fn enduring() -> impl Iterator<Item = Kind> {
    Kind::ALL
        .iter()
        .copied()
        .filter(|kind| kind.class().is_enduring())
}

#[test]
fn every_enduring_kind_round_trips_with_and_without_a_key() {
    let key = Key::new("step/1").unwrap();
    for kind in enduring() {
        for key in [None, Some(key.clone())] {
            let event = sample(kind);
            let bytes = encode_record(&event, key.as_ref(), &Limits::default()).unwrap();
            assert_eq!(decode(&bytes), Ok(Decoded::Event { event, key }), "{kind}");
        }
    }
}

#[test]
fn live_kinds_are_refused() {
    for kind in Kind::ALL
        .iter()
        .copied()
        .filter(|kind| !kind.class().is_enduring())
    {
        assert_eq!(
            encode(&sample(kind)),
            Err(EncodeError::EphemeralNotPersistable { kind })
        );
    }
}

#[test]
fn the_session_comes_from_the_caller_and_is_not_in_the_payload() {
    let bytes = encode(&sample(Kind::StepDone)).unwrap();
    assert!(
        !bytes
            .windows(16)
            .any(|window| window == session().as_bytes())
    );
    assert!(!bytes.windows(36).any(|window| window == SESSION.as_bytes()));
    let other: SessionId = id(77);
    let Ok(Decoded::Event { event, .. }) = decode_record(other, &bytes, &Limits::default()) else {
        panic!()
    };
    assert_eq!(event.header.coordinates.session, other);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The format is final: these bytes must never change.
#[test]
fn golden_records() {
    let step = encode_record(
        &sample(Kind::StepDone),
        Some(&Key::new("k1").unwrap()),
        &Limits::default(),
    )
    .unwrap();
    let (head, body) = step.split_at(4 + 83);
    assert_eq!(
        hex(head),
        [
            "01005300",                           // version, flags, header length 83
            "31",                                 // kind 49
            "0102020202020202020202020202020202", // loop
            "0103030303030303030303030303030303", // turn
            "0104040404040404040404040404040404", // step
            "05050505050505050505050505050505",   // event id
            "01fc009219d6fc15cd5b07",             // time: 3,592,000,000 is zigzag of 1,796,000,000
            "01026b31",                           // key "k1"
        ]
        .concat()
    );
    assert_eq!(
        std::str::from_utf8(body).unwrap(),
        concat!(
            r#"{"messages":[{"role":"assistant","blocks":[{"type":"text","text":"Looking."},"#,
            r#"{"type":"tool_use","id":"call-1","name":"List","input":{"path":"."}},"#,
            r#"{"type":"tool_use","id":"call-2","name":"Read","input":{}}],"#,
            r#""usage":{"input_tokens":120,"output_tokens":18}},"#,
            r#"{"role":"tool","blocks":[{"type":"text","text":"a.txt\nb.txt"}],"tool_use_id":"call-1"},"#,
            r#"{"role":"tool","blocks":[{"type":"text","text":"arguments were not valid JSON"}],"#,
            r#""tool_use_id":"call-2","is_error":true}]}"#,
        )
    );

    let mut stopped = sample(Kind::SessionStopped);
    stopped.header.created_at = None;
    assert_eq!(
        hex(&encode(&stopped).unwrap()),
        [
            "01001600",
            "04000000",
            "05".repeat(16).as_str(),
            "0000",
            "7b7d"
        ]
        .concat()
    );

    let mut host = sample(Kind::HostEvent);
    host.header.created_at = None;
    host.header.coordinates = header(Kind::SessionStopped).coordinates;
    host.header.agent_name = "main".into();
    let bytes = encode(&host).unwrap();
    let (head, body) = bytes.split_at(4 + 22);
    assert_eq!(
        hex(head),
        ["01011600", "80000000", "05".repeat(16).as_str(), "0000"].concat()
    );
    assert_eq!(
        std::str::from_utf8(body).unwrap(),
        r#"{"agent_name":"main","name":"index-updated","version":2,"data":{"n":1e400,"N":-0.0},"optional":true}"#
    );
}

#[test]
fn a_scan_reads_the_header_without_the_body() {
    let key = Key::new("k").unwrap();
    let mut bytes = encode_record(&sample(Kind::StepDone), Some(&key), &Limits::default()).unwrap();
    let body = decode_header(&bytes, &Limits::default()).unwrap().body;
    bytes.truncate(bytes.len() - body.length() as usize);
    bytes.extend_from_slice(b"\xff this is no JSON");
    let header = decode_header(&bytes, &Limits::default()).unwrap();
    assert_eq!(
        (header.kind, header.optional, header.key),
        (Some(Kind::StepDone), false, Some(key))
    );
    assert_eq!(
        (header.loop_id, header.turn, header.step),
        (id::<LoopId>(2), id::<TurnId>(3), id::<StepId>(4))
    );
    assert_eq!(header.body, StoredBody::Inside(b"\xff this is no JSON"));
    assert!(matches!(
        accept(&bytes, &Limits::default()),
        Err(DecodeError::Json(_))
    ));
}

#[test]
fn a_repeat_is_told_from_another_body_by_its_bytes_without_stamps() {
    let limits = Limits::default();
    let first = encode(&sample(Kind::StepDone)).unwrap();
    let mut again = sample(Kind::StepDone);
    again.header.event_id = id(88);
    again.header.created_at = None;
    again.header.coordinates.step = id(89);
    let again = encode(&again).unwrap();
    let other = Event::new(
        header(Kind::StepDone),
        Body::from(StepDone::new(AssistantMessage::text("x"), vec![])),
    );
    let other = encode(&other).unwrap();
    let header = |bytes| decode_header(bytes, &limits).unwrap();
    assert!(header(&first).same_content(&header(&again)));
    assert!(!header(&first).same_content(&header(&other)));
    // Two kinds may have the same body.
    let started = encode(&sample(Kind::RestoreStarted)).unwrap();
    let done = encode(&sample(Kind::RestoreDone)).unwrap();
    assert_eq!(header(&started).body, header(&done).body);
    assert!(!header(&started).same_content(&header(&done)));
}

/// A record of a kind that no version has, with or without the optional flag.
fn unknown(optional: bool) -> Vec<u8> {
    let mut bytes = encode(&sample(Kind::RestoreDone)).unwrap();
    assert_eq!(bytes[4], 6, "the kind is the first byte of the header");
    bytes[1] = u8::from(optional);
    bytes[4] = 250;
    bytes
}

#[test]
fn an_unknown_kind_is_skipped_only_when_it_is_optional() {
    assert_eq!(decode(&unknown(true)), Ok(Decoded::Skipped { code: 250 }));
    assert_eq!(
        decode(&unknown(false)),
        Err(DecodeError::UnknownKind { code: 250 })
    );
    assert_eq!(accept(&unknown(true), &Limits::default()), Ok(()));
    assert_eq!(
        accept(&unknown(false), &Limits::default()),
        Err(DecodeError::UnknownKind { code: 250 })
    );
}

#[test]
fn a_live_kind_in_a_record_is_refused_even_when_optional() {
    let mut bytes = unknown(true);
    bytes[4] = 38;
    assert_eq!(decode(&bytes), Err(DecodeError::UnknownKind { code: 38 }));
    bytes[4] = 3;
    assert_eq!(decode(&bytes), Err(DecodeError::UnknownKind { code: 3 }));
}

#[test]
fn versions_flags_and_header_bytes_that_are_not_ours_are_refused() {
    let good = encode(&sample(Kind::RestoreDone)).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode(&bytes)
    };
    assert_eq!(
        with(0, 0),
        Err(DecodeError::UnknownRecordVersion { version: 0 })
    );
    assert_eq!(
        with(0, 2),
        Err(DecodeError::UnknownRecordVersion { version: 2 })
    );
    assert_eq!(with(1, 2), Err(DecodeError::Header));
    assert_eq!(
        with(1, 1),
        Err(DecodeError::Header),
        "only a host's event is optional"
    );
    assert_eq!(
        with(2, good[2] + 1),
        Err(DecodeError::Header),
        "a byte of the header is not used"
    );
    assert_eq!(
        with(2, good[2] - 1),
        Err(DecodeError::Header),
        "the header is cut short"
    );
    assert_eq!(
        with(3, 0xff),
        Err(DecodeError::Header),
        "longer than the record"
    );
    for length in 0..good.len() {
        assert!(decode(&good[..length]).is_err(), "cut to {length}");
    }
}

#[test]
fn a_header_has_one_encoding() {
    let good = encode(&sample(Kind::RestoreDone)).unwrap();
    // The kind 6 as three bytes instead of one.
    let mut long = good.clone();
    long[2] += 2;
    long.splice(4..5, [251, 6, 0]);
    assert_eq!(decode(&long), Err(DecodeError::Header));
    // A loop that is present and nil.
    let mut nil = good;
    nil[2] += 16;
    nil.splice(5..6, std::iter::once(1).chain([0; 16]));
    assert_eq!(decode(&nil), Err(DecodeError::Header));
}

#[test]
fn keys_are_bounded() {
    assert_eq!(Key::new(""), Err(KeyError::Empty));
    assert_eq!(
        Key::new("x".repeat(257)),
        Err(KeyError::TooLong { got: 257 })
    );
    let key = Key::new("x".repeat(256)).unwrap();
    let event = sample(Kind::StepDone);
    let bytes = encode_record(&event, Some(&key), &Limits::default()).unwrap();
    assert_eq!(
        decode(&bytes),
        Ok(Decoded::Event {
            event,
            key: Some(key)
        })
    );
}

#[test]
fn rules_are_checked_on_both_sides() {
    let mut event = sample(Kind::StepDone);
    event.header.coordinates.turn = TurnId::nil();
    assert!(matches!(encode(&event), Err(EncodeError::Invalid(_))));
    let empty = Body::from(StepDone::default());
    assert!(matches!(
        encode(&Event::new(header(Kind::StepDone), empty)),
        Err(EncodeError::Invalid(_))
    ));

    // The same step with the turn taken out of the bytes.
    let mut bytes = encode(&sample(Kind::StepDone)).unwrap();
    assert_eq!(bytes[4 + 1 + 17], 1);
    bytes[2] -= 16;
    bytes.splice(4 + 1 + 17..4 + 1 + 34, [0]);
    assert!(
        matches!(decode(&bytes), Err(DecodeError::Invalid(error)) if error.field == Field::TurnId)
    );
}

fn with_result(blocks: Vec<Block>) -> Event {
    let assistant = AssistantMessage::default().with_tool_use("call-9", "Screenshot", raw("{}"));
    let result = ToolResultMessage {
        tool_use_id: "call-9".into(),
        is_error: false,
        blocks,
    };
    Event::new(
        header(Kind::StepDone),
        StepDone::new(assistant, vec![result]).into(),
    )
}

#[test]
fn a_record_over_the_limit_gives_no_bytes_and_names_the_tool() {
    let text = |bytes| Block::text("x".repeat(bytes));
    let big = with_result(vec![text(6 << 20), text(6 << 20), text(6 << 20)]);
    let Err(EncodeError::Limit(error)) = encode(&big) else {
        panic!("accepted")
    };
    assert_eq!((error.kind, error.max), (LimitKind::RecordBytes, 16 << 20));
    assert!(error.got > 18 << 20, "{}", error.got);
    assert_eq!(error.tool.unwrap().tool_name, "Screenshot");

    let block = with_result(vec![text((8 << 20) + 1)]);
    let Err(EncodeError::Limit(error)) = encode(&block) else {
        panic!("accepted")
    };
    assert_eq!(
        (error.kind, error.got, error.max),
        (LimitKind::BlockBytes, (8 << 20) + 1, 8 << 20)
    );
    assert_eq!(error.tool.unwrap().tool_use_id, "call-9");
}

#[test]
fn the_size_limit_is_exact_and_the_same_for_reading() {
    // With and without attribution, with and without fields of the kind: the seams between them count.
    let mut named = [sample(Kind::StepDone), sample(Kind::SessionStopped)];
    for event in &mut named {
        event.header.agent_name = "main".into();
    }
    for event in named
        .into_iter()
        .chain([sample(Kind::StepDone), sample(Kind::SessionStopped)])
    {
        let bytes = encode(&event).unwrap();
        let exact = Limits {
            record_bytes: u32::try_from(bytes.len()).unwrap(),
            ..Limits::default()
        };
        assert_eq!(encode_record(&event, None, &exact).as_ref(), Ok(&bytes));
        let below = Limits {
            record_bytes: exact.record_bytes - 1,
            ..exact
        };
        let Err(EncodeError::Limit(error)) = encode_record(&event, None, &below) else {
            panic!("accepted")
        };
        assert_eq!(error.max, u64::from(below.record_bytes));
        assert!(error.got > error.max);
        assert!(matches!(
            decode_record(session(), &bytes, &below),
            Err(DecodeError::Limit(_))
        ));
    }
}

#[test]
fn counts_of_blocks_and_messages_are_limited_on_both_sides() {
    let small = Limits {
        blocks: 3,
        messages: 3,
        block_bytes: 24,
        ..Limits::default()
    };
    let limit = |event: &Event, kind: LimitKind| {
        let Err(EncodeError::Limit(error)) = encode_record(event, None, &small) else {
            panic!("accepted")
        };
        assert_eq!(error.kind, kind);
        let bytes = encode(event).unwrap();
        let Err(DecodeError::Limit(error)) = decode_record(session(), &bytes, &small) else {
            panic!("read")
        };
        assert_eq!(error.kind, kind);
    };
    let text = Block::text("x");
    limit(&with_result(vec![text.clone(); 4]), LimitKind::Blocks);
    limit(
        &with_result(vec![Block::text("x".repeat(25))]),
        LimitKind::BlockBytes,
    );
    let nested = ToolResult {
        content: vec![text; 4],
        ..ToolResult::default()
    };
    limit(
        &with_result(vec![Block::ToolResult(nested)]),
        LimitKind::Blocks,
    );
    let results = vec![ToolResultMessage::text("a", "x"); 3];
    let many = StepDone::new(AssistantMessage::text("x"), results);
    limit(
        &Event::new(header(Kind::StepDone), many.into()),
        LimitKind::Messages,
    );
}

#[test]
fn blocks_nested_too_deep_are_refused_without_recursion() {
    let nest = |levels: usize| {
        (0..levels).fold(Block::text("x"), |inner, _| {
            Block::ToolResult(ToolResult {
                content: vec![inner],
                ..ToolResult::default()
            })
        })
    };
    assert!(encode(&with_result(vec![nest(50)])).is_ok());
    for levels in 55..70 {
        match encode(&with_result(vec![nest(levels)])) {
            Ok(bytes) => assert!(decode(&bytes).is_ok(), "{levels}"),
            Err(EncodeError::Limit(error)) => assert_eq!(error.kind, LimitKind::Depth),
            Err(EncodeError::NotAcceptable(error)) => {
                assert_eq!(error.problem, JsonProblem::TooDeep { max: 127 })
            }
            Err(error) => panic!("{error}"),
        }
    }
    let deep = nest(3000);
    assert!(matches!(
        encode(&with_result(vec![deep])),
        Err(EncodeError::Limit(_))
    ));
}

#[test]
fn what_reading_would_refuse_is_not_written() {
    let mut event = sample(Kind::SessionStarted);
    let Body::SessionStarted(body) = &mut event.body else {
        panic!()
    };
    body.labels = [
        ("Team".to_owned(), String::new()),
        ("team".to_owned(), String::new()),
    ]
    .into();
    let Err(EncodeError::NotAcceptable(error)) = encode(&event) else {
        panic!("written")
    };
    assert_eq!(error.problem, JsonProblem::DuplicateKey);

    let mut event = sample(Kind::SessionStarted);
    let Body::SessionStarted(body) = &mut event.body else {
        panic!()
    };
    body.manifest = Some(raw(r#"{"a":"\ud83d"}"#));
    let Err(EncodeError::NotAcceptable(error)) = encode(&event) else {
        panic!("written")
    };
    assert_eq!(error.problem, JsonProblem::LoneSurrogate);
}

#[test]
fn opaque_json_of_any_legal_depth_is_kept() {
    for depth in [127, 128, 129, RawJson::MAX_DEPTH] {
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let assistant = AssistantMessage::default().with_tool_use("c", "T", raw(&text));
        let event = Event::new(
            header(Kind::StepDone),
            Body::from(StepDone::new(assistant, vec![])),
        );
        let bytes = encode(&event).unwrap();
        assert_eq!(
            decode(&bytes),
            Ok(Decoded::Event { event, key: None }),
            "{depth}"
        );
    }
}

#[test]
fn factories_stamp_enduring_events_only_and_keep_what_is_there() {
    let factory = Factory::default();
    let stamped = factory
        .event(Header::at(header(Kind::StepDone).coordinates), step())
        .unwrap();
    assert!(!stamped.header.event_id.is_nil() && stamped.header.created_at.is_some());
    assert!(encode(&stamped.clone().erase()).is_ok());
    let again = factory.event(stamped.header.clone(), step()).unwrap();
    assert_eq!(again, stamped);
    let live = factory.event(Header::default(), InputQueued {}).unwrap();
    assert_eq!(live.header, Header::default());
}

#[test]
fn a_failed_mint_gives_no_event() {
    struct NoIds;
    impl IdSource for NoIds {
        fn mint(&self) -> Result<[u8; 16], stepwell::identity::MintError> {
            Err(stepwell::identity::MintError)
        }
    }
    struct NilIds;
    impl IdSource for NilIds {
        fn mint(&self) -> Result<[u8; 16], stepwell::identity::MintError> {
            Ok([0; 16])
        }
    }
    let header = Header::at(header(Kind::StepDone).coordinates);
    assert!(
        Factory::new(NoIds, SystemClock)
            .event(header.clone(), step())
            .is_err()
    );
    assert!(
        Factory::new(NilIds, SystemClock)
            .event(header, step())
            .is_err()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_event_reads_back_as_it_was(event in any_event(), key in proptest::option::of("[a-z]{1,40}")) {
        let key = key.map(|key| Key::new(key).unwrap());
        let bytes = encode_record(&event, key.as_ref(), &Limits::default()).unwrap();
        prop_assert_eq!(accept(&bytes, &Limits::default()), Ok(()));
        prop_assert_eq!(decode(&bytes), Ok(Decoded::Event { event: event.clone(), key: key.clone() }));
        let again = encode_record(&event, key.as_ref(), &Limits::default()).unwrap();
        prop_assert_eq!(again, bytes);
    }
}

/// A record whose body stands outside, and that body.
fn apart(kind: Kind) -> (Vec<u8>, Vec<u8>) {
    let whole = encode(&sample(kind)).unwrap();
    let body = body_in(&whole).to_vec();
    let mut record = whole;
    refer_outside(&mut record);
    (record, body)
}

#[test]
fn a_body_outside_is_referred_to_by_its_length_and_its_digest() {
    let limits = Limits::default();
    let whole = encode(&sample(Kind::StepDone)).unwrap();
    let (record, body) = apart(Kind::StepDone);
    // The documented bytes: one flag more, and a reference in the place of the body.
    let head = whole.len() - body.len();
    assert_eq!(record[1], whole[1] | 2);
    assert_eq!(record[2..head], whole[2..head]);
    assert_eq!(record.len(), head + Outside::BYTES);
    let (length, digest) = record[head..].split_at(8);
    assert_eq!(length, (body.len() as u64).to_le_bytes());
    // Of "abc", as FIPS 180-2 gives it.
    let known = Outside::of(b"abc").digest;
    assert_eq!(known[..4], [0xba, 0x78, 0x16, 0xbf]);
    assert_eq!(digest, Outside::of(&body).digest);
    let header = decode_header(&record, &limits).unwrap();
    assert!(header.same_content(&decode_header(&whole, &limits).unwrap()));
    assert!(
        decode_header(&whole, &limits)
            .unwrap()
            .same_content(&header)
    );
    assert_eq!(accept(&record, &limits), Ok(()));
    let session = id::<SessionId>(1);
    let Ok(Decoded::Outside(found)) = decode_record(session, &record, &limits) else {
        panic!("the body does not stand in the record");
    };
    assert_eq!(found, header);
    let event = decode_outside(session, &found, &body, &limits).unwrap();
    let inside = decode_record(session, &whole, &limits).unwrap();
    assert_eq!(inside, Decoded::Event { event, key: None });
    // Not with one byte less, or another one, or more.
    for index in 0..body.len() {
        let mut bad = body.clone();
        bad[index] ^= 1;
        let read = decode_outside(session, &found, &bad, &limits);
        assert_eq!(read, Err(DecodeError::WrongBody));
        let read = decode_outside(session, &found, &body[..index], &limits);
        assert_eq!(read, Err(DecodeError::WrongBody));
    }
    let other = encode(&sample(Kind::HostEvent)).unwrap();
    let other = decode_header(&other, &limits).unwrap();
    assert!(!header.same_content(&other));
}

#[test]
fn only_kinds_that_a_header_suffices_for_stand_outside() {
    let outside = [
        Kind::TurnStarted,
        Kind::TurnFoldedInto,
        Kind::TurnDone,
        Kind::StepDone,
        Kind::HostEvent,
    ];
    for kind in Kind::ALL.iter().copied() {
        if !kind.class().is_enduring() {
            continue;
        }
        let (record, body) = apart(kind);
        let read = decode_header(&record, &Limits::default());
        assert_eq!(kind.may_stand_outside(), outside.contains(&kind));
        match kind.may_stand_outside() {
            true => assert_eq!(read.unwrap().body.length(), body.len() as u64),
            false => assert_eq!(read, Err(DecodeError::Header), "{kind:?}"),
        }
    }
}

#[test]
fn the_limit_of_a_record_counts_a_body_outside() {
    let (record, body) = apart(Kind::StepDone);
    let whole = record.len() - Outside::BYTES + body.len();
    let limit = |record_bytes: usize| Limits {
        record_bytes: record_bytes as u32,
        ..Limits::default()
    };
    assert!(decode_header(&record, &limit(whole)).is_ok());
    let refused = decode_header(&record, &limit(whole - 1));
    assert!(
        matches!(&refused, Err(DecodeError::Limit(limit)) if limit.got == whole as u64),
        "{refused:?}"
    );
    // A hostile length is no reason to take memory, or to overflow.
    let mut hostile = record.clone();
    let at = hostile.len() - Outside::BYTES;
    hostile[at..at + 8].fill(0xff);
    let refused = decode_header(&hostile, &Limits::default());
    assert!(matches!(refused, Err(DecodeError::Limit(_))));
    // Nothing but a whole reference.
    for bytes in [&record[..record.len() - 1], &[&record[..], b"x"].concat()] {
        let read = decode_header(bytes, &Limits::default());
        assert_eq!(read, Err(DecodeError::Header));
    }
    let mut unknown = record;
    unknown[1] |= 4;
    let read = decode_header(&unknown, &Limits::default());
    assert_eq!(read, Err(DecodeError::Header));
}
