//! The hub of a session: what is committed, and what is live, to those who watch.
//!
//! Enduring events come from the commit boundary only, as [`Committed`] (P2). The hub keeps the most
//! recent ones in one bounded ring; who is slower is served from the log, so that an enduring event
//! is never dropped. Live events go to a bounded queue of each subscriber, where they may be.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use tokio::sync::watch;

use super::subscription::{Inbox, Subscription};
use super::waiters::Waiters;
use super::{Filter, Live, StartAt};
use crate::event::{Header, LoopIdle, SessionActive, SessionIdle};
use crate::identity::{Coordinates, LoopId, SessionId};
use crate::journal::{Fault, Seq};
use crate::metrics::Meter;
use crate::store::{Committed, Observer, Session};
use crate::sync::{Mutex, MutexGuard};
use crate::wake::{Behind, relayed};

/// The bounds of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubOptions {
    /// Committed events that are kept in memory for subscribers; 1,024 by default.
    pub recent_events: usize,
    /// Bytes of their records, at most; 8 MiB by default.
    pub recent_bytes: usize,
    /// Live events that may wait for one subscriber; 256 by default.
    pub live_queue: usize,
    /// Records that one subscriber reads from the log at once, at most (and at most one more than
    /// `recent_bytes` hold); 64 by default.
    pub page: usize,
}

impl Default for HubOptions {
    fn default() -> Self {
        HubOptions {
            recent_events: 1024,
            recent_bytes: 8 * 1024 * 1024,
            live_queue: 256,
            page: 64,
        }
    }
}

/// Why [`Hub::wait_idle`] will never see the session idle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdleError {
    /// The session was closed.
    #[error("the session was closed")]
    Closed,
    /// The session is faulted.
    #[error("the session is faulted: {0}")]
    Faulted(Fault),
}

/// Why streams end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    Fault(Fault),
}

/// The hub of a session. Cheap to clone; there is one per open session.
#[derive(Debug, Clone)]
pub struct Hub {
    session: Session,
    core: Arc<HubCore>,
}

/// The hub without its session: the session holds it.
#[derive(Debug)]
pub(super) struct HubCore {
    session: SessionId,
    pub(super) options: HubOptions,
    meter: Meter,
    state: Mutex<State>,
    activity: watch::Sender<Activity>,
    /// Who waits for the answer of a gate.
    waiters: Arc<Waiters>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Activity {
    Idle,
    Active,
    Ended(End),
}

#[derive(Default)]
struct State {
    /// The last committed sequence that was published.
    last: Seq,
    /// The most recent ones, without a gap up to `last`.
    recent: VecDeque<Committed>,
    bytes: usize,
    end: Option<End>,
    inboxes: Vec<Weak<Inbox>>,
    /// What opening kept above the watermark, until somebody is told.
    recovered: Vec<Committed>,
    /// Turns that run or wait, by loop.
    work: HashMap<LoopId, usize>,
}

/// Without the events: what was said does not belong into a host's log.
impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("last", &self.last)
            .field("recent", &self.recent.len())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// What the hub has for a subscriber at a sequence.
pub(super) enum At {
    /// The next events.
    Events(Vec<Committed>),
    /// They have left the ring: read the log up to here.
    Behind(Seq),
    /// There are none yet.
    Head,
    /// There will be none.
    End(End),
}

impl Session {
    /// The hub of the session, made by the first that asks.
    pub fn hub(&self) -> Hub {
        self.hub_with(HubOptions::default())
    }

    /// The same with bounds, which count for the first that asks. Attaching it to the session waits
    /// for a commit that is running.
    pub fn hub_with(&self, options: HubOptions) -> Hub {
        let core = self
            .companion(|session| HubCore::attach(session, options))
            // A session has no other companion.
            .unwrap_or_else(|| HubCore::attach(self, options));
        Hub {
            session: self.clone(),
            core,
        }
    }

