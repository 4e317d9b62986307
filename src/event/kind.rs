//! The kinds of event, in one table: code, name, class, scope, profile.

use std::fmt;

/// Whether an event may be dropped, and whether it ends a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Droppable per subscriber, never persisted.
    Ephemeral,
    /// Durable before anybody sees it, never silently dropped.
    Enduring,
    /// Enduring, and ends its turn.
    Terminal,
}

impl Class {
    /// Whether events of this class are persisted.
    #[must_use]
    pub fn is_enduring(self) -> bool {
        self != Self::Ephemeral
    }
}

/// Whether an event belongs to a session or to one of its loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// To the session.
    Session,
    /// To a loop.
    Loop,
}

/// Which coordinates an event must and must not carry (the fill matrix).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Session set; loop, turn and step absent.
    Session,
    /// Session and loop set; turn and step absent.
    Loop,
    /// Session, loop and turn set; step absent.
    Turn,
    /// As turn, but the turn may be absent.
    InputCancelled,
    /// All four set.
    Step,
    /// All four set, and the body's tool execution id too.
    Tool,
    /// By the gate's resolver: `session` frees all but the session, anything else is as step.
    Gate,
    /// Session set, the others free, but none without the one around it.
    Host,
}

/// The `type` of a kind on the wire: its name, unless the table gives another.
macro_rules! wire_name {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident, $wire:literal) => {
        $wire
    };
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $class:ident, $scope:ident, $profile:ident $(, $wire:literal)?;)+) => {
        /// The kind of an event. Its code is stored in records and never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Kind {$($(#[$doc])* $name = $code,)+}

        impl Kind {
            /// All kinds, by code.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The stable code.
            #[must_use]
            pub const fn code(self) -> u16 {
                match self {$(Self::$name => $code,)+}
            }

            /// The kind with this code, if this version knows it.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// The name, which is also the `type` of the wire form.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {$(Self::$name => wire_name!($name $(, $wire)?),)+}
            }

            /// The kind with this name, if this version knows it. Case counts.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $(wire_name!($name $(, $wire)?) => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// Whether events of this kind are persisted and whether they end a turn.
            #[must_use]
            pub const fn class(self) -> Class {
                match self {$(Self::$name => Class::$class,)+}
            }

            /// What events of this kind belong to. A host's event follows its coordinates
            /// ([`Event::scope`](super::Event::scope)).
            #[must_use]
            pub const fn scope(self) -> Scope {
                match self {$(Self::$name => Scope::$scope,)+}
            }

            /// Which coordinates events of this kind carry.
            #[must_use]
            pub const fn profile(self) -> Profile {
                match self {$(Self::$name => Profile::$profile,)+}
            }
        }

        /// The body of an event of any kind.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        #[allow(clippy::large_enum_variant, reason = "bodies live behind an Arc or in a Vec of few")]
        pub enum Body {$($(#[$doc])* $name(super::$name),)+}

        impl Body {
            /// The kind of the body.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self {$(Self::$name(_) => Kind::$name,)+}
            }
        }

        $(
            impl From<super::$name> for Body {
                fn from(body: super::$name) -> Self {
                    Self::$name(body)
                }
            }

            impl super::EventBody for super::$name {
                const KIND: Kind = Kind::$name;

                fn from_body(body: Body) -> Result<Self, Box<Body>> {
                    match body {
                        Body::$name(body) => Ok(body),
                        other => Err(Box::new(other)),
                    }
                }

                fn as_body(body: &Body) -> Option<&Self> {
                    match body {
                        Body::$name(body) => Some(body),
                        _ => None,
                    }
                }
            }
        )+

        /// Calls the codec of the body's own type.
        pub(super) fn write_body(body: &Body, out: &mut dyn std::io::Write) -> serde_json::Result<()> {
            match body {$(Body::$name(body) => super::body::BodyJson::write(body, out),)+}
        }

        /// Reads the body of a kind; unknown keys are ignored.
        pub(super) fn read_body(kind: Kind, text: &str) -> Result<Body, super::DecodeError> {
            match kind {$(
                Kind::$name => super::body::BodyJson::read(kind, text).map(Body::$name),
            )+}
        }
    };
}

