//! Live events: seen by those who are there, never stored. The type keeps enduring events out (P2).

use crate::event::{
    Event, EventBody, Header, InputQueued, LoopIdle, SessionActive, SessionIdle, TokenDelta,
    ToolCallCompleted, ToolCallStarted,
};

mod sealed {
    pub trait Sealed {}
}

/// The body of a live event. Enduring bodies do not implement it, so that they reach the hub as
/// [`Committed`](crate::store::Committed) only:
///
/// ```compile_fail
/// use stepwell::event::{Header, StepDone};
/// use stepwell::runtime::Live;
/// let _ = Live::new(Header::default(), StepDone::default());
/// ```
pub trait LiveBody: EventBody + sealed::Sealed {}

macro_rules! live {
    ($($body:ty),+) => {$(
        impl sealed::Sealed for $body {}
        impl LiveBody for $body {}
    )+};
}

live!(
    TokenDelta,
    ToolCallStarted,
    ToolCallCompleted,
    InputQueued,
    SessionActive,
    SessionIdle,
    LoopIdle
);

/// A live event.
#[derive(Debug, Clone, PartialEq)]
pub struct Live(Event);

impl Live {
    /// A live event. It needs no stamp: nobody refers to it.
    pub fn new(header: Header, body: impl LiveBody) -> Live {
        Live(Event::new(header, body).erase())
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.0
    }

    pub(crate) fn into_event(self) -> Event {
        self.0
    }
}
