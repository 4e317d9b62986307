//! Messages read from the log: streaming, a page at a time, from the tail backwards. Nothing is read
//! beyond what is published, and memory is for a record or a page, however long the session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::boundary::SessionCore;
use super::committed::Committed;
use super::marks::Marks;
use super::replay::{Order, Replay};
use super::{ReplayError, Session};
use crate::content::{Message, UserMessage};
use crate::event::{Body, Event, Kind, StepDone, decode_header};
use crate::identity::{LoopId, StepId, TurnId};
use crate::journal::{Entry, Seq};

/// One message of a history, with the record that it came with.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryItem {
    /// The record.
    pub seq: Seq,
    /// The loop.
    pub loop_id: LoopId,
    /// The turn; nil for the summary of a compaction.
    pub turn: TurnId,
    /// The step; nil for what a user said.
    pub step: StepId,
    /// The message; shared and never changed.
    pub message: Arc<Message>,
}

/// Whether events of a kind bring messages into a history.
pub(super) fn is_said(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::TurnStarted | Kind::TurnFoldedInto | Kind::StepDone
    )
}

/// The messages that an event brings into the history of its loop.
pub(super) fn items_of(event: &Event, seq: Seq) -> Vec<HistoryItem> {
    let at = event.header.coordinates;
    let item = |message: Message| HistoryItem {
        seq,
        loop_id: at.loop_id,
        turn: at.turn,
        step: at.step,
        message: Arc::new(message),
    };
    let said = |message: &UserMessage| vec![item(Message::User(message.clone()))];
    match &event.body {
        Body::TurnStarted(started) => said(&started.message),
        Body::TurnFoldedInto(folded) => said(&folded.message),
        Body::StepDone(step) => step.messages.iter().cloned().map(item).collect(),
        _ => Vec::new(),
    }
}

/// Which part of a history is wanted. A page has at least as many messages as it asks for, if they are
/// there: the messages of one record are never split over two pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryPage {
    edge: Edge,
    messages: usize,
    rewound: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    After(Seq),
    Before(Seq),
}

impl HistoryPage {
    /// The first messages.
    pub const fn first(messages: usize) -> HistoryPage {
        HistoryPage::after(Seq::ZERO, messages)
    }

    /// The last messages.
    pub const fn last(messages: usize) -> HistoryPage {
        HistoryPage::before(Seq::new(u64::MAX), messages)
    }

    /// The messages behind a record: the last one of the page before.
    pub const fn after(seq: Seq, messages: usize) -> HistoryPage {
        HistoryPage::beside(Edge::After(seq), messages)
    }

    /// The messages before a record: the first one of the page behind.
    pub const fn before(seq: Seq, messages: usize) -> HistoryPage {
        HistoryPage::beside(Edge::Before(seq), messages)
    }

    const fn beside(edge: Edge, messages: usize) -> HistoryPage {
        HistoryPage {
            edge,
            messages,
            rewound: false,
        }
    }

    /// With the messages that were rewound: all that was ever said, in the order of the log.
    #[must_use]
    pub const fn with_rewound(self) -> HistoryPage {
        HistoryPage {
            rewound: true,
            ..self
        }
    }
}

/// What of the loops counts: where each began, and what was rewound.
#[derive(Debug, Default)]
struct Counting(HashMap<LoopId, (Seq, Marks)>);

impl Counting {
    /// As it is now, or as if nothing had ever been rewound.
    fn now(core: &SessionCore, rewound: bool) -> Result<Counting, ReplayError> {
        let state = core.state();
        let last = state.last;
        if rewound {
            let loops = state.loops.iter();
            let loops = loops.map(|known| (known.id, (known.started, Marks::default())));
            return Ok(Counting(loops.collect()));
        }
        drop(state);
        Counting::at(core, last)
    }

