//! Events: what happened in a session, and how it is checked and encoded. Knows no disk.
//!
//! | module | what it holds |
//! |---|---|
//! | `kind` | the table of kinds: code, name, class, scope, profile |
//! | `session`, `turn`, `gate`, `intent` | the bodies |
//! | `validate` | the fill matrix, the shape of a step, the pairing of calls and results |
//! | `factory` | stamps events with ids and times |
//! | `limits` | the limits that writer and reader share |
//! | `body` | how each body stands in JSON |
//! | `key` | the idempotency key of a host |
//! | `record` | the payload that the journal stores |
//! | `outside` | bodies that stand outside of their record |
//! | `wire` | the flat JSON for import, export and the command line |

mod body;
mod error;
mod factory;
mod gate;
mod intent;
mod key;
mod kind;
mod limits;
mod outside;
mod record;
mod session;
mod turn;
mod validate;
mod wire;

pub use error::{DecodeError, EncodeError, Field, InvalidEvent, PairingError, Rule};
pub use factory::{Clock, Factory, IdSource, RandomIds, SystemClock};
pub use gate::{
    AnswerSource, Audit, Control, Effect, Gate, GateOpened, GateResolved, PermissionDecided,
    PermissionRequested, Prompt, Resolver, ToolCallCompleted, ToolCallStarted, UserInputRequested,
};
pub use intent::{ToolIntent, ToolIntentSettled};
pub use key::{Key, KeyError};
pub use kind::{Body, Class, Kind, Profile, Scope};
pub use limits::{Culprit, LimitExceeded, LimitKind, Limits};
pub use outside::{Outside, StoredBody};
pub use record::{
    Decoded, RecordHeader, accept, body_in, decode_header, decode_outside, decode_record,
    encode_record, refer_outside,
};
pub use session::{
    Forked, HostEvent, LoopIdle, LoopStarted, RestoreDone, RestoreErrored, RestoreStarted, Rewound,
    SessionActive, SessionChanged, SessionIdle, SessionStarted, SessionStopped,
};
pub use turn::{
    CancelReason, Chunk, ContextCompacted, ErrorKind, ErrorProjection, InputCancelled, InputQueued,
    InterruptReason, RejectReason, StepDone, TokenDelta, TurnDone, TurnFailed, TurnFoldedInto,
    TurnInterrupted, TurnRejected, TurnStarted,
};
pub use validate::{check_pairing, validate};
pub(crate) use wire::{from_line, max_line, to_line};
pub use wire::{from_wire, to_wire};

use crate::identity::{AgentName, Cause, Coordinates, EventId, LoopId, Timestamp, Visibility};

/// What every event carries beside its body.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Header {
    /// Where it was produced.
    pub coordinates: Coordinates,
    /// The name of its loop, for attribution.
    pub agent_name: AgentName,
    /// Its identity, minted when it was made.
    pub event_id: EventId,
    /// When it was made; never used to order events.
    pub created_at: Option<Timestamp>,
    /// What caused it; empty when nothing is known.
    pub cause: Cause,
    /// Who may see it.
    pub visibility: Visibility,
}

impl Header {
    /// An unstamped header at these coordinates.
    #[must_use]
    pub fn at(coordinates: Coordinates) -> Self {
        Self {
            coordinates,
            ..Self::default()
        }
    }

    /// This header with the name of a loop.
    #[must_use]
    pub fn named(self, agent_name: impl Into<AgentName>) -> Self {
        Self {
            agent_name: agent_name.into(),
            ..self
        }
    }

    /// This header with a cause.
    #[must_use]
    pub fn caused_by(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }
}

/// An event: `Event<StepDone>` of one kind, `Event` of any.
#[derive(Debug, Clone, PartialEq)]
pub struct Event<B = Body> {
    /// What every event carries.
    pub header: Header,
    /// What this kind carries.
    pub body: B,
}

/// The body of one kind of event.
pub trait EventBody: Clone + Into<Body> {
    /// Its kind.
    const KIND: Kind;

    /// The body of this kind, or what it was instead.
    ///
    /// # Errors
    /// The body itself, when it is of another kind.
    fn from_body(body: Body) -> Result<Self, Box<Body>>;

    /// The body of this kind, if it is one.
    fn as_body(body: &Body) -> Option<&Self>;
}

impl<B> Event<B> {
    /// An event.
    pub fn new(header: Header, body: B) -> Self {
        Self { header, body }
    }
}

impl<B: EventBody> Event<B> {
    /// The event as one of any kind.
    #[must_use]
    pub fn erase(self) -> Event {
        Event {
            header: self.header,
            body: self.body.into(),
        }
    }
}

impl<B: EventBody> From<Event<B>> for Event {
    fn from(event: Event<B>) -> Self {
        event.erase()
    }
}

impl Event {
    /// The kind of the body.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.body.kind()
    }

    /// What the event belongs to. A host's event belongs to its loop when it names one.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match (self.kind().profile(), self.header.coordinates.loop_id) {
            (Profile::Host, loop_id) if loop_id != LoopId::nil() => Scope::Loop,
            _ => self.kind().scope(),
        }
    }

    /// The body, if it is of this kind.
    #[must_use]
    pub fn body_as<B: EventBody>(&self) -> Option<&B> {
        B::as_body(&self.body)
    }

    /// The event as one of this kind.
    ///
    /// # Errors
    /// The event itself, when it is of another kind.
    pub fn downcast<B: EventBody>(self) -> Result<Event<B>, Box<Self>> {
        match B::from_body(self.body) {
            Ok(body) => Ok(Event {
                header: self.header,
                body,
            }),
            Err(body) => Err(Box::new(Self {
                header: self.header,
                body: *body,
            })),
        }
    }
}
