//! The rules of events: classes, the fill matrix, the shape of a step, pairing.

use std::collections::BTreeSet;

use stepwell::content::{
    AssistantMessage, Block, Message, SystemMessage, ToolResultMessage, UserMessage,
};
use stepwell::event::*;
use stepwell::identity::*;

use crate::events::{header, id, raw, sample, step};

#[test]
fn kinds_have_one_code_and_one_name() {
    let codes: BTreeSet<u16> = Kind::ALL.iter().map(|kind| kind.code()).collect();
    assert_eq!((codes.len(), Kind::ALL.len()), (33, 33));
    for kind in Kind::ALL.iter().copied() {
        assert_eq!(Kind::from_code(kind.code()), Some(kind));
        assert_eq!(kind.name().parse(), Ok(kind));
        assert_eq!(sample(kind).kind(), kind);
        let name = match kind {
            Kind::SessionChanged => "session_changed".to_owned(),
            kind => format!("{kind:?}"),
        };
        assert_eq!(name, kind.name());
    }
    assert_eq!(Kind::from_code(0), None);
    let unknown = "StepFinished".parse::<Kind>().unwrap_err();
    assert_eq!(
        (unknown.field, unknown.rule),
        (Field::Type, Rule::UnknownType)
    );
    assert!("stepdone".parse::<Kind>().is_err());
}

#[test]
fn classes() {
    let of = |class| -> Vec<Kind> {
        Kind::ALL
            .iter()
            .copied()
            .filter(|kind| kind.class() == class)
            .collect()
    };
    assert_eq!(
        of(Class::Terminal),
        [Kind::TurnDone, Kind::TurnFailed, Kind::TurnInterrupted]
    );
    assert_eq!(
        of(Class::Ephemeral),
        [
            Kind::SessionActive,
            Kind::SessionIdle,
            Kind::LoopIdle,
            Kind::InputQueued,
            Kind::TokenDelta,
            Kind::ToolCallStarted,
            Kind::ToolCallCompleted,
        ]
    );
    assert!(
        of(Class::Terminal)
            .iter()
            .all(|kind| kind.ends_turn() && kind.class().is_enduring())
    );
    assert!(!Kind::StepDone.ends_turn() && Kind::StepDone.class().is_enduring());
}

#[test]
fn scopes() {
    for kind in Kind::ALL.iter().copied() {
        let is_session = matches!(kind.profile(), Profile::Session);
        let scope = if is_session {
            Scope::Session
        } else {
            Scope::Loop
        };
        assert_eq!(sample(kind).scope(), scope, "{kind}");
    }
    let mut host = sample(Kind::HostEvent);
    host.header.coordinates = Coordinates::session(id(1));
    assert_eq!(host.scope(), Scope::Session);
}

#[test]
fn events_are_erased_and_cast_back() {
    let event = Event::new(header(Kind::StepDone), step());
    let erased = event.clone().erase();
    assert_eq!(erased.body_as::<StepDone>(), Some(&event.body));
    assert_eq!(erased.body_as::<TurnDone>(), None);
    let back = erased.clone().downcast::<TurnDone>().unwrap_err();
    assert_eq!(*back, erased);
    assert_eq!(back.downcast::<StepDone>(), Ok(event));
}

fn broken(event: &Event) -> (Field, Rule) {
    let error = validate(event).expect_err("valid");
    assert_eq!(error.event, event.kind().name());
    (error.field, error.rule)
}

#[test]
fn samples_are_valid() {
    for kind in Kind::ALL.iter().copied() {
        assert_eq!(validate(&sample(kind)), Ok(()), "{kind}");
    }
}

/// The fill matrix, written out a second time: loop, turn and step as Required, Zero or free (-).
fn fill(profile: Profile) -> [char; 3] {
    match profile {
        Profile::Session => ['Z', 'Z', 'Z'],
        Profile::Loop => ['R', 'Z', 'Z'],
        Profile::Turn => ['R', 'R', 'Z'],
        Profile::InputCancelled => ['R', '-', 'Z'],
        Profile::Step | Profile::Tool | Profile::Gate => ['R', 'R', 'R'],
        Profile::Host => ['-', '-', '-'],
    }
}

