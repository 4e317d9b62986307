//! The commit path: batches queue, one of those that wait takes the commit token, writes all that is
//! queued as one group, and settles it. A lone blocking caller does its own write and sync, without
//! a hop between threads; when others queued meanwhile, a worker goes on with them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::error::{AppendError, CloseError, Fault, FaultCause, NotCommitted};
use super::fault::FaultCell;
use super::follow::{Bell, FollowError};
use super::group::Group;
use super::prepare::Preparer;
use super::record::Unstamped;
use super::spans::Spans;
use super::ticket::{Outcome, Settle, Sink, Slot};
use super::witness::{QUIET, Witness};
use super::workers::{Chore, Serve, Workers};
use super::writer::{Pulse, Writer};
use super::{Carry, JournalOptions, Seq};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::wake::{Behind, is_waking};

/// Largest batch in bytes: it lies in one segment (W2).
const MAX_BATCH: u64 = 1024 * 1024 * 1024;
/// How often the one who has written a group of several lets those that it woke queue again before
/// it looks whether somebody waits.
const YIELDS: usize = 3;
/// Bytes that a buffer keeps for the next group when the journal is idle.
const KEPT: usize = 64 * 1024;

/// What a caller does when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    Wait,
    Refuse,
    /// It is taken in all the same: its caller waits for it and so is a bound by itself.
    Exceed,
}

/// A journal behind its handles.
pub(crate) struct Core {
    token: Mutex<Writer>,
    queue: Mutex<Queue>,
    /// There is room in the queue again.
    room: Condvar,
    /// Groups below this number are settled.
    settled: Mutex<u64>,
    /// Where the blocked threads of a group wait, by its number: one call of the system wakes all of
    /// them, and those of the next group are not woken with them.
    answers: [Condvar; 2],
    witness: Witness,
    workers: Workers,
    pub(crate) fault: FaultCell,
    pub(crate) preparer: Arc<Preparer>,
    pub(crate) pulse: Arc<Pulse>,
    spans: Spans,
    /// Who follows.
    pub(crate) bell: Arc<Bell>,
    /// The layer above, and whether it was told of the fault.
    carry: Arc<dyn Carry>,
    told: AtomicBool,
    max_payload: u32,
    max_queued: usize,
    max_queued_bytes: u64,
    me: Weak<Core>,
}

#[derive(Default)]
struct Queue {
    group: Group,
    /// The number of this group.
    number: u64,
    /// How many blocked threads wait for it, the one that leads apart.
    blocked: usize,
    /// Whether somebody will take what is queued: the holder of the token, or a worker.
    served: bool,
    closed: bool,
    /// Threads that wait for room.
    waiting: usize,
    free: Vec<Arc<Slot>>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The slot of a thread that blocks: it waits for one batch at a time.
    static OWN_SLOT: Arc<Slot> = Arc::default();
}

impl Core {
    pub(crate) fn new(
        writer: Writer,
        spans: Spans,
        max_payload: u32,
        options: &JournalOptions,
        workers: Workers,
    ) -> Arc<Core> {
        Arc::new_cyclic(|me| Core {
            fault: writer.fault.clone(),
            preparer: writer.preparer.clone(),
            pulse: writer.pulse.clone(),
            carry: writer.carry.clone(),
            told: AtomicBool::new(false),
            token: Mutex::new(writer),
            queue: Mutex::default(),
            room: Condvar::new(),
            settled: Mutex::new(0),
            answers: Default::default(),
            witness: Witness::default(),
            workers,
            spans,
            bell: Arc::default(),
            max_payload,
            max_queued: options.queue_records,
            max_queued_bytes: options.queue_bytes,
            me: me.clone(),
        })
    }

