//! The payload that the journal stores for an event.
//!
//! | offset | bytes | field | value |
//! |---|---|---|---|
//! | 0 | 1 | version | 1 |
//! | 1 | 1 | flags | bit 0: a reader that does not know the kind may skip the record; bit 1: the body stands outside; others 0 |
//! | 2 | 2 | header length H | little-endian, 1 to 512 |
//! | 4 | H | header | see below |
//! | 4 + H | rest | body | one JSON object, to the end of the payload; if it stands outside, its length (8 bytes, little-endian) and its SHA-256 (32 bytes) |
//!
//! The header is bincode 2 (`config::standard()`: little-endian, variable-length integers). An
//! integer below 251 is one byte; 251, 252, 253 introduce 2, 4, 8 bytes. A signed integer is zigzag
//! coded first (0, -1, 1, -2 become 0, 1, 2, 3). An option is one byte, 0 or 1, and the value after 1.
//!
//! | field | form |
//! |---|---|
//! | kind | integer, the code of [`Kind`] |
//! | loop, turn, step | option of 16 bytes each, absent for a nil id |
//! | event id | 16 bytes |
//! | time | option of seconds since the Unix epoch (signed integer) and nanoseconds (integer) |
//! | key | option of length in bytes (integer) and UTF-8 text |
//!
//! There is one encoding of a header: all integers are in their shortest form, and a reader refuses
//! others. The session is not in the payload: it stands in the journal's frame, and the caller hands
//! it in. The body holds `agent_name`, `cause` and `visibility` where they are not empty, then the
//! fields of the kind; opaque JSON stands in it byte for byte (P11).

use serde::{Deserialize, Serialize};

use super::body::{self, AttributionFields, Bounded};
use super::{
    Body, DecodeError, EncodeError, Event, Header, Key, Kind, LimitExceeded, LimitKind, Limits,
    Outside, StoredBody, kind, limits, validate,
};
use crate::identity::{Coordinates, EventId, LoopId, SessionId, StepId, Timestamp, TurnId};

const VERSION: u8 = 1;
const OPTIONAL: u8 = 1;
const OUTSIDE: u8 = 2;
/// Bytes before the header.
const PREFIX: usize = 4;
/// Bytes of a header at most; the longest one (all ids and a key of 256 bytes) has 348.
const MAX_HEADER: usize = 512;

const CODEC: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<MAX_HEADER>,
> = bincode::config::standard().with_limit::<MAX_HEADER>();

/// The header on disk. Plain on purpose: bincode can write, but not read, anything cleverer.
#[derive(Serialize, Deserialize)]
struct HeaderV1 {
    kind: u16,
    loop_id: Option<[u8; 16]>,
    turn: Option<[u8; 16]>,
    step: Option<[u8; 16]>,
    event_id: [u8; 16],
    time: Option<(i64, u32)>,
    key: Option<String>,
}

/// The header of a record, read without its body: what a scan needs.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordHeader<'a> {
    /// The code of the kind.
    pub code: u16,
    /// The kind, if this version knows it.
    pub kind: Option<Kind>,
    /// Whether a reader that does not know the kind may skip the record.
    pub optional: bool,
    /// The loop, nil when absent.
    pub loop_id: LoopId,
    /// The turn, nil when absent.
    pub turn: TurnId,
    /// The step, nil when absent.
    pub step: StepId,
    /// The event.
    pub event_id: EventId,
    /// When it was made.
    pub created_at: Option<Timestamp>,
    /// The host's idempotency key.
    pub key: Option<Key>,
    /// The body, or where it is.
    pub body: StoredBody<'a>,
}

impl RecordHeader<'_> {
    /// Whether two records say the same: the same kind and the same body. Ids and times are stamps
    /// and do not count, which is how a repeated commit under one key is told from another one.
    #[must_use]
    pub fn same_content(&self, other: &RecordHeader<'_>) -> bool {
        self.code == other.code && self.body.is_same(&other.body)
    }

    /// The same without the record that it was read from, for a body that stands outside.
    fn detached(self, outside: Outside) -> RecordHeader<'static> {
        RecordHeader {
            code: self.code,
            kind: self.kind,
            optional: self.optional,
            loop_id: self.loop_id,
            turn: self.turn,
            step: self.step,
            event_id: self.event_id,
            created_at: self.created_at,
            key: self.key,
            body: StoredBody::Outside(outside),
        }
    }
}

