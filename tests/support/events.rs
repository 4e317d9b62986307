//! Events for tests: one full sample of each kind, and strategies over all enduring kinds.
//! Include it with `#[path = "support/events.rs"] mod events;`.

#![allow(dead_code, reason = "each test binary uses a part")]

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::Union;
use stepwell::content::{
    AssistantMessage, Audio, Block, Document, Image, Message, RawJson, Source, Thinking,
    ToolResult, ToolResultMessage, ToolUse, Usage, UserMessage,
};
use stepwell::event::*;
use stepwell::identity::*;

pub(crate) const SESSION: &str = "11111111-1111-4111-8111-111111111111";

pub(crate) fn id<I: From<[u8; 16]>>(byte: u8) -> I {
    I::from([byte; 16])
}

pub(crate) fn raw(text: &str) -> RawJson {
    RawJson::parse(text).unwrap()
}

/// A valid header for a kind: the coordinates that its profile asks for.
pub(crate) fn header(kind: Kind) -> Header {
    let session = Coordinates::session(SESSION.parse().unwrap());
    let in_turn = session.in_loop(id(2)).in_turn(id(3));
    let coordinates = match kind.profile() {
        Profile::Session => session,
        Profile::Loop => session.in_loop(id(2)),
        Profile::Turn | Profile::InputCancelled => in_turn,
        Profile::Step | Profile::Tool | Profile::Gate | Profile::Host => in_turn.in_step(id(4)),
    };
    Header {
        event_id: id(5),
        created_at: Some(Timestamp::new(1_796_000_000, 123_456_789).unwrap()),
        ..Header::at(coordinates)
    }
}