    /// Watches the session; see [`Hub::subscribe`].
    pub fn subscribe(&self, from: StartAt, filter: Filter) -> Subscription {
        self.hub().subscribe(from, filter)
    }
}

impl Hub {
    /// Its session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Watches the session: the committed events from a sequence on, read from the log as far as
    /// needed, and then those that are committed while it watches, without a gap and without a
    /// repetition; and the live events from now on, each in its place between them.
    ///
    /// The first subscription of a session also gets, first of all, the records that opening kept
    /// above the watermark, marked as replay: nobody can know whether they were published.
    pub fn subscribe(&self, from: StartAt, filter: Filter) -> Subscription {
        let mut state = self.core.lock();
        let next = match from {
            StartAt::Seq(seq) => seq.max(Seq::new(1)),
            StartAt::Now => state.last.next(),
        };
        let (wanted, others): (Vec<_>, Vec<_>) = std::mem::take(&mut state.recovered)
            .into_iter()
            .partition(|committed| filter.admits(committed.event()));
        state.recovered = others;
        // Those from `next` on come with the others, from the log.
        let recovered = wanted
            .into_iter()
            .filter(|committed| committed.seq() < next);
        let recovered = recovered.collect();
        let inbox = Arc::new(Inbox::new(self.core.options.live_queue, filter));
        if state.end.is_none() {
            state.inboxes.push(Arc::downgrade(&inbox));
        }
        drop(state);
        Subscription::new(
            self.session.clone(),
            self.core.clone(),
            inbox,
            next,
            recovered,
        )
    }

    /// Shows a live event to those who watch. It never blocks and never fails: who is too slow
    /// misses it, and can see how many ([`Subscription::dropped`]).
    pub fn emit(&self, live: Live) {
        self.core.emit(live);
    }

    /// Waits until no loop of the session has a turn that runs or waits.
    ///
    /// # Errors
    /// [`IdleError`]: it never will.
    pub async fn wait_idle(&self) -> Result<(), IdleError> {
        let mut activity = self.core.activity.subscribe();
        let settled = relayed(activity.wait_for(|activity| *activity != Activity::Active)).await;
        match settled.as_deref() {
            Ok(Activity::Ended(End::Fault(fault))) => Err(IdleError::Faulted(fault.clone())),
            Ok(Activity::Ended(End::Closed)) | Err(_) => Err(IdleError::Closed),
            Ok(_) => Ok(()),
        }
    }

    /// Why nothing can be published any more, if the session is faulted.
    pub fn fault(&self) -> Option<Fault> {
        match &self.core.lock().end {
            Some(End::Fault(fault)) => Some(fault.clone()),
            _ => None,
        }
    }

    pub(super) fn waiters(&self) -> &Arc<Waiters> {
        &self.core.waiters
    }

    /// Counts a turn of a loop as work until the guard is dropped.
    pub(super) fn work(&self, loop_id: LoopId) -> Work {
        self.core.begin_work(loop_id);
        Work {
            core: self.core.clone(),
            loop_id,
        }
    }
}

/// A turn that runs or waits.
#[derive(Debug)]
pub(super) struct Work {
    core: Arc<HubCore>,
    loop_id: LoopId,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.core.end_work(self.loop_id);
    }
}