    /// As of a record. From the state if that knows it, else by reading the marks in the log.
    fn at(core: &SessionCore, at: Seq) -> Result<Counting, ReplayError> {
        {
            let state = core.state();
            let marks = || state.loops.iter().map(|known| &known.marks);
            let asked = match at < state.last {
                true => marks().any(|marks| !marks.rewinds.is_empty()),
                false => marks().any(Marks::is_partial),
            };
            if !asked {
                let known = state.loops.iter();
                let known = known.map(|known| (known.id, (known.started, known.marks.clone())));
                return Ok(Counting(known.collect()));
            }
        }
        let mut counting = Counting::default();
        let marks = |kind| matches!(kind, Kind::LoopStarted | Kind::Rewound);
        for committed in Replay::of_kinds(core, Seq::new(1), at, marks) {
            let committed = committed?;
            let (event, seq) = (committed.event(), committed.seq());
            let loop_id = event.header.coordinates.loop_id;
            match event.kind() {
                Kind::LoopStarted => {
                    let begun = || (seq, Marks::all());
                    counting.0.entry(loop_id).or_insert_with(begun);
                }
                _ => {
                    if let Some((_, marks)) = counting.0.get_mut(&loop_id) {
                        marks.fold(&event.body, seq);
                    }
                }
            }
        }
        Ok(counting)
    }

    fn counts(&self, loop_id: LoopId, seq: Seq) -> bool {
        let known = self.0.get(&loop_id);
        known.is_some_and(|(started, marks)| seq > *started && !marks.is_rewound(seq))
    }
}

/// The messages of a session or a loop, in order, in bounded memory. What cannot be read is one error
/// each, and reading goes on behind it, as with [`Replay`]; an error of the disk ends it.
#[derive(Debug)]
pub struct History {
    replay: Option<Replay>,
    counting: Counting,
    /// What was rewound could not be read.
    failed: Option<ReplayError>,
    items: VecDeque<HistoryItem>,
}

impl History {
    fn new(core: &SessionCore, only: Option<LoopId>, from: Seq, at: Seq) -> History {
        let at = at.min(core.state().last);
        History::of(core, only, from, at, Counting::at(core, at))
    }

    fn of(
        core: &SessionCore,
        only: Option<LoopId>,
        from: Seq,
        at: Seq,
        counting: Result<Counting, ReplayError>,
    ) -> History {
        let (counting, failed) = match counting {
            Ok(counting) => (counting, None),
            Err(error) => (Counting::default(), Some(error)),
        };
        let replay = match only {
            Some(loop_id) => {
                let started = counting.0.get(&loop_id).map(|(started, _)| *started);
                let from = from.max(started.unwrap_or(at.next()));
                Replay::of_loop(core, loop_id, from, at, is_said)
            }
            None => Replay::of_kinds(core, from, at, is_said),
        };
        History {
            replay: failed.is_none().then_some(replay),
            counting,
            failed,
            items: VecDeque::new(),
        }
    }

    /// The messages of the next record that has some.
    fn next_record(&mut self) -> Option<Result<Vec<HistoryItem>, ReplayError>> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        loop {
            let committed = match self.replay.as_mut()?.next()? {
                Ok(committed) => committed,
                Err(error) => return Some(Err(error)),
            };
            let (event, seq) = (committed.event(), committed.seq());
            if self.counting.counts(event.header.coordinates.loop_id, seq) {
                return Some(Ok(items_of(event, seq)));
            }
        }
    }
}

impl Iterator for History {
    type Item = Result<HistoryItem, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.items.is_empty() {
            match self.next_record()? {
                Ok(items) => self.items.extend(items),
                Err(error) => return Some(Err(error)),
            }
        }
        self.items.pop_front().map(Ok)
    }
}

impl Session {
    /// The committed messages of all loops, by record, without what was rewound. All of them are in
    /// memory then: [`Session::read_history`] and [`Session::history_page`] give them bit by bit.
    ///
    /// Like all that gives messages it reads the log, and blocks; async callers use
    /// [`Session::run`]. Nothing is read beyond [`Session::last_seq`].
    ///
    /// # Errors
    /// [`ReplayError`]: a record cannot be read; a gap is never joined in silence.
    pub fn history(&self) -> Result<Vec<HistoryItem>, ReplayError> {
        self.read_history(Seq::new(1)).collect()
    }

    /// The same, from a record on and one by one: memory is for one record at a time.
    pub fn read_history(&self, from: Seq) -> History {
        History::new(&self.core, None, from, Seq::new(u64::MAX))
    }

    /// The history as it was when the record `at` was the last. If anything was ever rewound, the log
    /// is read up to there once more, to see what was rewound by then.
    ///
    /// # Errors
    /// As for [`Session::history`].
    pub fn history_at(&self, at: Seq) -> Result<Vec<HistoryItem>, ReplayError> {
        History::new(&self.core, None, Seq::new(1), at).collect()
    }