    /// The commit token.
    pub(crate) fn token(&self) -> MutexGuard<'_, Writer> {
        lock(&self.token)
    }

    pub(crate) fn queued(&self) -> usize {
        lock(&self.queue).group.batches.len()
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.queue).closed
    }

    /// Appends and waits.
    pub(crate) fn append(
        &self,
        batch: &mut [Unstamped<'_>],
        expected: Option<Seq>,
        full: WhenFull,
    ) -> Outcome {
        self.check(batch)?;
        let slot = OWN_SLOT.try_with(Arc::clone).unwrap_or_default();
        let mut queue = self.with_room(batch, full)?;
        queue
            .group
            .push(batch, expected, Some(Settle::Slot(slot.clone())));
        // Who serves may be this very thread, waking others: it does not come back before we do.
        let leads = !queue.served || is_waking();
        queue.served = true;
        let number = queue.number;
        queue.blocked += usize::from(!leads);
        drop(queue);
        if leads {
            self.lead();
        }
        let outcome = match self.workers.is_manual() {
            true => self.drive(&slot),
            false => {
                self.wait_for_group(number);
                slot.take()
            }
        };
        outcome.unwrap_or(Err(NotCommitted::Closed.into()))
    }

    /// Blocks until all that is queued is settled.
    pub(crate) fn settle_queued(&self) {
        loop {
            let mut queue = lock(&self.queue);
            if queue.group.is_empty() {
                break;
            }
            let leads = !queue.served || is_waking();
            queue.served = true;
            let number = queue.number;
            let blocks = !leads && !self.workers.is_manual();
            queue.blocked += usize::from(blocks);
            drop(queue);
            if leads {
                self.lead();
            } else if blocks {
                self.wait_for_group(number);
            } else if !self.workers.run_queued() {
                break;
            }
        }
        // What was taken from the queue is settled before the token is given back.
        let _behind = Behind::locks();
        drop(self.token());
    }

    /// Blocks until a group is settled.
    fn wait_for_group(&self, number: u64) {
        let mut settled = lock(&self.settled);
        while *settled <= number {
            settled = self
                .answer(number)
                .wait(settled)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn answer(&self, number: u64) -> &Condvar {
        let [even, odd] = &self.answers;
        match number.is_multiple_of(2) {
            true => even,
            false => odd,
        }
    }

    /// Queues and has a worker write it; the outcome goes to a slot.
    pub(crate) fn submit(&self, batch: &mut [Unstamped<'_>], expected: Option<Seq>) -> Arc<Slot> {
        let queued = self
            .check(batch)
            .and_then(|()| self.with_room(batch, WhenFull::Refuse));
        match queued {
            Ok(mut queue) => {
                let slot = queue.free.pop().unwrap_or_default();
                let settle = Settle::Slot(slot.clone());
                queue.group.push(batch, expected, Some(settle));
                self.have_served(queue);
                slot
            }
            Err(reason) => {
                let slot = Arc::new(Slot::default());
                slot.fulfil(Err(reason.into()));
                slot
            }
        }
    }

    /// Queues for one that is told the outcome. Nothing is told if this is an error. Whether the
    /// caller has to call [`Core::lead`]; only one that may block can `offer` that.
    pub(crate) fn enqueue(
        &self,
        batch: &mut [Unstamped<'_>],
        expected: Option<Seq>,
        sink: Arc<dyn Sink>,
        full: WhenFull,
        offer: bool,
    ) -> Result<bool, NotCommitted> {
        self.check(batch)?;
        let mut queue = self.with_room(batch, full)?;
        let settle = Settle::Sink(sink);
        queue.group.push(batch, expected, Some(settle));
        let leads = offer && (!queue.served || is_waking());
        match leads {
            true => queue.served = true,
            false => self.have_served(queue),
        }
        Ok(leads)
    }

    /// A worker takes what is queued, unless somebody is about to.
    fn have_served(&self, mut queue: MutexGuard<'_, Queue>) {
        let served = std::mem::replace(&mut queue.served, true);
        drop(queue);
        if !served {
            self.hand_over();
        }
    }

    fn hand_over(&self) {
        if let Some(me) = self.me.upgrade() {
            self.workers.serve(me);
        }
    }

    /// What is refused before it is queued.
    fn check(&self, batch: &[Unstamped<'_>]) -> Result<(), NotCommitted> {
        if batch.is_empty() {
            return Err(NotCommitted::Empty);
        }
        let limit = usize::from(u16::MAX);
        if batch.len() > limit {
            return Err(NotCommitted::BatchTooLarge {
                count: batch.len(),
                limit,
            });
        }
        let limit = u64::from(self.max_payload);
        let too_large = batch
            .iter()
            .map(|frame| frame.payload.len() as u64)
            .find(|length| *length > limit);
        if let Some(length) = too_large {
            return Err(NotCommitted::RecordTooLarge { length, limit });
        }
        let bytes = bytes_of(batch);
        if bytes > MAX_BATCH {
            return Err(NotCommitted::BatchTooLong {
                bytes,
                limit: MAX_BATCH,
            });
        }
        Ok(())
    }

    /// The queue, when it has room for the batch. A batch that is larger than the bound goes into an
    /// empty queue.
    fn with_room(
        &self,
        batch: &[Unstamped<'_>],
        full: WhenFull,
    ) -> Result<MutexGuard<'_, Queue>, NotCommitted> {
        let bytes = bytes_of(batch);
        let mut queue = lock(&self.queue);
        loop {
            if let Some(fault) = self.fault.get() {
                return Err(NotCommitted::Faulted(fault.clone()));
            }
            if queue.closed {
                return Err(NotCommitted::Closed);
            }
            let records = queue.group.blanks.len();
            let fits = records + batch.len() <= self.max_queued
                && queue.group.length + bytes <= self.max_queued_bytes;
            if fits || queue.group.is_empty() || full == WhenFull::Exceed {
                return Ok(queue);
            }
            if full == WhenFull::Refuse {
                return Err(NotCommitted::Busy {
                    records,
                    bytes: queue.group.length,
                });
            }
            if is_waking() {
                drop(queue);
                self.write_group();
                queue = lock(&self.queue);
            } else if self.workers.is_manual() {
                drop(queue);
                self.workers.run_queued();
                queue = lock(&self.queue);
            } else {
                queue.waiting += 1;
                queue = self
                    .room
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
                queue.waiting -= 1;
            }
        }
    }

    /// For who found nobody serving the queue: writes what is queued, its own batch among it, and
    /// hands on what came meanwhile.
    pub(crate) fn lead(&self) {
        self.write_group();
        if self.rest() {
            self.hand_over();
        }
    }

    /// Takes all that is queued and writes it. A disk that panics (a test's can) leaves the outcome
    /// unknown, like one that fails.
    fn write_group(&self) -> usize {
        let behind = Behind::locks();
        let mut writer = self.token();
        let mut group = std::mem::take(&mut writer.spare);
        let (number, blocked) = {
            let mut queue = lock(&self.queue);
            std::mem::swap(&mut queue.group, &mut group);
            if queue.waiting > 0 {
                self.room.notify_all();
            }
            queue.number += 1;
            (queue.number - 1, std::mem::take(&mut queue.blocked))
        };
        let batches = group.batches.len();
        let written = catch_unwind(AssertUnwindSafe(|| {
            writer.commit(&mut group, &mut |settle, outcome| {
                self.settle(settle, outcome);
            });
        }));
        if written.is_err() {
            let fault = writer.poison(FaultCause::Panic);
            for settle in group
                .batches
                .iter_mut()
                .filter_map(|batch| batch.settle.take())
            {
                self.settle(settle, Err(AppendError::Unknown(fault.clone())));
            }
        }
        group.clear();
        writer.spare = group;
        self.bell.ring();
        self.after_group(&mut writer);
        *lock(&self.settled) = number + 1;
        drop(writer);
        if blocked > 0 {
            self.answer(number).notify_all();
        }
        drop(behind);
        batches
    }

    /// What a group leads to aside.
    fn after_group(&self, writer: &mut Writer) {
        if let Some(fault) = self.fault.get() {
            self.end_of(fault);
            return;
        }
        if let Some(header) = writer.wants_successor(self.workers.have_time())
            && self.preparer.want(header, self.spans.used())
        {
            self.aside(Chore::Prepare, Duration::ZERO);
        }
        if self.witness.begin(writer.last) {
            self.aside(Chore::Witness, QUIET);
        }
    }

    fn aside(&self, chore: Chore, delay: Duration) {
        self.workers.later(self.me.clone(), chore, delay);
    }

    fn settle(&self, settle: Settle, outcome: Outcome) {
        match settle {
            Settle::Slot(slot) => slot.fulfil(outcome),
            Settle::Sink(sink) => sink.settled(outcome),
        }
    }

    /// Whether something is queued; if not, nobody serves the queue any more.
    fn rest(&self) -> bool {
        let mut queue = lock(&self.queue);
        queue.served = !queue.group.is_empty();
        queue.served
    }

    /// Without threads, who waits runs the queue.
    fn drive(&self, slot: &Slot) -> Option<Outcome> {
        loop {
            let outcome = slot.take();
            if outcome.is_some() || !self.workers.run_queued() {
                return outcome;
            }
        }
    }

    pub(crate) fn runs_by_hand(&self) -> bool {
        self.workers.is_manual()
    }

    pub(crate) fn run_by_hand(&self) -> bool {
        self.workers.run_queued()
    }

    /// A slot whose outcome was taken.
    pub(crate) fn give_back(&self, slot: Arc<Slot>) {
        let mut queue = lock(&self.queue);
        if queue.free.len() < self.max_queued {
            queue.free.push(slot);
        }
    }

    /// A fault that did not come from a group: those who follow are told when no group is under way
    /// that may still count.
    pub(crate) fn tell_of_fault(&self) {
        if let Some(fault) = self.fault.get() {
            let _behind = Behind::locks();
            let _token = self.token();
            self.end_of(fault);
        }
    }

    /// Tells the layer above and those who follow of the fault.
    fn end_of(&self, fault: &Fault) {
        if !self.told.swap(true, Ordering::AcqRel) {
            self.carry.faulted(fault);
        }
        self.bell.end(FollowError::Faulted(fault.clone()));
    }

    /// Closes, after what is queued was written.
    pub(crate) fn close(&self) -> Result<(), CloseError> {
        self.shut();
        let _behind = Behind::locks();
        let mut writer = self.token();
        let outcome = writer.close();
        self.bell.end(self.how_it_ended());
        outcome
    }

    /// Closes the files of an idle journal until it is used again.
    pub(crate) fn park(&self) -> Result<(), AppendError> {
        let mut writer = self.token();
        let outcome = writer.park();
        if outcome.is_ok() {
            self.witness.rest();
            writer.spare.shrink(0);
        }
        drop(writer);
        self.tell_of_fault();
        outcome
    }

    fn how_it_ended(&self) -> FollowError {
        match self.fault.get() {
            Some(fault) => FollowError::Faulted(fault.clone()),
            None => FollowError::Closed,
        }
    }

    /// Nothing is queued any more; what is queued is written first.
    fn shut(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let left = !queue.group.is_empty();
        drop(queue);
        self.room.notify_all();
        if left {
            self.write_group();
        }
    }
}

impl Serve for Core {
    fn serve(&self) -> bool {
        let written = self.write_group();
        if written > 1 && !self.workers.is_manual() {
            // Those that were woken queue again in a moment: a group of many costs one sync.
            for _ in 0..YIELDS {
                if lock(&self.queue).group.batches.len() >= written {
                    break;
                }
                std::thread::yield_now();
            }
        }
        self.rest()
    }

    fn chore(&self, chore: Chore) -> Option<Duration> {
        let again = match chore {
            Chore::Prepare => self.preparer.aside(self.spans.used()),
            Chore::Witness => {
                let again = self.witness.look(self.spans.last(), || self.token());
                if again.is_none() {
                    self.token().spare.shrink(KEPT);
                }
                again
            }
        };
        self.tell_of_fault();
        again
    }
}

impl Drop for Core {
    /// Nobody can append any more.
    fn drop(&mut self) {
        self.bell.end(self.how_it_ended());
    }
}

/// Bytes of the frames of a batch.
fn bytes_of(batch: &[Unstamped<'_>]) -> u64 {
    batch
        .iter()
        .map(Unstamped::frame_len)
        .fold(0, u64::saturating_add)
}
