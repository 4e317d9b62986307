//! Stamps events: the one place where event ids and times come from.

use std::fmt;
use std::sync::Arc;

use super::{Body, Event, EventBody, Header, Kind};
use crate::identity::{EventId, MintError, Timestamp, random_v4};

/// Where ids come from.
pub trait IdSource: Send + Sync {
    /// Sixteen bytes that no other id has.
    ///
    /// # Errors
    /// [`MintError`] when there are none.
    fn mint(&self) -> Result<[u8; 16], MintError>;
}

/// Where times come from.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// Ids from the operating system's random source.
#[derive(Debug, Clone, Copy, Default)]
pub struct RandomIds;

impl IdSource for RandomIds {
    fn mint(&self) -> Result<[u8; 16], MintError> {
        random_v4()
    }
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Stamps events. A clone shares its sources.
#[derive(Clone)]
pub struct Factory {
    ids: Arc<dyn IdSource>,
    clock: Arc<dyn Clock>,
}

impl Default for Factory {
    fn default() -> Self {
        Self::new(RandomIds, SystemClock)
    }
}

impl fmt::Debug for Factory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Factory").finish_non_exhaustive()
    }
}

impl Factory {
    /// A factory with these sources.
    pub fn new(ids: impl IdSource + 'static, clock: impl Clock + 'static) -> Self {
        Self {
            ids: Arc::new(ids),
            clock: Arc::new(clock),
        }
    }

    /// A fresh id of any type, such as `factory.id::<StepId>()`.
    ///
    /// # Errors
    /// [`MintError`] when the source fails or gives the absent id.
    pub fn id<I: From<[u8; 16]>>(&self) -> Result<I, MintError> {
        match self.ids.mint()? {
            bytes if bytes == [0; 16] => Err(MintError),
            bytes => Ok(I::from(bytes)),
        }
    }

    /// An event with its id and its time; what the header already has is kept. A live event stays
    /// unstamped, so that a token costs no randomness.
    ///
    /// # Errors
    /// [`MintError`]: no event and no part of a header is given out.
    pub fn event<B: EventBody>(&self, header: Header, body: B) -> Result<Event<B>, MintError> {
        let header = self.header(header, B::KIND)?;
        Ok(Event { header, body })
    }

    /// The same for a body of any kind.
    ///
    /// # Errors
    /// As for [`Factory::event`].
    pub fn stamp(&self, header: Header, body: Body) -> Result<Event, MintError> {
        let header = self.header(header, body.kind())?;
        Ok(Event { header, body })
    }

    /// The time of its clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn header(&self, mut header: Header, kind: Kind) -> Result<Header, MintError> {
        if kind.class().is_enduring() {
            if header.event_id.is_nil() {
                header.event_id = self.id::<EventId>()?;
            }
            if header.created_at.is_none() {
                header.created_at = Some(self.clock.now());
            }
        }
        Ok(header)
    }
}
