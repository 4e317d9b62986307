//! One watcher of a session.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::Filter;
use super::hub::{At, End, HubCore, HubOptions};
use crate::contain::dropped;
use crate::event::Event;
use crate::journal::{Fault, Seq};
use crate::metrics::{Measure, Meter};
use crate::store::{Committed, IoThreadGone, Replay, ReplayError, Session, Ticket};
use crate::sync::{Mutex, MutexGuard};

/// One event as it is delivered.
#[derive(Debug, Clone, PartialEq)]
pub enum Delivery {
    /// A committed event: durable, and in live history (P2).
    Committed(Committed),
    /// A live event.
    Live(Arc<Event>),
}

impl Delivery {
    /// The event.
    pub fn event(&self) -> &Event {
        match self {
            Delivery::Committed(committed) => committed.event(),
            Delivery::Live(event) => event,
        }
    }

    /// Its place in the session; zero for a live event.
    pub fn seq(&self) -> Seq {
        match self {
            Delivery::Committed(committed) => committed.seq(),
            Delivery::Live(_) => Seq::ZERO,
        }
    }

    /// The committed event, if it is one.
    pub fn committed(&self) -> Option<&Committed> {
        match self {
            Delivery::Committed(committed) => Some(committed),
            Delivery::Live(_) => None,
        }
    }
}

/// Why a subscription ended before the session was closed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamEnd {
    /// The session is faulted. Everything that was committed has been delivered before.
    #[error("the session is faulted: {0}")]
    Fault(Fault),
    /// A record that was to be delivered cannot be read from the log. Subscribe behind it to go on.
    #[error("the log cannot be read: {0}")]
    Unreadable(ReplayError),
    /// The store's I/O thread ended while it read the log.
    #[error(transparent)]
    Gone(IoThreadGone),
}

/// What the publisher and the subscriber share.
#[derive(Debug)]
pub(super) struct Inbox {
    limit: usize,
    filter: Filter,
    state: Mutex<InboxState>,
}

#[derive(Default)]
struct InboxState {
    /// Live events, each with the sequence behind which it was emitted.
    live: VecDeque<(Seq, Arc<Event>)>,
    dropped: u64,
    waker: Option<Waker>,
}

impl std::fmt::Debug for InboxState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxState")
            .field("live", &self.live.len())
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