impl HubCore {
    fn attach(session: &Session, options: HubOptions) -> Arc<HubCore> {
        let core = Arc::new(HubCore {
            session: session.id(),
            options,
            meter: session.meter().clone(),
            state: Mutex::new(State::default()),
            activity: watch::Sender::new(Activity::Idle),
            waiters: Arc::default(),
        });
        let observer: Arc<dyn Observer> = core.clone();
        let (last, recovered) = session.observe(&observer);
        let mut state = core.lock();
        // A commit may have been published since.
        state.last = state.last.max(last);
        state.recovered = recovered;
        drop(state);
        core
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes next for a subscriber.
    pub(super) fn at(&self, next: Seq) -> At {
        let state = self.lock();
        if next > state.last {
            return match &state.end {
                Some(end) => At::End(end.clone()),
                None => At::Head,
            };
        }
        match state.recent.front().map(Committed::seq) {
            Some(first) if first <= next => {
                let skip = usize::try_from(next.get() - first.get()).unwrap_or(usize::MAX);
                let recent = state
                    .recent
                    .iter()
                    .skip(skip)
                    .take(self.options.page.max(1));
                At::Events(recent.cloned().collect())
            }
            _ => At::Behind(state.last),
        }
    }

    fn emit(&self, live: Live) {
        let event = Arc::new(live.into_event());
        let wakers: Vec<Waker> = {
            let mut state = self.lock();
            if state.end.is_some() {
                return;
            }
            let after = state.last;
            let mut wakers = Vec::new();
            state.inboxes.retain(|inbox| match inbox.upgrade() {
                Some(inbox) => {
                    wakers.extend(inbox.offer(after, &event, &self.meter));
                    true
                }
                None => false,
            });
            wakers
        };
        wakers.into_iter().for_each(crate::wake::wake);
    }

    /// Ends all streams once they have given the last committed event. The first end counts.
    fn end(&self, end: End) {
        let _behind = Behind::locks();
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        state.end = Some(end.clone());
        let wakers = state.wakers();
        state.inboxes.clear();
        drop(state);
        self.activity.send_replace(Activity::Ended(end));
        self.waiters.end();
        wakers.into_iter().for_each(crate::wake::wake);
    }

    fn begin_work(&self, loop_id: LoopId) {
        let behind = Behind::locks();
        let mut state = self.lock();
        let first = state.work.is_empty();
        *state.work.entry(loop_id).or_default() += 1;
        if first && state.end.is_none() {
            self.activity.send_replace(Activity::Active);
        }
        drop(state);
        drop(behind);
        if first {
            self.emit(Live::new(self.header(LoopId::nil()), SessionActive {}));
        }
    }

    fn end_work(&self, loop_id: LoopId) {
        let behind = Behind::locks();
        let mut state = self.lock();
        let Some(count) = state.work.get_mut(&loop_id) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        state.work.remove(&loop_id);
        let idle = state.work.is_empty();
        if idle && state.end.is_none() {
            self.activity.send_replace(Activity::Idle);
        }
        drop(state);
        drop(behind);
        self.emit(Live::new(self.header(loop_id), LoopIdle {}));
        if idle {
            self.emit(Live::new(self.header(LoopId::nil()), SessionIdle {}));
        }
    }

    fn header(&self, loop_id: LoopId) -> Header {
        Header::at(Coordinates::session(self.session).in_loop(loop_id))
    }
}

impl State {
    fn wakers(&self) -> Vec<Waker> {
        let inboxes = self.inboxes.iter().filter_map(Weak::upgrade);
        inboxes.filter_map(|inbox| inbox.take_waker()).collect()
    }

    fn keep(&mut self, committed: &Committed, options: &HubOptions) {
        self.last = committed.seq();
        self.bytes += committed.encoded_len();
        self.recent.push_back(committed.clone());
        while self.recent.len() > options.recent_events || self.bytes > options.recent_bytes {
            let Some(oldest) = self.recent.pop_front() else {
                break;
            };
            self.bytes -= oldest.encoded_len();
        }
    }
}

impl Observer for HubCore {
    fn committed(&self, batch: &[Committed]) {
        let mut state = self.lock();
        if state.end.is_some() {
            // Cannot be: the commit boundary tells nothing behind a fault.
            tracing::error!(session = %self.session, "a commit behind the end was not published");
            return;
        }
        for committed in batch {
            state.keep(committed, &self.options);
        }
        let wakers = state.wakers();
        drop(state);
        wakers.into_iter().for_each(crate::wake::wake);
        self.waiters.committed(batch);
    }

    fn faulted(&self, fault: &Fault) {
        self.end(End::Fault(fault.clone()));
    }

    fn closed(&self) {
        self.end(End::Closed);
    }
}