kinds! {
    /// A session begins.
    SessionStarted = 1, Enduring, Session, Session;
    /// A session has work (derived and live; imported, never appended).
    SessionActive = 2, Ephemeral, Session, Session;
    /// A session has none (derived and live; imported, never appended).
    SessionIdle = 3, Ephemeral, Session, Session;
    /// A session ends.
    SessionStopped = 4, Enduring, Session, Session;
    /// A restore begins to write.
    RestoreStarted = 5, Enduring, Session, Session;
    /// A restore is complete.
    RestoreDone = 6, Enduring, Session, Session;
    /// A restore failed.
    RestoreErrored = 7, Enduring, Session, Session;
    /// The session was forked from another.
    Forked = 8, Enduring, Session, Session;
    /// The title, the labels or the host's data of a session changed.
    SessionChanged = 9, Enduring, Session, Session, "session_changed";
    /// A loop begins.
    LoopStarted = 16, Enduring, Loop, Loop;
    /// A loop has no work (derived and live; imported, never appended).
    LoopIdle = 17, Ephemeral, Loop, Loop;
    /// A loop's history was replaced by a summary.
    ContextCompacted = 18, Enduring, Loop, Loop;
    /// A loop went back to an earlier point.
    Rewound = 19, Enduring, Loop, Loop;
    /// A turn begins with a user's message.
    TurnStarted = 32, Enduring, Loop, Turn;
    /// A queued message joined a running turn.
    TurnFoldedInto = 33, Enduring, Loop, Turn;
    /// A turn ended well.
    TurnDone = 34, Terminal, Loop, Turn;
    /// A turn failed.
    TurnFailed = 35, Terminal, Loop, Turn;
    /// A turn was interrupted.
    TurnInterrupted = 36, Terminal, Loop, Turn;
    /// A turn was not accepted.
    TurnRejected = 37, Enduring, Loop, Loop;
    /// A message waits for its turn (live).
    InputQueued = 38, Ephemeral, Loop, Loop;
    /// A waiting message was cancelled.
    InputCancelled = 39, Enduring, Loop, InputCancelled;
    /// A fragment of the model's answer (live).
    TokenDelta = 48, Ephemeral, Loop, Step;
    /// A step is committed: the commit record.
    StepDone = 49, Enduring, Loop, Step;
    /// A tool call begins (live).
    ToolCallStarted = 64, Ephemeral, Loop, Tool;
    /// A tool call has ended (live).
    ToolCallCompleted = 65, Ephemeral, Loop, Tool;
    /// A tool call needs a permission.
    PermissionRequested = 66, Enduring, Loop, Tool;
    /// A permission was decided without asking, or by an answer that an earlier turn left.
    PermissionDecided = 67, Enduring, Loop, Tool;
    /// A tool asks the user.
    UserInputRequested = 68, Enduring, Loop, Tool;
    /// A gate waits for an answer.
    GateOpened = 69, Enduring, Loop, Gate;
    /// A gate was answered or closed.
    GateResolved = 70, Enduring, Loop, Gate;
    /// A tool call with effects is about to run.
    ToolIntent = 71, Enduring, Loop, Tool;
    /// What a tool call that was cut off has done, a person has looked into.
    ToolIntentSettled = 72, Enduring, Loop, Tool;
    /// An event of the host.
    HostEvent = 128, Enduring, Session, Host;
}

impl Kind {
    /// Whether events of this kind end their turn.
    #[must_use]
    pub fn ends_turn(self) -> bool {
        self.class() == Class::Terminal
    }

    /// Whether the wire form carries this kind. It carries all enduring kinds, and the activity of
    /// sessions and loops, which other engines persist and we only import.
    #[must_use]
    pub fn is_on_wire(self) -> bool {
        self.class().is_enduring()
            || matches!(
                self,
                Self::SessionActive | Self::SessionIdle | Self::LoopIdle
            )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
