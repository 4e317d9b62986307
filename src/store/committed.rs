//! The proof of durability as a value: [`Committed`] is made from a journal's receipt and nowhere
//! else (P2).

use std::ops::Deref;
use std::sync::Arc;

use crate::event::{Body, Event, EventBody};
use crate::journal::{Lsn, Seq};

/// An event that is durable. The hub publishes enduring events only in this form, and only the
/// commit boundary and the reader of the log can make one.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed<B = Body> {
    event: Arc<Event<B>>,
    seq: Seq,
    lsn: Lsn,
    /// Bytes of its record.
    length: usize,
    replay: bool,
    proven: bool,
}

impl Committed<Body> {
    /// From the receipt of the append that made the event durable.
    pub(super) fn live(event: Event<Body>, seq: Seq, lsn: Lsn, length: usize) -> Committed {
        Committed {
            event: Arc::new(event),
            seq,
            lsn,
            length,
            replay: false,
            proven: true,
        }
    }

    /// From a record of the log.
    pub(super) fn read(
        event: Event<Body>,
        seq: Seq,
        lsn: Lsn,
        length: usize,
        proven: bool,
    ) -> Committed {
        Committed {
            event: Arc::new(event),
            seq,
            lsn,
            length,
            replay: true,
            proven,
        }
    }

    /// The same event with a body of one kind; `None` if it is of another.
    pub fn typed<B: EventBody>(&self) -> Option<Committed<B>> {
        let body = B::as_body(&self.event.body)?.clone();
        Some(Committed {
            event: Arc::new(Event {
                header: self.event.header.clone(),
                body,
            }),
            seq: self.seq,
            lsn: self.lsn,
            length: self.length,
            replay: self.replay,
            proven: self.proven,
        })
    }
}

impl<B> Committed<B> {
    /// The event.
    pub fn event(&self) -> &Event<B> {
        &self.event
    }

    /// The event, shared.
    pub fn shared(&self) -> Arc<Event<B>> {
        self.event.clone()
    }

    /// Its place in the session, from 1.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Its place in the journal, from 1.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// The length of its record in bytes, by which those that keep events bound their memory.
    pub fn encoded_len(&self) -> usize {
        self.length
    }

    /// Whether it was read from the log instead of being published when it was committed.
    pub fn is_replay(&self) -> bool {
        self.replay
    }

    /// Whether it is proven that it was durable. False only for the last records of a log that was
    /// opened read-only: they are there, but nothing vouches for them yet.
    pub fn is_proven(&self) -> bool {
        self.proven
    }
}

impl<B> Deref for Committed<B> {
    type Target = Event<B>;

    fn deref(&self) -> &Event<B> {
        &self.event
    }
}

/// The outcome of a commit that is durable.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome<B = Body> {
    /// Committed now.
    Committed(Committed<B>),
    /// The key was committed before, with the same body: this is the first commit. It is not
    /// published again.
    Duplicate(Committed<B>),
}

impl<B> Outcome<B> {
    /// The place of the (first) commit in the session.
    pub fn seq(&self) -> Seq {
        self.committed().seq()
    }

    /// The (first) commit.
    pub fn committed(&self) -> &Committed<B> {
        match self {
            Outcome::Committed(committed) | Outcome::Duplicate(committed) => committed,
        }
    }

    /// Whether the key had been committed before.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Outcome::Duplicate(_))
    }
}