    /// The committed messages of one loop. Blocks.
    ///
    /// # Errors
    /// As for [`Session::history`].
    pub fn loop_history(&self, loop_id: LoopId) -> Result<Vec<Arc<Message>>, ReplayError> {
        let all = Seq::new(u64::MAX);
        let history = History::new(&self.core, Some(loop_id), Seq::new(1), all);
        history.map(|item| Ok(item?.message)).collect()
    }

    /// A page of the history, in order. Reads what is on the page and at most one segment more, in
    /// both directions, and blocks.
    ///
    /// # Errors
    /// As for [`Session::history`], for the records that it reads.
    pub fn history_page(&self, page: HistoryPage) -> Result<Vec<HistoryItem>, ReplayError> {
        match page.edge {
            Edge::Before(seq) => self.page_before(seq, page),
            Edge::After(seq) => {
                let last = self.core.state().last;
                let counting = Counting::now(&self.core, page.rewound);
                let mut history = History::of(&self.core, None, seq.next(), last, counting);
                let mut items = Vec::new();
                while items.len() < page.messages
                    && let Some(more) = history.next_record()
                {
                    items.extend(more?);
                }
                Ok(items)
            }
        }
    }

    fn page_before(&self, seq: Seq, page: HistoryPage) -> Result<Vec<HistoryItem>, ReplayError> {
        let (core, messages) = (&self.core, page.messages);
        let last = core.state().last;
        let counting = Counting::now(core, page.rewound)?;
        let counts = |entry: &Entry| {
            let header = decode_header(&entry.payload, &core.limits).ok()?;
            let said = header.kind.is_some_and(is_said);
            Some(said && counting.counts(header.loop_id, entry.seq))
        };
        let mut before = seq.min(last.next());
        let mut items = VecDeque::new();
        while items.len() < messages && before > Seq::new(1) {
            // Each has a message at least, so the last ones of a segment suffice.
            let wanted = messages - items.len();
            let mut kept: VecDeque<Entry> = VecDeque::new();
            before = backwards(core, before, |entry| {
                // One that cannot be read shows when it is decoded.
                if counts(&entry) != Some(false) {
                    kept.push_back(entry);
                }
                if kept.len() > wanted {
                    kept.pop_front();
                }
            })?;
            for entry in kept.iter().rev() {
                if items.len() >= messages {
                    break;
                }
                if let Some((committed, _)) = core.decoder.decode(entry)? {
                    for item in items_of(committed.event(), committed.seq())
                        .into_iter()
                        .rev()
                    {
                        items.push_front(item);
                    }
                }
            }
        }
        Ok(items.into())
    }

    /// A committed step, looked for from the tail of the log backwards: recent ones cost a segment,
    /// one that is not there costs the whole log. Also one that was rewound. Blocks.
    ///
    /// # Errors
    /// [`ReplayError`]: what cannot be read may be the step.
    pub fn step(&self, id: StepId) -> Result<Option<Committed<StepDone>>, ReplayError> {
        let core = &self.core;
        let mut before = core.state().last.next();
        while before > Seq::new(1) {
            let mut found = None;
            before = backwards(core, before, |entry| {
                let header = decode_header(&entry.payload, &core.limits);
                if header
                    .is_ok_and(|header| header.step == id && header.kind == Some(Kind::StepDone))
                {
                    found = Some(entry);
                }
            })?;
            if let Some(entry) = found {
                let decoded = core.decoder.decode(&entry)?;
                return Ok(decoded.and_then(|(committed, _)| committed.typed()));
            }
        }
        Ok(None)
    }
}

/// Gives the records of the last segment that has some before a record, in order; the first of them.
/// They must reach up to that record: a gap is never joined in silence.
fn backwards(
    core: &SessionCore,
    before: Seq,
    mut each: impl FnMut(Entry),
) -> Result<Seq, ReplayError> {
    let gap = |found| ReplayError::Gap {
        expected: Seq::new(before.get().saturating_sub(1)),
        found,
    };
    let entries = core.log.segment_before(before)?.ok_or(gap(before))?;
    let mut order: Option<(Seq, Order)> = None;
    let mut next = Seq::ZERO;
    for entry in entries {
        let entry = entry?;
        if entry.seq >= before {
            break;
        }
        let (_, order) = order.get_or_insert((entry.seq, Order::from(entry.seq)));
        order.take(entry.seq)?;
        next = entry.seq.next();
        each(entry);
    }
    match order {
        Some((first, _)) if next == before => Ok(first),
        _ => Err(gap(next)),
    }
}