impl Inbox {
    pub(super) fn new(limit: usize, filter: Filter) -> Inbox {
        Inbox {
            limit,
            filter,
            state: Mutex::new(InboxState::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a live event if it is wanted and there is room; gives whom to wake.
    pub(super) fn offer(&self, after: Seq, event: &Arc<Event>, meter: &Meter) -> Option<Waker> {
        if !self.filter.admits(event) {
            return None;
        }
        let mut state = self.lock();
        if state.live.len() >= self.limit {
            state.dropped += 1;
            let session = event.header.coordinates.session;
            meter.record(|| Measure::Dropped { session });
            return None;
        }
        state.live.push_back((after, event.clone()));
        state.waker.take()
    }

    pub(super) fn take_waker(&self) -> Option<Waker> {
        self.lock().waker.take()
    }

    /// The next live event, if all that was committed before it has been delivered.
    fn take_live(&self, next: Seq) -> Option<Arc<Event>> {
        let mut state = self.lock();
        let due = state.live.front().is_some_and(|(after, _)| *after < next);
        due.then(|| state.live.pop_front())
            .flatten()
            .map(|(_, event)| event)
    }
}

/// A reading of the log, up to what was published when it began: it sees nothing of what came later.
struct Reading {
    replay: Replay,
    upto: Seq,
}

/// A page of the log.
struct Page {
    events: Vec<Committed>,
    /// Where to go on.
    next: Seq,
    /// The reading, if it has not come to its end.
    replay: Option<Reading>,
    error: Option<ReplayError>,
}

impl Page {
    /// Reads until it has enough records or bytes. What is not published yet comes by the hub.
    fn read(mut reading: Reading, from: Seq, options: &HubOptions) -> Page {
        let mut page = Page {
            events: Vec::new(),
            next: from,
            replay: None,
            error: None,
        };
        let mut bytes = 0;
        while page.events.len() < options.page.max(1) && bytes < options.recent_bytes.max(1) {
            match reading.replay.next() {
                Some(Ok(committed)) if committed.seq() <= reading.upto => {
                    page.next = committed.seq().next();
                    bytes += committed.encoded_len();
                    page.events.push(committed);
                }
                Some(Err(error)) => {
                    page.error = Some(error);
                    return page;
                }
                // What stands between here and there is optional and of a newer version.
                Some(Ok(_)) | None => {
                    page.next = reading.upto.next();
                    return page;
                }
            }
        }
        page.replay = Some(reading);
        page
    }
}

/// A stream of what is committed in a session, and of what is live.
///
/// It keeps its session open. Dropping it ends it; it can be awaited in any runtime.
#[must_use = "a subscription that is not read shows nothing"]
pub struct Subscription {
    session: Session,
    hub: Arc<HubCore>,
    inbox: Arc<Inbox>,
    /// The next sequence that has not been passed.
    next: Seq,
    /// Delivered before all others.
    recovered: VecDeque<Committed>,
    /// Taken from the ring or the log, not yet delivered.
    ahead: VecDeque<Committed>,
    /// Where to go on when `ahead` is used up.
    behind_ahead: Seq,
    reading: Option<Ticket<Page>>,
    replay: Option<Reading>,
    failed: Option<StreamEnd>,
    ended: bool,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("session", &self.session.id())
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    pub(super) fn new(
        session: Session,
        hub: Arc<HubCore>,
        inbox: Arc<Inbox>,
        next: Seq,
        recovered: VecDeque<Committed>,
    ) -> Subscription {
        Subscription {
            session,
            hub,
            inbox,
            next,
            recovered,
            ahead: VecDeque::new(),
            behind_ahead: next,
            reading: None,
            replay: None,
            failed: None,
            ended: false,
        }
    }

    /// The next event; `None` when the session was closed. A fault is given once, behind the last
    /// committed event, and then `None`. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Result<Delivery, StreamEnd>> {
        poll_fn(|context| self.poll_event(context)).await
    }

    /// How many live events this subscription missed because it was too slow.
    pub fn dropped(&self) -> u64 {
        self.inbox.lock().dropped
    }

    /// The sequence of the next committed event that it has not passed: where another subscription
    /// can go on.
    pub fn next_seq(&self) -> Seq {
        self.next
    }

    fn poll_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Delivery, StreamEnd>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(recovered) = self.recovered.pop_front() {
            return Poll::Ready(Some(Ok(Delivery::Committed(recovered))));
        }
        // Before looking: what comes after the look wakes.
        let waker = Some(context.waker().clone());
        let before = std::mem::replace(&mut self.inbox.lock().waker, waker);
        dropped(before);
        loop {
            if let Some(event) = self.inbox.take_live(self.next) {
                return Poll::Ready(Some(Ok(Delivery::Live(event))));
            }
            if let Some(committed) = self.ahead.pop_front() {
                self.next = committed.seq().next();
                if self.inbox.filter.admits(committed.event()) {
                    return Poll::Ready(Some(Ok(Delivery::Committed(committed))));
                }
                continue;
            }
            if self.next < self.behind_ahead {
                self.next = self.behind_ahead;
                continue;
            }
            if let Some(failed) = self.failed.take() {
                self.ended = true;
                return Poll::Ready(Some(Err(failed)));
            }
            if let Some(reading) = &mut self.reading {
                let Poll::Ready(page) = Pin::new(reading).poll(context) else {
                    return Poll::Pending;
                };
                self.reading = None;
                self.turn_page(page);
                continue;
            }
            match self.hub.at(self.next) {
                At::Events(events) => {
                    self.replay = None;
                    self.ahead.extend(events);
                }
                At::Behind(upto) => self.read(upto),
                At::Head => return Poll::Pending,
                At::End(end) => {
                    self.ended = true;
                    return Poll::Ready(match end {
                        End::Closed => None,
                        End::Fault(fault) => Some(Err(StreamEnd::Fault(fault))),
                    });
                }
            }
        }
    }

    fn read(&mut self, upto: Seq) {
        let (from, options) = (self.next, self.hub.options);
        let replay = self.replay.take();
        self.reading = Some(self.session.run(move |session| {
            let reading = replay.unwrap_or_else(|| Reading {
                replay: session.replay(from),
                upto,
            });
            Page::read(reading, from, &options)
        }));
    }

    fn turn_page(&mut self, page: Result<Page, IoThreadGone>) {
        match page {
            Ok(page) => {
                self.ahead.extend(page.events);
                self.behind_ahead = page.next;
                self.replay = page.replay;
                self.failed = page.error.map(StreamEnd::Unreadable);
            }
            Err(gone) => self.failed = Some(StreamEnd::Gone(gone)),
        }
    }
}

impl Stream for Subscription {
    type Item = Result<Delivery, StreamEnd>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(context)
    }
}
