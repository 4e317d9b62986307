//! The flat JSON of an event, for import, export and the command line: header keys, body keys, then
//! `type` and `v`, in one object on one line.
//!
//! Content is written in `snake_case`; on reading, the keys that other engines write (`Text`, `ID`,
//! `Input` and so on, in exactly that case) are accepted too. White space inside opaque JSON that
//! means nothing is dropped on writing, so that an event is one line; all else in it stays byte for
//! byte. A record ([`encode_record`](super::encode_record)) keeps it all.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::body::{self, AttributionFields, Bounded};
use super::{
    DecodeError, Decoded, EncodeError, Event, Header, Key, Kind, LimitExceeded, Limits,
    decode_record, encode_record, kind, limits, validate,
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
    let tag = format!(r#"{{"type":"{}","v":{VERSION}}}"#, event.kind().name());
    let bytes = without_space(write(event, &tag, limits.record_bytes, &limits)?);
    accepted(event.kind(), bytes, &limits)
}

/// The flat form of an event, with white space as opaque JSON has it.
fn write(event: &Event, tag: &str, max: u32, limits: &Limits) -> Result<Vec<u8>, EncodeError> {
    let kind = event.kind();
    body::check_before_encoding(event, kind.is_on_wire(), limits)?;
    let at = &event.header.coordinates;
    let stamps = Stamps {
        created_at: event.header.created_at,
        event_id: event.header.event_id,
        session_id: at.session,
        loop_id: at.loop_id,
        turn_id: at.turn,
        step_id: at.step,
    };
    let mut out = Bounded::new(max);
    body::write_wire(event, &mut out, &stamps, tag.as_bytes())?;
    if out.written > max as usize {
        return Err(LimitExceeded::record(&event.body, out.written, max).into());
    }
    Ok(out.bytes)
}

/// The text, if it can be read back (P10).
fn accepted(kind: Kind, bytes: Vec<u8>, limits: &Limits) -> Result<String, EncodeError> {
    body::scan_object(&bytes, limits).map_err(|error| match error {
        DecodeError::Json(error) => EncodeError::NotAcceptable(error),
        _ => EncodeError::Unencodable { kind },
    })?;
    String::from_utf8(bytes).map_err(|_| EncodeError::Unencodable { kind })
}

/// Reads an event from its wire form.
///
/// # Errors
/// [`DecodeError`], in this order: size, UTF-8 and JSON with repeated keys, `type` and `v`, version,
/// type, body, visibility, rules, limits. Nothing is skipped or filled in; unknown keys are ignored.
pub fn from_wire(bytes: &[u8]) -> Result<Event, DecodeError> {
    let limits = Limits::default();
    body::check_size(bytes.len(), &limits)?;
    read(bytes, &limits)
}

fn read(bytes: &[u8], limits: &Limits) -> Result<Event, DecodeError> {
    let (text, facts) = body::scan_object(bytes, limits)?;
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
    limits::check(&event.body, limits)?;
    Ok(event)
}

/// One line of an export: the wire form, and what a record has beside its event. Other readers of
/// the form pass over the keys that they do not know.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) event: Event,
    /// The place in the session that the line was written from.
    pub(crate) seq: Option<u64>,
    /// The host's idempotency key.
    pub(crate) key: Option<Key>,
}

/// The keys that only lines of an export have.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Extras {
    journal_seq: Option<u64>,
    idempotency_key: Option<String>,
    /// The record in base64, where opaque JSON has line breaks: they would end the line, and are left
    /// out of the flat form.
    record: Option<String>,
}

/// What a line may have beside the bytes of its record: ids and stamps in the flat form.
const FLAT: u32 = 4096;

/// Bytes of a line that can be read at most: the flat form and the record in base64.
pub(crate) fn max_line(limits: &Limits) -> usize {
    (limits.record_bytes as usize)
        .saturating_mul(3)
        .saturating_add(2 * FLAT as usize)
}

/// Encodes an event as one line of an export; all of it comes back byte for byte.
pub(crate) fn to_line(
    event: &Event,
    seq: u64,
    key: Option<&Key>,
    limits: &Limits,
) -> Result<String, EncodeError> {
    let kind = event.kind();
    let unencodable = |_: serde_json::Error| EncodeError::Unencodable { kind };
    let key_text = match key {
        Some(key) => {
            let text = serde_json::to_string(key.as_str()).map_err(unencodable)?;
            format!(r#""idempotency_key":{text},"#)
        }
        None => String::new(),
    };
    let tag = |record: &str| {
        let name = kind.name();
        format!(r#"{{"journal_seq":{seq},{key_text}{record}"type":"{name}","v":{VERSION}}}"#)
    };
    let max = limits.record_bytes.saturating_add(FLAT);
    let mut bytes = write(event, &tag(""), max, limits)?;
    let breaks = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if bytes.iter().any(breaks) {
        // In JSON they stand between tokens only, never in strings.
        let record = STANDARD.encode(encode_record(event, key, limits)?);
        let tag = tag(&format!(r#""record":"{record}","#));
        bytes = write(event, &tag, max.saturating_mul(3), limits)?;
        bytes.retain(|byte| !breaks(byte));
    }
    accepted(kind, bytes, limits)
}

/// Reads a line of an export, or of another engine's events.
pub(crate) fn from_line(bytes: &[u8], limits: &Limits) -> Result<Line, DecodeError> {
    if bytes.len() > max_line(limits) {
        let max = u32::try_from(max_line(limits)).unwrap_or(u32::MAX);
        return Err(LimitExceeded::new(super::LimitKind::RecordBytes, bytes.len(), max).into());
    }
    let event = read(bytes, limits)?;
    let name = event.kind().name();
    let malformed = |detail: &str| DecodeError::Body {
        kind: name,
        detail: detail.to_owned(),
    };
    // The scan of `read` has accepted the text.
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("no text"))?;
    let extras: Extras = body::parse(name, text)?;
    let key = extras.idempotency_key.map(Key::new).transpose();
    let key = key.map_err(|error| malformed(&error.to_string()))?;
    let Some(record) = extras.record else {
        let seq = extras.journal_seq;
        return Ok(Line { event, seq, key });
    };
    let record = STANDARD
        .decode(record)
        .map_err(|_| malformed("its record is no base64"))?;
    let session = event.header.coordinates.session;
    let whole = match decode_record(session, &record, limits)? {
        Decoded::Event { event, .. } => event,
        Decoded::Outside(_) | Decoded::Skipped { .. } => {
            return Err(malformed("its record is of another kind"));
        }
    };
    // One line must not say two things.
    let flat = |event: &Event| write(event, "{}", u32::MAX, limits).map(without_space);
    match flat(&whole) == flat(&event) {
        true => Ok(Line {
            event: whole,
            seq: extras.journal_seq,
            key,
        }),
        false => Err(malformed("its record says something else")),
    }
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