#[test]
fn every_kind_obeys_the_fill_matrix_in_its_order() {
    use Field::{EventId as E, LoopId as L, SessionId as S, StepId as P, TurnId as T};
    for kind in Kind::ALL.iter().copied() {
        for bits in 0..32_u8 {
            let has = |bit: u8| bits & (1 << bit) != 0;
            let mut event = sample(kind);
            event.header.event_id = if has(0) { id(1) } else { EventId::nil() };
            event.header.coordinates = Coordinates {
                session: if has(1) { id(1) } else { SessionId::nil() },
                loop_id: if has(2) { id(1) } else { LoopId::nil() },
                turn: if has(3) { id(1) } else { TurnId::nil() },
                step: if has(4) { id(1) } else { StepId::nil() },
            };
            let [in_loop, in_turn, in_step] = fill(kind.profile());
            let rows = [
                ('R', has(0), E),
                ('R', has(1), S),
                (in_loop, has(2), L),
                (in_turn, has(3), T),
                (in_step, has(4), P),
            ];
            let first = rows
                .into_iter()
                .find_map(|(rule, is_set, field)| match (rule, is_set) {
                    ('R', false) => Some((field, Rule::MustBeSet)),
                    ('Z', true) => Some((field, Rule::MustBeZero)),
                    _ => None,
                });
            let orphan_step = (has(4) && !has(3)).then_some((T, Rule::MustBeSet));
            let orphan_turn = (kind.profile() == Profile::Host && has(3) && !has(2))
                .then_some((L, Rule::MustBeSet));
            let expected = first.or(orphan_step).or(orphan_turn);
            let got = validate(&event)
                .err()
                .map(|error| (error.field, error.rule));
            assert_eq!(got, expected, "{kind} with {bits:05b}");
        }
    }
}

#[test]
fn tool_events_need_their_execution() {
    let tools = [
        Body::from(ToolCallStarted::default()),
        ToolCallCompleted::default().into(),
        PermissionRequested {
            tool_execution_id: ToolExecutionId::nil(),
            request: raw("{}"),
        }
        .into(),
        PermissionDecided {
            gate_id: GateId::nil(),
            tool_execution_id: ToolExecutionId::nil(),
            effect: Effect::Approve,
            reason: String::new(),
            subject: None,
            audit: None,
        }
        .into(),
        UserInputRequested::default().into(),
    ];
    for body in tools {
        let event = Event::new(header(body.kind()), body);
        assert_eq!(broken(&event), (Field::ToolExecutionId, Rule::MustBeSet));
    }
}

#[test]
fn only_the_session_as_resolver_frees_a_gate_from_its_step() {
    for (resolver, is_free) in [
        ("session", true),
        ("loop", false),
        ("", false),
        ("Session", false),
        ("sessions", false),
        ("other", false),
    ] {
        let resolver = Resolver::named(resolver);
        let opened = GateOpened {
            gate: Gate {
                resolver: resolver.clone(),
                ..Gate::default()
            },
        };
        let resolved = GateResolved {
            resolver,
            ..GateResolved::default()
        };
        for body in [Body::from(opened), resolved.into()] {
            let mut event = Event::new(header(body.kind()), body);
            assert_eq!(validate(&event), Ok(()));
            event.header.coordinates = Coordinates::session(id(1));
            let expected = if is_free { Ok(()) } else { Err(Field::LoopId) };
            assert_eq!(validate(&event).map_err(|error| error.field), expected);
            // Also where all is free, a step needs its turn.
            event.header.coordinates.step = id(4);
            event.header.coordinates.loop_id = id(2);
            assert_eq!(broken(&event), (Field::TurnId, Rule::MustBeSet));
        }
    }
}

#[test]
fn bodies_have_rules_of_their_own() {
    let mut host = sample(Kind::HostEvent);
    let Body::HostEvent(body) = &mut host.body else {
        panic!()
    };
    body.name.clear();
    assert_eq!(broken(&host), (Field::Name, Rule::MustBeSet));
    let forked = Event::new(header(Kind::Forked), Body::from(Forked::default()));
    assert_eq!(broken(&forked), (Field::Parent, Rule::MustBeSet));
}

#[test]
fn identity_is_checked_before_the_body() {
    let mut event = Event::new(header(Kind::StepDone), Body::from(StepDone::default()));
    assert_eq!(broken(&event), (Field::Messages, Rule::Invalid));
    event.header.coordinates.step = StepId::nil();
    assert_eq!(broken(&event), (Field::StepId, Rule::MustBeSet));
}

fn assistant() -> Message {
    AssistantMessage::text("a").into()
}

fn result() -> Message {
    ToolResultMessage::text("c", "r").into()
}

