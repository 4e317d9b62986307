//! Blocks and messages in JSON, and what of a reply is stored.

use proptest::prelude::*;
use stepwell::content::*;

use crate::events::{any_assistant, any_block, raw};

fn block(text: &str) -> Result<Block, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn blocks_are_written_in_snake_case() {
    let call = Block::tool_use("c", "T", raw(r#"{"A":1}"#));
    assert_eq!(
        serde_json::to_string(&call).unwrap(),
        r#"{"type":"tool_use","id":"c","name":"T","input":{"A":1}}"#
    );
    assert_eq!(
        serde_json::to_string(&Block::refusal("")).unwrap(),
        r#"{"type":"refusal","text":""}"#
    );
    let image = Image {
        media_type: "image/png".into(),
        source: Source {
            url: String::new(),
            data: vec![0, 255],
        },
    };
    assert_eq!(
        serde_json::to_string(&Block::Image(image)).unwrap(),
        r#"{"type":"image","media_type":"image/png","source":{"data":"AP8="}}"#
    );
}

#[test]
fn both_spellings_are_read_and_no_third_one() {
    let wanted = Block::Thinking(Thinking {
        thinking: "hm".into(),
        signature: "s".into(),
        signature_format: "d".into(),
        provider_state: Some(raw("null")),
        provider_state_format: "e".into(),
    });
    let theirs = r#"{"Signature":"s","SignatureFormat":"d","Thinking":"hm","ProviderState":null,"ProviderStateFormat":"e","type":"thinking"}"#;
    let ours = r#"{"type":"thinking","thinking":"hm","signature":"s","signature_format":"d","provider_state":null,"provider_state_format":"e"}"#;
    assert_eq!(block(theirs), Ok(wanted.clone()));
    assert_eq!(block(ours), Ok(wanted.clone()));
    assert_eq!(serde_json::to_string(&wanted).unwrap(), ours);
    assert_eq!(
        block(r#"{"TEXT":"x","type":"text"}"#),
        Ok(Block::text("")),
        "an unknown key is ignored"
    );
    assert!(
        block(r#"{"Text":"x","text":"y","type":"text"}"#).is_err(),
        "the same field twice"
    );
}

#[test]
fn unknown_tags_and_roles_are_refused() {
    assert!(
        block(r#"{"type":"hologram"}"#)
            .unwrap_err()
            .contains("hologram")
    );
    assert!(block(r#"{"text":"x"}"#).is_err());
    assert!(block(r#"{"type":"Text","text":"x"}"#).is_err());
    for text in [
        r#"{"role":"robot"}"#,
        "{}",
        r#"{"role":"User"}"#,
        "null",
        r#"{"role":"user","blocks":[null]}"#,
    ] {
        assert!(serde_json::from_str::<Message>(text).is_err(), "{text}");
    }
    assert!(serde_json::from_str::<UserMessage>(r#"{"role":"assistant"}"#).is_err());
}

#[test]
fn absent_null_and_empty_lists_are_the_same_and_usage_is_not() {
    let message = |text| serde_json::from_str::<AssistantMessage>(text).unwrap();
    let empty = AssistantMessage::default();
    for text in [
        r#"{"role":"assistant"}"#,
        r#"{"role":"assistant","blocks":null}"#,
        r#"{"blocks":[],"role":"assistant"}"#,
    ] {
        assert_eq!(message(text), empty);
    }
    let zero = message(r#"{"role":"assistant","usage":{}}"#);
    assert_eq!(zero.usage, Some(Usage::default()));
    assert_eq!(
        serde_json::to_string(&zero).unwrap(),
        r#"{"role":"assistant","usage":{}}"#
    );
    assert_eq!(
        serde_json::to_string(&empty).unwrap(),
        r#"{"role":"assistant"}"#
    );
    let result = ToolResultMessage::default();
    assert_eq!(
        serde_json::to_string(&result).unwrap(),
        r#"{"role":"tool","tool_use_id":""}"#
    );
}

#[test]
fn base64_is_strict_and_null_means_no_bytes() {
    let audio = |data: &str| block(&format!(r#"{{"type":"audio","Data":{data}}}"#));
    assert_eq!(audio("null"), Ok(Block::Audio(Audio::default())));
    assert_eq!(
        audio(r#""AQ==""#),
        Ok(Block::Audio(Audio {
            media_type: String::new(),
            data: vec![1]
        }))
    );
    for data in [
        r#""AQ""#,
        r#""A""#,
        r#""AQ=="x"#,
        r#""A-__""#,
        "1",
        r#""\ud83d""#,
    ] {
        assert!(audio(data).is_err(), "{data}");
    }
}

#[test]
fn usage_adds_up_or_says_that_it_cannot() {
    let one = Usage {
        input_tokens: 1,
        reasoning_tokens: u64::MAX,
        ..Usage::default()
    };
    assert_eq!(one.checked_add(Usage::default()), Some(one));
    assert_eq!(one.checked_add(one), None);
}

#[test]
fn texts_are_flattened() {
    let message = AssistantMessage::text("a")
        .with_block(Block::refusal("b"))
        .with_tool_use("c", "T", RawJson::null());
    assert_eq!(message.to_text(), "a\nb");
    assert_eq!(message.tool_uses().count(), 1);
}

/// (input, stored view, whether the call may run)
const INPUTS: &[(&str, &str, bool)] = &[
    (r#"{"path":"."}"#, r#"{"path":"."}"#, true),
    (
        r#"{"a":"\ud83d","A":1e400}"#,
        r#"{"a":"\ud83d","A":1e400}"#,
        true,
    ),
    (r#"{"a":"b"#, "{}", false),
    ("", "{}", false),
    (" \n\t", "{}", false),
    ("{}}", "{}", false),
    ("[]", "[]", true),
    ("1", "1", true),
    (r#""s""#, r#""s""#, true),
    ("null", "null", true),
];

#[test]
fn malformed_input_is_stored_as_an_empty_object_and_kept_raw() {
    for (input, stored, runs) in INPUTS {
        let call = RawToolCall::new("c", "T", *input);
        assert_eq!(call.stored().input.get(), *stored, "{input:?}");
        assert_eq!(call.executable_input().is_some(), *runs, "{input:?}");
        assert_eq!(call.input, input.as_bytes());
    }
    let broken = RawToolCall::new("c", "T", b"\"\xff\"".as_slice());
    assert_eq!(broken.stored().input, RawJson::empty_object());
    assert_eq!(broken.input, b"\"\xff\"");
    let deep = RawToolCall::new("c", "T", "[".repeat(100_000));
    assert_eq!(deep.stored().input, RawJson::empty_object());
}

#[test]
fn a_call_without_id_or_name_is_stored_with_an_empty_object_and_does_not_run() {
    for (id, name) in [("", "T"), ("c", "")] {
        let call = RawToolCall::new(id, name, r#"{"path":"."}"#);
        assert_eq!(call.stored().input, RawJson::empty_object());
        assert_eq!(
            (call.stored().id.as_str(), call.stored().name.as_str()),
            (id, name)
        );
        assert_eq!(call.executable_input(), None);
    }
}

fn reply(blocks: Vec<Block>) -> StorableReply {
    let mut reply = StorableReply::new();
    blocks.into_iter().for_each(|block| reply.push(block));
    reply
}

fn opaque() -> Block {
    Block::Thinking(Thinking {
        provider_state: Some(raw("1")),
        ..Thinking::default()
    })
}

#[test]
fn a_reply_is_empty_without_text_reasoning_call_or_refusal() {
    let thinking = |text: &str| {
        Block::Thinking(Thinking {
            thinking: text.into(),
            ..Thinking::default()
        })
    };
    assert!(reply(vec![]).is_empty_response());
    assert!(reply(vec![Block::text(""), thinking("")]).is_empty_response());
    for block in [
        Block::text("x"),
        Block::refusal(""),
        opaque(),
        thinking("hm"),
        Block::Image(Image::default()),
    ] {
        assert!(!reply(vec![block.clone()]).is_empty_response(), "{block:?}");
    }
    let mut call = StorableReply::new();
    call.push_call(RawToolCall::new("", "", ""));
    assert!(!call.is_empty_response());
}

#[test]
fn a_storable_reply_drops_what_is_empty_and_sanitises_calls_in_place() {
    let mut reply = reply(vec![
        Block::text(""),
        Block::Thinking(Thinking::default()),
        opaque(),
        Block::refusal(""),
        Block::text("Looking."),
    ]);
    reply.push_call(RawToolCall::new("c1", "T", r#"{"a":"b"#));
    reply.push(Block::text("Then."));
    let usage = Usage {
        output_tokens: 3,
        ..Usage::default()
    };
    let message = reply.message(Some(usage));
    assert_eq!(
        message.blocks,
        [
            opaque(),
            Block::refusal(""),
            Block::text("Looking."),
            Block::tool_use("c1", "T", RawJson::empty_object()),
            Block::text("Then."),
        ]
    );
    assert_eq!(message.usage, Some(usage));
    let raw_calls: Vec<&RawToolCall> = reply.calls().collect();
    assert_eq!(raw_calls, [&RawToolCall::new("c1", "T", r#"{"a":"b"#)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_block_reads_back_as_it_was(block in any_block()) {
        let text = serde_json::to_string(&block).unwrap();
        prop_assert_eq!(serde_json::from_str::<Block>(&text).unwrap(), block);
    }

    #[test]
    fn any_message_reads_back_as_it_was(message in any_assistant()) {
        let message = Message::from(message);
        let text = serde_json::to_string(&message).unwrap();
        prop_assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }
}
