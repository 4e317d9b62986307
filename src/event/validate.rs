//! The rules of events: the fill matrix, the shape of a step, the pairing of calls and results.

use std::borrow::Cow;
use std::collections::HashSet;
use std::str::FromStr;

use super::{Body, Event, Field, InvalidEvent, Kind, PairingError, Profile, Rule, StepDone};
use crate::content::Message;
use crate::identity::ToolExecutionId;

/// What the fill matrix says of one coordinate.
#[derive(Clone, Copy)]
enum Fill {
    Set,
    Zero,
    Free,
}

/// What a profile says of loop, turn and step; the session is always set.
fn matrix(profile: Profile, for_session: bool) -> (Fill, Fill, Fill) {
    use Fill::{Free, Set, Zero};
    match profile {
        Profile::Session => (Zero, Zero, Zero),
        Profile::Loop => (Set, Zero, Zero),
        Profile::Turn => (Set, Set, Zero),
        Profile::InputCancelled => (Set, Free, Zero),
        Profile::Gate if for_session => (Free, Free, Free),
        // Any resolver but the session gets the strictest profile: an unknown one frees nothing.
        Profile::Step | Profile::Tool | Profile::Gate => (Set, Set, Set),
        Profile::Host => (Free, Free, Free),
    }
}

/// Checks an event against all rules and reports the first that it breaks. The order of checks is
/// event id, session, loop, turn, step, step without turn, tool execution, body.
///
/// # Errors
/// [`InvalidEvent`] with the field and the rule.
pub fn validate(event: &Event) -> Result<(), InvalidEvent> {
    let kind = event.kind();
    let at = &event.header.coordinates;
    let broken = |field, rule| Err(InvalidEvent::new(kind, field, rule));
    if event.header.event_id.is_nil() {
        return broken(Field::EventId, Rule::MustBeSet);
    }
    if at.session.is_nil() {
        return broken(Field::SessionId, Rule::MustBeSet);
    }
    let (for_loop, for_turn, for_step) = matrix(kind.profile(), is_session_gate(&event.body));
    for (fill, is_nil, field) in [
        (for_loop, at.loop_id.is_nil(), Field::LoopId),
        (for_turn, at.turn.is_nil(), Field::TurnId),
        (for_step, at.step.is_nil(), Field::StepId),
    ] {
        match fill {
            Fill::Set if is_nil => return broken(field, Rule::MustBeSet),
            Fill::Zero if !is_nil => return broken(field, Rule::MustBeZero),
            _ => {}
        }
    }
    if !at.step.is_nil() && at.turn.is_nil() {
        return broken(Field::TurnId, Rule::MustBeSet);
    }
    // A host's turn must name its loop, or no fold could say where it belongs.
    if kind.profile() == Profile::Host && !at.turn.is_nil() && at.loop_id.is_nil() {
        return broken(Field::LoopId, Rule::MustBeSet);
    }
    if kind.profile() == Profile::Tool && tool_execution(&event.body).is_nil() {
        return broken(Field::ToolExecutionId, Rule::MustBeSet);
    }
    match &event.body {
        Body::StepDone(step) if shape(step).is_err() => broken(Field::Messages, Rule::Invalid),
        Body::HostEvent(host) if host.name.is_empty() => broken(Field::Name, Rule::MustBeSet),
        Body::Forked(forked) if forked.parent.is_nil() => broken(Field::Parent, Rule::MustBeSet),
        _ => Ok(()),
    }
}

fn is_session_gate(body: &Body) -> bool {
    match body {
        Body::GateOpened(opened) => opened.gate.resolver.is_session(),
        Body::GateResolved(resolved) => resolved.resolver.is_session(),
        _ => false,
    }
}

fn tool_execution(body: &Body) -> ToolExecutionId {
    match body {
        Body::ToolCallStarted(body) => body.tool_execution_id,
        Body::ToolCallCompleted(body) => body.tool_execution_id,
        Body::PermissionRequested(body) => body.tool_execution_id,
        Body::PermissionDecided(body) => body.tool_execution_id,
        Body::UserInputRequested(body) => body.tool_execution_id,
        Body::ToolIntent(body) => body.tool_execution_id,
        Body::ToolIntentSettled(body) => body.tool_execution_id,
        _ => ToolExecutionId::nil(),
    }
}

/// One assistant message, then tool results only; the error is the index that breaks it.
fn shape(step: &StepDone) -> Result<(), usize> {
    if !matches!(step.messages.first(), Some(Message::Assistant(_))) {
        return Err(0);
    }
    let mut others = step.messages.iter().enumerate().skip(1);
    match others.find(|(_, message)| !matches!(message, Message::ToolResult(_))) {
        Some((index, _)) => Err(index),
        None => Ok(()),
    }
}

/// Checks that every tool call of a step has exactly one result, in the order of calls, and that the
/// calls' ids are not empty and unique within the step. They may repeat in other steps.
///
/// Whoever appends a step checks this first. The codecs do not, so that what other engines wrote can
/// still be read.
///
/// # Errors
/// [`PairingError`], the first that applies.
pub fn check_pairing(step: &StepDone) -> Result<(), PairingError> {
    shape(step).map_err(|index| PairingError::Shape { index })?;
    let mut ids: HashSet<&str> = HashSet::new();
    let calls: Vec<&str> = step
        .assistant()
        .into_iter()
        .flat_map(|message| message.tool_uses())
        .map(|call| call.id.as_str())
        .collect();
    for (index, id) in calls.iter().enumerate() {
        if id.is_empty() {
            return Err(PairingError::EmptyId { index });
        }
        if !ids.insert(id) {
            return Err(PairingError::DuplicateId {
                id: (*id).to_owned(),
            });
        }
    }
    let results: Vec<&str> = step
        .results()
        .map(|result| result.tool_use_id.as_str())
        .collect();
    for id in &results {
        // Each result takes its call out, so a second one for it finds none.
        if !ids.remove(id) {
            return Err(PairingError::UnexpectedResult {
                id: (*id).to_owned(),
            });
        }
    }
    if let Some(id) = calls.iter().find(|id| ids.contains(*id)) {
        return Err(PairingError::MissingResult {
            id: (*id).to_owned(),
        });
    }
    let mut pairs = calls.iter().zip(&results).enumerate();
    match pairs.find(|(_, (want, got))| want != got) {
        Some((index, (want, got))) => Err(PairingError::OutOfOrder {
            index,
            want: (*want).to_owned(),
            got: (*got).to_owned(),
        }),
        None => Ok(()),
    }
}

/// A kind by its name. Another name is refused as [`Field::Type`], never guessed.
impl FromStr for Kind {
    type Err = InvalidEvent;

    fn from_str(name: &str) -> Result<Self, InvalidEvent> {
        Self::from_name(name).ok_or_else(|| InvalidEvent {
            event: Cow::Owned(name.to_owned()),
            field: Field::Type,
            rule: Rule::UnknownType,
        })
    }
}