#[test]
fn a_step_is_one_assistant_message_and_then_results_only() {
    let user = || Message::from(UserMessage::text("u"));
    let system = || Message::from(SystemMessage::text("s"));
    let empty = || Message::from(AssistantMessage::default());
    for (messages, is_valid) in [
        (vec![], false),
        (vec![assistant()], true),
        (vec![empty()], true),
        (vec![assistant(), result()], true),
        (vec![assistant(), result(), result()], true),
        (vec![empty(), ToolResultMessage::error("", "").into()], true),
        (vec![user()], false),
        (vec![system()], false),
        (vec![result()], false),
        (vec![result(), assistant()], false),
        (vec![user(), assistant()], false),
        (vec![assistant(), assistant()], false),
        (vec![assistant(), user()], false),
        (vec![assistant(), system()], false),
        (vec![assistant(), result(), assistant()], false),
        (vec![assistant(), result(), user()], false),
        (vec![assistant(), user(), result()], false),
    ] {
        let event = Event::new(
            header(Kind::StepDone),
            Body::from(StepDone {
                messages: messages.clone(),
            }),
        );
        let expected = if is_valid {
            Ok(())
        } else {
            Err((Field::Messages, Rule::Invalid))
        };
        assert_eq!(
            validate(&event).map_err(|error| (error.field, error.rule)),
            expected,
            "{messages:?}"
        );
    }
}

/// A step with calls and results of these ids.
fn pairing(calls: &[&str], results: &[&str]) -> Result<(), PairingError> {
    let message = calls
        .iter()
        .fold(AssistantMessage::text("t"), |message, id| {
            message.with_tool_use(*id, "T", raw("{}"))
        });
    let results = results
        .iter()
        .map(|id| ToolResultMessage::text(*id, "r"))
        .collect();
    check_pairing(&StepDone::new(message, results))
}

#[test]
fn calls_and_results_pair_one_to_one_in_call_order() {
    let id = |id: &str| id.to_owned();
    assert_eq!(pairing(&[], &[]), Ok(()));
    assert_eq!(pairing(&["a", "b", "c"], &["a", "b", "c"]), Ok(()));
    assert_eq!(
        pairing(&["a", ""], &["a", ""]),
        Err(PairingError::EmptyId { index: 1 })
    );
    assert_eq!(
        pairing(&["a", "b", "a"], &["a", "b", "a"]),
        Err(PairingError::DuplicateId { id: id("a") })
    );
    assert_eq!(
        pairing(&["a", "b"], &["a"]),
        Err(PairingError::MissingResult { id: id("b") })
    );
    assert_eq!(
        pairing(&["a", "b"], &[]),
        Err(PairingError::MissingResult { id: id("a") })
    );
    assert_eq!(
        pairing(&[], &["a"]),
        Err(PairingError::UnexpectedResult { id: id("a") })
    );
    assert_eq!(
        pairing(&["a"], &["a", "a"]),
        Err(PairingError::UnexpectedResult { id: id("a") })
    );
    assert_eq!(
        pairing(&["a"], &["A"]),
        Err(PairingError::UnexpectedResult { id: id("A") })
    );
    assert_eq!(
        pairing(&["a", "b", "c"], &["a", "c", "b"]),
        Err(PairingError::OutOfOrder {
            index: 1,
            want: id("b"),
            got: id("c")
        })
    );
}

#[test]
fn pairing_needs_the_shape_and_ignores_nested_results() {
    assert_eq!(
        check_pairing(&StepDone::default()),
        Err(PairingError::Shape { index: 0 })
    );
    let messages = vec![assistant(), UserMessage::text("u").into()];
    assert_eq!(
        check_pairing(&StepDone { messages }),
        Err(PairingError::Shape { index: 1 })
    );
    let nested = stepwell::content::ToolResult {
        tool_use_id: "x".into(),
        ..Default::default()
    };
    let message = AssistantMessage::default().with_block(Block::ToolResult(nested));
    assert_eq!(check_pairing(&StepDone::new(message, vec![])), Ok(()));
    // The codec takes what other engines wrote without pairs.
    let orphan = StepDone::new(
        AssistantMessage::text("t"),
        vec![ToolResultMessage::text("nobody", "r")],
    );
    assert!(to_wire(&Event::new(header(Kind::StepDone), orphan.into())).is_ok());
}

#[test]
fn pairing_of_many_calls_takes_no_quadratic_time() {
    let ids: Vec<String> = (0..9_000).map(|call| format!("call-{call}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let started = std::time::Instant::now();
    assert_eq!(pairing(&ids, &ids), Ok(()));
    assert!(started.elapsed().as_secs() < 5);
}
