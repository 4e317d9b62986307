//! The flat JSON of an event, for import, export and the command line: header keys, body keys, then
//! `type` and `v`, in one object on one line.
//!
//! Content is written in `snake_case`; on reading, the keys that other engines write (`Text`, `ID`,
//! `Input` and so on, in exactly that case) are accepted too. White space inside opaque JSON that
//! means nothing is dropped on writing, so that an event is one line; all else in it stays byte for
//! byte. A record ([`encode_record`](super::encode_record)) keeps it all.

use serde::{Deserialize, Serialize};

use super::body::{self, AttributionFields, Bounded};
use super::{
    DecodeError, EncodeError, Event, Header, Kind, LimitExceeded, Limits, kind, limits, validate,
};
use crate::identity::{Coordinates, EventId, LoopId, SessionId, StepId, Timestamp, TurnId};

/// The version of the wire form.
const VERSION: u64 = 1;

/// The stamps and ids of a header, with the keys they have on the wire.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Stamps {
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "EventId::is_nil")]
    event_id: EventId,
    #[serde(skip_serializing_if = "SessionId::is_nil")]
    session_id: SessionId,
    #[serde(skip_serializing_if = "LoopId::is_nil")]
    loop_id: LoopId,
    #[serde(skip_serializing_if = "TurnId::is_nil")]
    turn_id: TurnId,
    #[serde(skip_serializing_if = "StepId::is_nil")]
    step_id: StepId,
}

/// What decides how the rest is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Probe {
    r#type: Option<String>,
    v: Option<u64>,
}

/// Encodes an event as one line of JSON.
///
/// # Errors
/// [`EncodeError`], in this order: live event, broken rule, limits, size, not readable. No text is
/// given out then.
pub fn to_wire(event: &Event) -> Result<String, EncodeError> {
    let limits = Limits::default();
    let kind = event.kind();
    body::check_before_encoding(event, kind.is_on_wire(), &limits)?;
    let at = &event.header.coordinates;
    let stamps = Stamps {
        created_at: event.header.created_at,
        event_id: event.header.event_id,
        session_id: at.session,
        loop_id: at.loop_id,
        turn_id: at.turn,
        step_id: at.step,
    };
    let tag = format!(r#"{{"type":"{}","v":{VERSION}}}"#, kind.name());
    let mut out = Bounded::new(limits.record_bytes);
    body::write_wire(event, &mut out, &stamps, tag.as_bytes())?;
    if out.written > limits.record_bytes as usize {
        return Err(LimitExceeded::record(&event.body, out.written, limits.record_bytes).into());
    }
    let bytes = without_space(out.bytes);
    body::scan_object(&bytes, &limits).map_err(|error| match error {
        DecodeError::Json(error) => EncodeError::NotAcceptable(error),
        _ => EncodeError::Unencodable { kind },
    })?;
    let text = String::from_utf8(bytes).map_err(|_| EncodeError::Unencodable { kind })?;
    Ok(text)
}

/// Reads an event from its wire form.
///
/// # Errors
/// [`DecodeError`], in this order: size, UTF-8 and JSON with repeated keys, `type` and `v`, version,
/// type, body, visibility, rules, limits. Nothing is skipped or filled in; unknown keys are ignored.
pub fn from_wire(bytes: &[u8]) -> Result<Event, DecodeError> {
    let limits = Limits::default();
    body::check_size(bytes.len(), &limits)?;
    let (text, facts) = body::scan_object(bytes, &limits)?;
    let probe: Probe = body::parse("event", text)?;
    let version = probe.v.unwrap_or(VERSION);
    if version > VERSION {
        return Err(DecodeError::UnsupportedSchema { version });
    }
    let name = probe.r#type.unwrap_or_default();
    let kind = match Kind::from_name(&name) {
        Some(kind) if kind.is_on_wire() => kind,
        _ => return Err(DecodeError::UnknownEventType { name }),
    };
    let body = kind::read_body(kind, text)?;
    let stamps: Stamps = body::parse(kind.name(), text)?;
    let mut header = Header {
        coordinates: Coordinates {
            session: stamps.session_id,
            loop_id: stamps.loop_id,
            turn: stamps.turn_id,
            step: stamps.step_id,
        },
        event_id: stamps.event_id,
        created_at: stamps.created_at,
        ..Header::default()
    };
    if facts.has_header_keys {
        body::parse::<AttributionFields>(kind.name(), text)?.fill(kind, &mut header)?;
    }
    let event = Event { header, body };
    validate(&event)?;
    limits::check(&event.body, &limits)?;
    Ok(event)
}

/// Drops white space between the tokens of valid JSON. Ours writes none; opaque JSON may hold some.
fn without_space(mut bytes: Vec<u8>) -> Vec<u8> {
    let (mut in_string, mut escaped) = (false, false);
    bytes.retain(|byte| {
        if in_string {
            (in_string, escaped) = match byte {
                _ if escaped => (true, false),
                b'\\' => (true, true),
                b'"' => (false, false),
                _ => (true, false),
            };
            return true;
        }
        in_string = *byte == b'"';
        !matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
    });
    bytes
}
