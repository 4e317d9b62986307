//! How bodies stand in JSON, and the pieces that both codecs share.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    CancelReason, ContextCompacted, DecodeError, EncodeError, Event, Field, Forked, GateOpened,
    GateResolved, Header, HostEvent, InputCancelled, InputQueued, InvalidEvent, Kind,
    LimitExceeded, Limits, LoopIdle, LoopStarted, PermissionDecided, PermissionRequested,
    RestoreDone, RestoreErrored, RestoreStarted, Rewound, Rule, SessionActive, SessionChanged,
    SessionIdle, SessionStarted, SessionStopped, StepDone, TokenDelta, ToolCallCompleted,
    ToolCallStarted, ToolIntent, ToolIntentSettled, TurnDone, TurnFailed, TurnFoldedInto,
    TurnInterrupted, TurnRejected, TurnStarted, UserInputRequested, kind, limits, validate,
};
use crate::content::scan::{self, Facts};
use crate::content::{ContentError, Message, MessageFields, Usage};
use crate::identity::{AgentName, Cause, Visibility};

/// A body's own JSON.
pub(super) trait BodyJson: Sized {
    /// Writes one object.
    fn write(&self, out: &mut dyn io::Write) -> serde_json::Result<()>;
    /// Reads it from text that the scan has accepted; unknown keys are ignored.
    fn read(kind: Kind, text: &str) -> Result<Self, DecodeError>;
}

/// Reads a value from text that the scan has accepted.
pub(super) fn parse<T: DeserializeOwned>(kind: &'static str, text: &str) -> Result<T, DecodeError> {
    serde_json::from_str(text).map_err(|error| DecodeError::Body {
        kind,
        detail: error.to_string(),
    })
}

/// Bodies whose derived form is their JSON.
macro_rules! plain {
    ($($body:ident)+) => {$(
        impl BodyJson for $body {
            fn write(&self, out: &mut dyn io::Write) -> serde_json::Result<()> {
                serde_json::to_writer(out, self)
            }

            fn read(kind: Kind, text: &str) -> Result<Self, DecodeError> {
                parse(kind.name(), text)
            }
        }
    )+};
}

plain! {
    SessionStarted SessionActive SessionIdle SessionStopped RestoreStarted RestoreDone RestoreErrored
    Forked SessionChanged LoopStarted LoopIdle Rewound TurnFailed TurnInterrupted TurnRejected PermissionRequested
    PermissionDecided UserInputRequested GateOpened GateResolved ToolIntent ToolIntentSettled HostEvent
}

/// Live bodies have no JSON. The codecs refuse them by class before they come here.
macro_rules! live {
    ($($body:ident)+) => {$(
        impl BodyJson for $body {
            fn write(&self, _: &mut dyn io::Write) -> serde_json::Result<()> {
                Err(serde::ser::Error::custom("a live event has no JSON"))
            }

            fn read(kind: Kind, _: &str) -> Result<Self, DecodeError> {
                Err(DecodeError::UnknownEventType { name: kind.name().to_owned() })
            }
        }
    )+};
}

live! { TokenDelta ToolCallStarted ToolCallCompleted InputQueued }

/// Bodies with messages are read through plain fields, so that an unknown role or block keeps its
/// typed error instead of becoming the parser's text.
macro_rules! with_messages {
    ($($body:ident from $fields:ident: |$kind:ident, $it:ident| $read:expr;)+) => {$(
        impl BodyJson for $body {
            fn write(&self, out: &mut dyn io::Write) -> serde_json::Result<()> {
                serde_json::to_writer(out, self)
            }

            fn read($kind: Kind, text: &str) -> Result<Self, DecodeError> {
                let $it: $fields = parse($kind.name(), text)?;
                $read
            }
        }
    )+};
}