/// What a record holds.
#[derive(Debug, Clone, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "events are the rule, skipped records the exception"
)]
pub enum Decoded {
    /// An event, with its idempotency key.
    Event {
        /// The event.
        event: Event,
        /// The host's key.
        key: Option<Key>,
    },
    /// A record of an event whose body stands outside of it: [`decode_outside`] makes the event of
    /// both.
    Outside(RecordHeader<'static>),
    /// A record of a kind that this version does not know and that may be skipped. Whoever copies
    /// records copies its bytes as they are.
    Skipped {
        /// The code of the kind.
        code: u16,
    },
}

/// Encodes an event as the payload of a record, and makes sure that it can be read back (P10).
///
/// # Errors
/// [`EncodeError`]: the event breaks a rule or a limit, is live, or could not be read back. No bytes
/// are given out then.
pub fn encode_record(
    event: &Event,
    key: Option<&Key>,
    limits: &Limits,
) -> Result<Vec<u8>, EncodeError> {
    let kind = event.kind();
    body::check_before_encoding(event, kind.class().is_enduring(), limits)?;
    let header = encode_header(&header_of(event, key)).ok_or(EncodeError::Unencodable { kind })?;
    let length = u16::try_from(header.len()).map_err(|_| EncodeError::Unencodable { kind })?;

    let mut out = Bounded::new(limits.record_bytes);
    out.put(&[
        VERSION,
        if is_optional(&event.body) {
            OPTIONAL
        } else {
            0
        },
    ]);
    out.put(&length.to_le_bytes());
    out.put(&header);
    body::write_record(event, &mut out)?;
    if out.written > limits.record_bytes as usize {
        return Err(LimitExceeded::record(&event.body, out.written, limits.record_bytes).into());
    }
    accept(&out.bytes, limits).map_err(|error| match error {
        DecodeError::Json(error) => EncodeError::NotAcceptable(error),
        DecodeError::Limit(error) => EncodeError::Limit(error),
        _ => EncodeError::Unencodable { kind },
    })?;
    debug_assert_eq!(
        decode_record(event.header.coordinates.session, &out.bytes, limits),
        Ok(Decoded::Event {
            event: event.clone(),
            key: key.cloned()
        }),
        "what is written must read back as it was (P10)"
    );
    Ok(out.bytes)
}

/// The body in a record that [`encode_record`] made.
#[must_use]
pub fn body_in(record: &[u8]) -> &[u8] {
    let offset = match record {
        [_, _, low, high, ..] => PREFIX + usize::from(u16::from_le_bytes([*low, *high])),
        _ => record.len(),
    };
    record.get(offset..).unwrap_or_default()
}

/// Lets a record that [`encode_record`] made refer to its body, which stands outside from now on. Only
/// for kinds of which it may ([`Kind::may_stand_outside`]).
pub fn refer_outside(record: &mut Vec<u8>) {
    let body = body_in(record);
    let (outside, length) = (Outside::of(body), body.len());
    record.truncate(record.len() - length);
    record.extend_from_slice(&outside.encode());
    if let Some(flags) = record.get_mut(1) {
        *flags |= OUTSIDE;
    }
}

/// Whether a reader would take these bytes: the checks of [`decode_record`] that need no types, in
/// one pass (size, header, UTF-8, grammar, depth, repeated keys). Of a body that stands outside
/// nothing is known here.
///
/// # Errors
/// [`DecodeError`], as reading gives it.
pub fn accept(bytes: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    let header = decode_header(bytes, limits)?;
    if header.kind.is_none() && !header.optional {
        return Err(DecodeError::UnknownKind { code: header.code });
    }
    if let StoredBody::Inside(body) = header.body {
        body::scan_object(body, limits)?;
    }
    Ok(())
}

/// Reads the header of a record only. Cost and memory do not depend on the body.
///
/// # Errors
/// [`DecodeError`] when the record is too large, of an unknown version, or its header is malformed.
/// An unknown kind is no error here.
pub fn decode_header<'a>(
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<RecordHeader<'a>, DecodeError> {
    body::check_size(bytes.len(), limits)?;
    let Some((&[version, flags, low, high], rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(DecodeError::Header);
    };
    if version != VERSION {
        return Err(DecodeError::UnknownRecordVersion { version });
    }
    if flags & !(OPTIONAL | OUTSIDE) != 0 {
        return Err(DecodeError::Header);
    }
    let length = usize::from(u16::from_le_bytes([low, high]));
    let (encoded, body) = rest.split_at_checked(length).ok_or(DecodeError::Header)?;
    if encoded.len() > MAX_HEADER {
        return Err(DecodeError::Header);
    }
    let header = parse_header(encoded).ok_or(DecodeError::Header)?;
    let kind = Kind::from_code(header.kind);
    let body = match flags & OUTSIDE != 0 {
        false => StoredBody::Inside(body),
        true if kind.is_none_or(Kind::may_stand_outside) => {
            let outside = Outside::decode(body).ok_or(DecodeError::Header)?;
            check_outside(bytes.len(), &outside, limits)?;
            StoredBody::Outside(outside)
        }
        true => return Err(DecodeError::Header),
    };
    let id = |bytes: Option<[u8; 16]>| bytes.unwrap_or_default();
    Ok(RecordHeader {
        code: header.kind,
        kind,
        optional: flags & OPTIONAL != 0,
        loop_id: LoopId::from_bytes(id(header.loop_id)),
        turn: TurnId::from_bytes(id(header.turn)),
        step: StepId::from_bytes(id(header.step)),
        event_id: EventId::from_bytes(header.event_id),
        created_at: match header.time {
            Some((secs, nanos)) => {
                Some(Timestamp::new(secs, nanos).map_err(|_| DecodeError::Header)?)
            }
            None => None,
        },
        key: header
            .key
            .map(Key::new)
            .transpose()
            .map_err(|_| DecodeError::Header)?,
        body,
    })
}

/// The limit of a record counts its body wherever it stands.
fn check_outside(record: usize, outside: &Outside, limits: &Limits) -> Result<(), DecodeError> {
    let head = record.saturating_sub(Outside::BYTES);
    let length = usize::try_from(outside.length).unwrap_or(usize::MAX);
    let got = head.saturating_add(length);
    if got > limits.record_bytes as usize {
        return Err(LimitExceeded::new(LimitKind::RecordBytes, got, limits.record_bytes).into());
    }
    Ok(())
}

/// Reads a record of `session`. Of one whose body stands outside only the header can be read here.
///
/// # Errors
/// [`DecodeError`], the first thing that is wrong. A record of an unknown kind that is not optional
/// is an error; one that is optional is [`Decoded::Skipped`].
pub fn decode_record(
    session: SessionId,
    bytes: &[u8],
    limits: &Limits,
) -> Result<Decoded, DecodeError> {
    let record = decode_header(bytes, limits)?;
    let kind = match record.kind {
        Some(kind) if kind.class().is_enduring() => kind,
        None if record.optional => return Ok(Decoded::Skipped { code: record.code }),
        _ => return Err(DecodeError::UnknownKind { code: record.code }),
    };
    let body = match record.body {
        StoredBody::Inside(body) => body,
        StoredBody::Outside(outside) => return Ok(Decoded::Outside(record.detached(outside))),
    };
    let event = read_event(session, kind, &record, body, limits)?;
    Ok(Decoded::Event {
        event,
        key: record.key,
    })
}

/// Reads the event of a record of `session` whose body stands outside of it.
///
/// # Errors
/// [`DecodeError::WrongBody`] if it is not the body that the record refers to; the others as for
/// [`decode_record`].
pub fn decode_outside(
    session: SessionId,
    record: &RecordHeader<'_>,
    body: &[u8],
    limits: &Limits,
) -> Result<Event, DecodeError> {
    match (record.kind, record.body) {
        (Some(kind), StoredBody::Outside(outside)) if kind.may_stand_outside() => {
            if !outside.describes(body) {
                return Err(DecodeError::WrongBody);
            }
            read_event(session, kind, record, body, limits)
        }
        (None, _) => Err(DecodeError::UnknownKind { code: record.code }),
        _ => Err(DecodeError::Header),
    }
}

fn read_event(
    session: SessionId,
    kind: Kind,
    record: &RecordHeader<'_>,
    body: &[u8],
    limits: &Limits,
) -> Result<Event, DecodeError> {
    let (text, facts) = body::scan_object(body, limits)?;
    let body = kind::read_body(kind, text)?;
    let mut header = Header {
        coordinates: Coordinates {
            session,
            loop_id: record.loop_id,
            turn: record.turn,
            step: record.step,
        },
        event_id: record.event_id,
        created_at: record.created_at,
        ..Header::default()
    };
    if facts.has_header_keys {
        body::parse::<AttributionFields>(kind.name(), text)?.fill(kind, &mut header)?;
    }
    let event = Event { header, body };
    validate(&event)?;
    limits::check(&event.body, limits)?;
    if record.optional != is_optional(&event.body) {
        return Err(DecodeError::Header);
    }
    Ok(event)
}

/// What a reader that does not know it may skip: a host's event that says so, intents and what is
/// said of a session, which change no history.
fn is_optional(body: &Body) -> bool {
    match body {
        Body::HostEvent(host) => host.optional,
        Body::ToolIntent(_) | Body::ToolIntentSettled(_) | Body::SessionChanged(_) => true,
        _ => false,
    }
}

fn header_of(event: &Event, key: Option<&Key>) -> HeaderV1 {
    let at = &event.header.coordinates;
    HeaderV1 {
        kind: event.kind().code(),
        loop_id: (!at.loop_id.is_nil()).then_some(at.loop_id.to_bytes()),
        turn: (!at.turn.is_nil()).then_some(at.turn.to_bytes()),
        step: (!at.step.is_nil()).then_some(at.step.to_bytes()),
        event_id: event.header.event_id.to_bytes(),
        time: event
            .header
            .created_at
            .map(|time| (time.secs(), time.nanos())),
        key: key.map(|key| key.as_str().to_owned()),
    }
}

fn encode_header(header: &HeaderV1) -> Option<Vec<u8>> {
    bincode::serde::encode_to_vec(header, CODEC).ok()
}

/// A header in its canonical form: no nil id that is "present", and nothing that encoding it again
/// would write otherwise (longer integers, bytes after the last field).
fn parse_header(encoded: &[u8]) -> Option<HeaderV1> {
    let (header, _): (HeaderV1, usize) = bincode::serde::decode_from_slice(encoded, CODEC).ok()?;
    let ids = [header.loop_id, header.turn, header.step];
    let is_canonical = !ids.contains(&Some([0; 16]))
        && encode_header(&header).is_some_and(|again| again == encoded);
    is_canonical.then_some(header)
}