/// A valid event of each kind with all its fields set, also of the live kinds.
pub(crate) fn sample(kind: Kind) -> Event {
    let user = || UserMessage::text("list the files");
    let error = ErrorProjection {
        kind: ErrorKind::ToolLimit,
        message: "51 of 50".into(),
        model_facing: Some("try again".into()),
    };
    let body: Body = match kind {
        Kind::SessionStarted => SessionStarted {
            title: Some("a title".into()),
            labels: [("team".to_owned(), "core".to_owned())].into(),
            config: Some(raw(r#"{"agent_kind":"demo"}"#)),
            manifest: Some(raw(r#"{"schema_version":3}"#)),
        }
        .into(),
        Kind::SessionActive => SessionActive {}.into(),
        Kind::SessionIdle => SessionIdle {}.into(),
        Kind::SessionStopped => SessionStopped {}.into(),
        Kind::RestoreStarted => RestoreStarted {}.into(),
        Kind::RestoreDone => RestoreDone {}.into(),
        Kind::RestoreErrored => RestoreErrored { error }.into(),
        Kind::Forked => Forked {
            parent: id(9),
            at: 12,
        }
        .into(),
        Kind::SessionChanged => SessionChanged {
            title: Some("another title".into()),
            labels: [
                ("team".to_owned(), Some("edge".to_owned())),
                ("old".to_owned(), None),
            ]
            .into(),
            host: Some(raw(r#"{"a":1e400,"A":"\ud83d"}"#)),
        }
        .into(),
        Kind::LoopStarted => LoopStarted {
            spec: Some(raw(r#"{"a":1,"A":2}"#)),
            runtime: Some(raw("{}")),
            agent_runtime: Some(raw("null")),
            parent_tool_use_id: "call_7".into(),
            foreign_sid: "f".into(),
            initial_mode: "m".into(),
            initial_request_id: id(8),
            display_name: "Helper".into(),
            description: "two\nlines".into(),
        }
        .into(),
        Kind::LoopIdle => LoopIdle {}.into(),
        Kind::ContextCompacted => ContextCompacted {
            summary: user(),
            keep_from: 40,
            reason: "full".into(),
        }
        .into(),
        Kind::Rewound => Rewound {
            to: 3,
            reason: "undo".into(),
        }
        .into(),
        Kind::TurnStarted => TurnStarted {
            turn_index: 1,
            message: user(),
        }
        .into(),
        Kind::TurnFoldedInto => TurnFoldedInto {
            turn_index: 1,
            message: user(),
        }
        .into(),
        Kind::TurnDone => TurnDone {
            turn_index: 1,
            message: AssistantMessage::text("two files"),
            usage: Some(Usage {
                output_tokens: 1,
                reasoning_tokens: 9,
                ..Usage::default()
            }),
        }
        .into(),
        Kind::TurnFailed => TurnFailed {
            turn_index: 2,
            error,
        }
        .into(),
        Kind::TurnInterrupted => TurnInterrupted {
            turn_index: 3,
            reason: Some(InterruptReason::Restart),
        }
        .into(),
        Kind::TurnRejected => TurnRejected {
            reason: RejectReason::ShuttingDown,
        }
        .into(),
        Kind::InputQueued => InputQueued {}.into(),
        Kind::InputCancelled => InputCancelled {
            turn_index: 1,
            reason: CancelReason::Failed,
            message: Some(user()),
        }
        .into(),
        Kind::TokenDelta => TokenDelta {
            turn_index: 1,
            chunk: Chunk::Text {
                index: 0,
                text: "t".into(),
            },
        }
        .into(),
        Kind::StepDone => step().into(),
        Kind::ToolCallStarted => ToolCallStarted {
            tool_execution_id: id(6),
            tool_name: "List".into(),
            summary: ".".into(),
        }
        .into(),
        Kind::ToolCallCompleted => ToolCallCompleted {
            tool_execution_id: id(6),
            is_error: false,
            result_preview: "a.txt".into(),
        }
        .into(),
        Kind::PermissionRequested => PermissionRequested {
            tool_execution_id: id(6),
            request: raw(r#"{"tool_name":"Bash","command":"ls"}"#),
        }
        .into(),
        Kind::PermissionDecided => PermissionDecided {
            tool_execution_id: id(6),
            gate_id: id(7),
            effect: Effect::Deny,
            reason: "structural".into(),
            subject: Some(raw(r#"{"tool":"Bash"}"#)),
            audit: Some(Audit {
                kind: "permission".into(),
                data: Some(raw(r#"{"x":[1.50]}"#)),
            }),
        }
        .into(),
        Kind::UserInputRequested => UserInputRequested {
            tool_execution_id: id(6),
            question: "Which one?".into(),
            choices: vec!["a".into(), String::new()],
        }
        .into(),
        Kind::GateOpened => GateOpened { gate: gate() }.into(),
        Kind::GateResolved => GateResolved {
            gate_id: id(7),
            resolver: Resolver::for_loop(),
            reason: "answered".into(),
            action: "Approve".into(),
            source: Some(AnswerSource {
                kind: "user".into(),
                reason: "r".into(),
            }),
            audit: Some(Audit {
                kind: "permission".into(),
                data: None,
            }),
            answer: Some(raw(r#"{"text":"\ud83d"}"#)),
        }
        .into(),
        Kind::ToolIntent => ToolIntent {
            tool_execution_id: id(6),
            call_id: "call-1".into(),
            tool_name: "Bash".into(),
            input_preview: r#"{"command":"rm"#.into(),
            input_bytes: 120,
        }
        .into(),
        Kind::ToolIntentSettled => ToolIntentSettled {
            tool_execution_id: id(6),
            note: "looked: it was not run".into(),
        }
        .into(),
        Kind::HostEvent => HostEvent {
            name: "index-updated".into(),
            version: 2,
            data: raw(r#"{"n":1e400,"N":-0.0}"#),
            optional: true,
        }
        .into(),
        other => panic!("no sample of {other}"),
    };
    Event::new(header(kind), body)
}

/// A step with two calls and their results.
pub(crate) fn step() -> StepDone {
    let assistant = AssistantMessage::text("Looking.")
        .with_tool_use("call-1", "List", raw(r#"{"path":"."}"#))
        .with_tool_use("call-2", "Read", raw("{}"))
        .with_usage(Usage {
            input_tokens: 120,
            output_tokens: 18,
            ..Usage::default()
        });
    let results = vec![
        ToolResultMessage::text("call-1", "a.txt\nb.txt"),
        ToolResultMessage::error("call-2", "arguments were not valid JSON"),
    ];
    StepDone::new(assistant, results)
}

fn gate() -> Gate {
    Gate {
        id: id(7),
        kind: "permission".into(),
        resolver: Resolver::for_loop(),
        blocks: "tool_call".into(),
        effect: "resume".into(),
        criticality: "critical".into(),
        subject: Some(raw(r#"{"tool_use_id":"call-1"}"#)),
        prompt: Some(Prompt {
            title: "Allow?".into(),
            body: "run ls".into(),
            controls: vec![Control {
                action: "Approve".into(),
                label: "Yes".into(),
            }],
            fields: None,
        }),
        response_policy: Some(raw(r#"{"timeout":300000000000}"#)),
        restorable: true,
        payload: Some(raw(r#"{"k":1,"K":2}"#)),
    }
}

/// Opaque JSON, with all that is known to break stores.
pub(crate) fn any_raw() -> impl Strategy<Value = RawJson> {
    let nasty = prop::sample::select(vec![
        "{}",
        "null",
        "[]",
        "1",
        r#""s""#,
        "1e400",
        "-0.0",
        "18446744073709551615",
        "3.14159265358979323846264338327950288",
        r#"{"path":1,"Path":2,"path":3}"#,
        r#"{"s":"\ud83d","k\u006bk":"\u0000"}"#,
        "{ \"a\" :\t[ 1 , 2 ],\n\"b\": \"x  y\" }",
        r#"{"type":"StepDone","v":9,"event_id":1,"cause":2,"visibility":7}"#,
        "\"\u{2028}\u{feff}\u{10ffff}\"",
        r#"[[[[[[[[[[[[[[[[[[[[{"deep":true}]]]]]]]]]]]]]]]]]]]]"#,
    ])
    .prop_map(raw);
    let deep = (1_usize..3000).prop_map(|depth| {
        RawJson::parse(format!("{}{}", "[".repeat(depth), "]".repeat(depth))).unwrap()
    });
    let object = btree_map(any_text(), any::<i64>(), 0..4)
        .prop_map(|map| RawJson::from_serialize(&map).unwrap());
    Union::new_weighted(vec![
        (6, nasty.boxed()),
        (1, deep.boxed()),
        (3, object.boxed()),
    ])
}

/// Text with quotes, controls, line separators and everything else that UTF-8 holds.
pub(crate) fn any_text() -> impl Strategy<Value = String> {
    let nasty = prop::sample::select(vec![
        "",
        "\"\\/",
        "\u{0}\u{1f}\u{7f}",
        "\u{2028}\u{feff}\u{10ffff}",
        "<&>",
    ]);
    prop_oneof![2 => nasty.prop_map(str::to_owned), 3 => any::<String>(), 2 => "[a-z ]{1,12}"]
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

pub(crate) fn any_block() -> impl Strategy<Value = Block> {
    let leaf = prop_oneof![
        any_text().prop_map(Block::text),
        any_text().prop_map(Block::refusal),
        (
            any_text(),
            any_text(),
            any_text(),
            option::of(any_raw()),
            any_text()
        )
            .prop_map(
                |(thinking, signature, signature_format, provider_state, provider_state_format)| {
                    Block::Thinking(Thinking {
                        thinking,
                        signature,
                        signature_format,
                        provider_state,
                        provider_state_format,
                    })
                }
            ),
        (
            any_text(),
            any_text(),
            any_raw(),
            option::of(any_raw()),
            any_text()
        )
            .prop_map(|(id, name, input, provider_state, provider_state_format)| {
                Block::ToolUse(ToolUse {
                    id,
                    name,
                    input,
                    provider_state,
                    provider_state_format,
                })
            }),
        (any_text(), any_text(), any_bytes()).prop_map(|(media_type, url, data)| Block::Image(
            Image {
                media_type,
                source: Source { url, data }
            }
        )),
        (any_text(), any_bytes())
            .prop_map(|(media_type, data)| Block::Audio(Audio { media_type, data })),
        (any_text(), any_text(), any_bytes(), any_text()).prop_map(
            |(media_type, name, data, text)| {
                Block::Document(Document {
                    media_type,
                    name,
                    data,
                    text,
                })
            }
        ),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        (any_text(), vec(inner, 0..3), any::<bool>()).prop_map(
            |(tool_use_id, content, is_error)| {
                Block::ToolResult(ToolResult {
                    tool_use_id,
                    content,
                    is_error,
                })
            },
        )
    })
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    vec(any_block(), 0..4)
}

fn any_usage() -> impl Strategy<Value = Usage> {
    any::<[u64; 5]>().prop_map(|[input, output, read, creation, reasoning]| Usage {
        input_tokens: input,
        output_tokens: output % 3,
        cache_read_tokens: read % 2,
        cache_creation_tokens: creation % 2,
        reasoning_tokens: reasoning,
    })
}

pub(crate) fn any_user() -> impl Strategy<Value = UserMessage> {
    blocks().prop_map(|blocks| UserMessage { blocks })
}

pub(crate) fn any_assistant() -> impl Strategy<Value = AssistantMessage> {
    (blocks(), option::of(any_usage()))
        .prop_map(|(blocks, usage)| AssistantMessage { blocks, usage })
}

fn any_result() -> impl Strategy<Value = Message> {
    (any_text(), any::<bool>(), blocks()).prop_map(|(tool_use_id, is_error, blocks)| {
        Message::ToolResult(ToolResultMessage {
            tool_use_id,
            is_error,
            blocks,
        })
    })
}

/// A step of valid shape; its calls and results need not pair.
pub(crate) fn any_step() -> impl Strategy<Value = StepDone> {
    (any_assistant(), vec(any_result(), 0..3)).prop_map(|(assistant, results)| {
        let first = std::iter::once(Message::Assistant(assistant));
        StepDone {
            messages: first.chain(results).collect(),
        }
    })
}

fn any_error() -> impl Strategy<Value = ErrorProjection> {
    let kinds = vec![
        ErrorKind::EmptyResponse,
        ErrorKind::TurnPanic,
        ErrorKind::NotCommitted,
        ErrorKind::Unknown,
    ];
    (
        prop::sample::select(kinds),
        any_text(),
        option::of(any_text()),
    )
        .prop_map(|(kind, message, model_facing)| ErrorProjection {
            kind,
            message,
            model_facing,
        })
}

/// A body of an enduring kind: the rich ones at random, the others as their sample.
pub(crate) fn any_body() -> impl Strategy<Value = Body> {
    let samples: Vec<Kind> = Kind::ALL
        .iter()
        .copied()
        .filter(|kind| kind.class().is_enduring())
        .collect();
    prop_oneof![
        4 => any_step().prop_map(Body::from),
        3 => prop::sample::select(samples).prop_map(|kind| sample(kind).body),
        1 => (any::<u64>(), any_user())
            .prop_map(|(turn_index, message)| TurnStarted { turn_index, message }.into()),
        1 => (any::<u64>(), any_user())
            .prop_map(|(turn_index, message)| TurnFoldedInto { turn_index, message }.into()),
        1 => (any::<u64>(), any_assistant(), option::of(any_usage()))
            .prop_map(|(turn_index, message, usage)| TurnDone { turn_index, message, usage }.into()),
        1 => (any::<u64>(), any_error())
            .prop_map(|(turn_index, error)| TurnFailed { turn_index, error }.into()),
        1 => (any::<u64>(), option::of(any_user())).prop_map(|(turn_index, message)| {
            InputCancelled { turn_index, reason: CancelReason::Interrupted, message }.into()
        }),
        1 => (any_user(), any::<u64>(), any_text()).prop_map(|(summary, keep_from, reason)| {
            ContextCompacted { summary, keep_from, reason }.into()
        }),
        1 => ("[a-z]{1,9}", any::<u32>(), any_raw(), any::<bool>()).prop_map(
            |(name, version, data, optional)| HostEvent { name, version, data, optional }.into()
        ),
        1 => (option::of(any_raw()), any_text()).prop_map(|(spec, description)| {
            LoopStarted { spec, description, ..LoopStarted::default() }.into()
        }),
        1 => (option::of(any_raw()), option::of(any_raw()), any_text()).prop_map(
            |(payload, data, reason)| GateResolved {
                gate_id: id(7),
                reason,
                answer: payload,
                audit: Some(Audit { kind: String::new(), data }),
                ..GateResolved::default()
            }.into()
        ),
        1 => option::of(any_raw()).prop_map(|payload| {
            GateOpened { gate: Gate { payload, ..Gate::default() } }.into()
        }),
    ]
}

fn any_cause() -> impl Strategy<Value = Cause> {
    any::<[[u8; 16]; 3]>().prop_map(|[command, event, session]| Cause {
        coordinates: Coordinates::session(SessionId::from_bytes(session)),
        command: CommandId::from_bytes(command),
        event: EventId::from_bytes(event),
        agency: Agency::User,
        ..Cause::default()
    })
}

/// A valid event of any enduring kind.
pub(crate) fn any_event() -> impl Strategy<Value = Event> {
    let time = option::of((-62_167_219_200_i64..=253_402_300_799, 0_u32..1_000_000_000));
    (
        any_body(),
        any_text(),
        option::of(any_cause()),
        time,
        any::<bool>(),
        1_u8..255,
    )
        .prop_map(|(body, name, cause, time, internal, seed)| {
            let mut header = header(body.kind());
            header.event_id = id(seed);
            header.agent_name = name.into();
            header.cause = cause.unwrap_or_default();
            header.created_at = time.map(|(secs, nanos)| Timestamp::new(secs, nanos).unwrap());
            header.visibility = if internal {
                Visibility::Internal
            } else {
                Visibility::Public
            };
            Event::new(header, body)
        })
}