#[derive(Deserialize)]
struct StepFields {
    #[serde(default)]
    messages: Option<Vec<Option<MessageFields>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TurnFields {
    turn_index: u64,
    message: Option<MessageFields>,
    usage: Option<Usage>,
    reason: CancelReason,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CompactedFields {
    summary: Option<MessageFields>,
    keep_from: u64,
    reason: String,
}

with_messages! {
    StepDone from StepFields: |_kind, it| {
        // A null among the messages empties the group, and validation refuses an empty group, after
        // it has checked what comes before the messages.
        let read: Option<Vec<MessageFields>> = it.messages.unwrap_or_default().into_iter().collect();
        let messages = read.unwrap_or_default().into_iter().map(Message::try_from);
        Ok(Self { messages: messages.collect::<Result<_, _>>()? })
    };
    TurnStarted from TurnFields: |kind, it| {
        Ok(Self { turn_index: it.turn_index, message: message(kind, it.message)? })
    };
    TurnFoldedInto from TurnFields: |kind, it| {
        Ok(Self { turn_index: it.turn_index, message: message(kind, it.message)? })
    };
    TurnDone from TurnFields: |kind, it| {
        Ok(Self { turn_index: it.turn_index, message: message(kind, it.message)?, usage: it.usage })
    };
    InputCancelled from TurnFields: |_kind, it| {
        let message = it.message.map(|fields| Message::try_from(fields)?.try_into()).transpose()?;
        Ok(Self { turn_index: it.turn_index, reason: it.reason, message })
    };
    ContextCompacted from CompactedFields: |kind, it| {
        Ok(Self { summary: message(kind, it.summary)?, keep_from: it.keep_from, reason: it.reason })
    };
}

fn message<M: TryFrom<Message, Error = ContentError>>(
    kind: Kind,
    fields: Option<MessageFields>,
) -> Result<M, DecodeError> {
    let fields = fields.ok_or_else(|| InvalidEvent::new(kind, Field::Message, Rule::MustBeSet))?;
    Ok(Message::try_from(fields)?.try_into()?)
}

/// The part of a header that stands in the body of a record: what is neither an id nor a stamp.
#[derive(Serialize)]
pub(super) struct Attribution<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    agent_name: &'a str,
    #[serde(skip_serializing_if = "Cause::is_empty")]
    cause: &'a Cause,
    #[serde(skip_serializing_if = "is_public")]
    visibility: u8,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_public(visibility: &u8) -> bool {
    *visibility == 0
}

impl<'a> Attribution<'a> {
    pub(super) fn of(header: &'a Header) -> Self {
        Self {
            agent_name: header.agent_name.as_str(),
            cause: &header.cause,
            visibility: match header.visibility {
                Visibility::Public => 0,
                Visibility::Internal => 1,
            },
        }
    }
}

/// [`Attribution`] as it is read; the number of the visibility is judged later, in its order.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct AttributionFields {
    pub(super) agent_name: AgentName,
    pub(super) cause: Option<Cause>,
    pub(super) visibility: u64,
}

impl AttributionFields {
    /// Puts what was read into a header.
    pub(super) fn fill(self, kind: Kind, header: &mut Header) -> Result<(), InvalidEvent> {
        header.visibility = match self.visibility {
            0 => Visibility::Public,
            1 => Visibility::Internal,
            _ => return Err(InvalidEvent::new(kind, Field::Visibility, Rule::Invalid)),
        };
        header.agent_name = self.agent_name;
        header.cause = self.cause.unwrap_or_default();
        Ok(())
    }
}

/// Bytes that joining writes for a moment and takes back: the braces of an empty part.
const SEAM: usize = 2;

/// Keeps about `max` bytes and counts the rest, so that an oversized event costs no memory.
pub(super) struct Bounded {
    pub(super) bytes: Vec<u8>,
    pub(super) written: usize,
    max: usize,
}

impl Bounded {
    pub(super) fn new(max: u32) -> Self {
        Self {
            bytes: Vec::new(),
            written: 0,
            max: (max as usize).saturating_add(SEAM),
        }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.written = self.written.saturating_add(bytes.len());
        if self.written <= self.max {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn is_full(&self) -> bool {
        self.written > self.max
    }

    /// Writes one more part of the object that begins at `start`: its fields follow those that are
    /// there. The part must write one object.
    fn join(
        &mut self,
        start: usize,
        write: impl FnOnce(&mut Self) -> serde_json::Result<()>,
    ) -> serde_json::Result<()> {
        let so_far = self.bytes.len().saturating_sub(start);
        if self.is_full() || so_far == 0 {
            return write(self);
        }
        if so_far == 2 {
            // `{}` so far: the part takes its place.
            self.bytes.truncate(start);
            self.written -= 2;
            return write(self);
        }
        // The brace that ends what is there goes, and the one that begins the part becomes a comma.
        self.bytes.pop();
        self.written -= 1;
        let seam = self.bytes.len();
        write(self)?;
        if self.is_full() {
            return Ok(());
        }
        if self.bytes.len() == seam + 2 {
            self.bytes.truncate(seam + 1);
            self.written -= 1;
        }
        let is_empty = self.bytes.len() == seam + 1;
        if let Some(byte) = self.bytes.get_mut(seam) {
            *byte = if is_empty { b'}' } else { b',' };
        }
        Ok(())
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the body of a record: attribution, then the fields of the kind.
pub(super) fn write_record(event: &Event, out: &mut Bounded) -> Result<(), EncodeError> {
    let start = out.bytes.len();
    let mut write = || {
        serde_json::to_writer(&mut *out, &Attribution::of(&event.header))?;
        out.join(start, |out| kind::write_body(&event.body, out))
    };
    write().map_err(|_: serde_json::Error| EncodeError::Unencodable { kind: event.kind() })
}

/// Writes the wire form: stamps, attribution, the fields of the kind, and the tag, which stands last
/// and is written by us alone, so that no field can pass for it.
pub(super) fn write_wire(
    event: &Event,
    out: &mut Bounded,
    stamps: &impl Serialize,
    tag: &[u8],
) -> Result<(), EncodeError> {
    let start = out.bytes.len();
    let mut write = || {
        serde_json::to_writer(&mut *out, stamps)?;
        out.join(start, |out| {
            serde_json::to_writer(out, &Attribution::of(&event.header))
        })?;
        out.join(start, |out| kind::write_body(&event.body, out))?;
        out.join(start, |out| {
            out.put(tag);
            Ok(())
        })
    };
    write().map_err(|_: serde_json::Error| EncodeError::Unencodable { kind: event.kind() })
}

/// What both codecs check before they write a byte.
pub(super) fn check_before_encoding(
    event: &Event,
    may_encode: bool,
    limits: &Limits,
) -> Result<(), EncodeError> {
    if !may_encode {
        return Err(EncodeError::EphemeralNotPersistable { kind: event.kind() });
    }
    validate(event)?;
    limits::check(&event.body, limits)?;
    Ok(())
}

/// The size limit of reading.
pub(super) fn check_size(got: usize, limits: &Limits) -> Result<(), DecodeError> {
    if got > limits.record_bytes as usize {
        let kind = super::LimitKind::RecordBytes;
        return Err(LimitExceeded::new(kind, got, limits.record_bytes).into());
    }
    Ok(())
}

/// The acceptance scan of an event's JSON (P10).
pub(super) fn scan_object<'a>(
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<(&'a str, Facts), DecodeError> {
    let (text, facts) = scan::check_event(bytes, limits.depth as usize)?;
    if facts.is_object {
        Ok((text, facts))
    } else {
        Err(DecodeError::NotAnObject)
    }
}
