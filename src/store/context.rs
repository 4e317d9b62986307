//! What the models of a session's loops see: read from the log when it is asked for, extended by
//! commits while it is in memory, dropped again when all of it is more than the session may hold.
//!
//! One fold makes a context, whether its events come from the log or from a commit (P4).

use std::collections::HashMap;
use std::sync::Arc;

use super::boundary::SessionCore;
use super::committed::Committed;
use super::history::items_of;
use super::marks::{Marks, Standing};
use super::replay::Replay;
use super::state::SessionState;
use super::{HistoryItem, ReplayError};
use crate::content::Message;
use crate::event::{Body, Kind};
use crate::identity::LoopId;
use crate::journal::Seq;

/// A message with its share of the bytes: the first of a record has all of its record.
#[derive(Debug, Clone)]
struct Held {
    item: HistoryItem,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Compacted {
    summary: Held,
    /// The first record that stays beside it.
    needs: Seq,
}

/// The context of one loop.
#[derive(Debug, Clone)]
pub(super) struct Context {
    loop_id: LoopId,
    /// Everything of the loop from here on is held, but what was rewound.
    from: Seq,
    /// Whether there is nothing of the loop before.
    whole: bool,
    items: Vec<Held>,
    compactions: Vec<Compacted>,
    bytes: usize,
}

impl Context {
    fn new(loop_id: LoopId, from: Seq, whole: bool) -> Context {
        Context {
            loop_id,
            from,
            whole,
            items: Vec::new(),
            compactions: Vec::new(),
            bytes: 0,
        }
    }

    /// Takes an event of the loop in.
    fn fold(&mut self, committed: &Committed) {
        let (event, seq) = (committed.event(), committed.seq());
        let mut bytes = committed.encoded_len();
        match &event.body {
            Body::ContextCompacted(compacted) => {
                self.bytes += bytes;
                let at = event.header.coordinates;
                let message = Message::User(compacted.summary.clone());
                let summary = HistoryItem {
                    seq,
                    loop_id: at.loop_id,
                    turn: at.turn,
                    step: at.step,
                    message: Arc::new(message),
                };
                self.compactions.push(Compacted {
                    summary: Held {
                        item: summary,
                        bytes,
                    },
                    needs: needs(compacted.keep_from, seq),
                });
            }
            Body::Rewound(rewound) => {
                let to = Seq::new(rewound.to);
                self.items.retain(|held| held.item.seq <= to);
                self.compactions.retain(|kept| kept.summary.item.seq <= to);
                self.count();
            }
            _ => {
                for item in items_of(event, seq) {
                    self.bytes += bytes;
                    self.items.push(Held { item, bytes });
                    bytes = 0;
                }
            }
        }
    }

    fn count(&mut self) {
        let summaries = self.compactions.iter().map(|kept| kept.summary.bytes);
        let items = self.items.iter().map(|held| held.bytes);
        self.bytes = items.chain(summaries).sum();
    }

    /// Lets go of what the last compaction took out.
    fn settle(&mut self) {
        let Some(last) = self.compactions.pop() else {
            return;
        };
        if !self.compactions.is_empty() || last.needs > self.from {
            self.items.retain(|held| held.item.seq >= last.needs);
            self.from = self.from.max(last.needs);
            self.whole = false;
        }
        self.compactions.clear();
        self.compactions.push(last);
        self.count();
    }

    /// Takes a commit in. Not if it needs something that is not held any more: then it has to be read
    /// again.
    fn take(&mut self, committed: &Committed) -> bool {
        let standing = self.compactions.last();
        let fits = match &committed.event().body {
            Body::ContextCompacted(compacted) => {
                self.whole || needs(compacted.keep_from, committed.seq()) >= self.from
            }
            Body::Rewound(rewound) => {
                standing.is_none_or(|standing| standing.summary.item.seq.get() <= rewound.to)
            }
            _ => true,
        };
        if fits {
            self.fold(committed);
            if committed.event().kind() == Kind::ContextCompacted {
                self.settle();
            }
        }
        fits
    }

    /// What the model sees: the last summary and the messages that stay beside it, or all.
    fn messages(&self) -> Vec<Arc<Message>> {
        let summary = self.compactions.last().map(|last| &last.summary);
        let held = summary.into_iter().chain(&self.items);
        held.map(|held| held.item.message.clone()).collect()
    }
}

fn needs(keep_from: u64, seq: Seq) -> Seq {
    super::marks::Compaction { seq, keep_from }.needs()
}

/// A context that is being read: what is committed meanwhile.
#[derive(Debug, Clone)]
struct Loading {
    ticket: u64,
    loop_id: LoopId,
    since: Vec<Committed>,
}

#[derive(Debug, Clone)]
struct Loaded {
    context: Context,
    used: u64,
}

/// The contexts of a session that are in memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Contexts {
    limit: usize,
    bytes: usize,
    clock: u64,
    loaded: HashMap<LoopId, Loaded>,
    loading: Vec<Loading>,
}

impl Contexts {
    /// At most so many bytes of records.
    pub(super) fn new(limit: usize) -> Contexts {
        Contexts {
            limit,
            ..Contexts::default()
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn get(&mut self, loop_id: LoopId) -> Option<Vec<Arc<Message>>> {
        let now = self.tick();
        let loaded = self.loaded.get_mut(&loop_id)?;
        loaded.used = now;
        Some(loaded.context.messages())
    }

    /// Takes a commit in.
    pub(super) fn take(&mut self, committed: &Committed) {
        if self.loaded.is_empty() && self.loading.is_empty() {
            return;
        }
        let loop_id = committed.event().header.coordinates.loop_id;
        for loading in &mut self.loading {
            if loading.loop_id == loop_id {
                loading.since.push(committed.clone());
            }
        }
        let Some(loaded) = self.loaded.get_mut(&loop_id) else {
            return;
        };
        let before = loaded.context.bytes;
        let fits = loaded.context.take(committed);
        self.bytes = self.bytes + loaded.context.bytes - before;
        match fits {
            true => self.fit(),
            false => self.drop_context(loop_id),
        }
    }

    fn drop_context(&mut self, loop_id: LoopId) {
        if let Some(dropped) = self.loaded.remove(&loop_id) {
            self.bytes -= dropped.context.bytes;
        }
    }

    /// Drops what was not asked for the longest, until the rest fits.
    fn fit(&mut self) {
        while self.bytes > self.limit {
            let oldest = self.loaded.iter().min_by_key(|(_, loaded)| loaded.used);
            let Some(oldest) = oldest.map(|(loop_id, _)| *loop_id) else {
                return;
            };
            self.drop_context(oldest);
        }
    }

    fn begin(&mut self, loop_id: LoopId) -> u64 {
        let ticket = self.tick();
        self.loading.push(Loading {
            ticket,
            loop_id,
            since: Vec::new(),
        });
        ticket
    }

    fn end(&mut self, ticket: u64) -> Vec<Committed> {
        let mut loading = self.loading.iter();
        let found = loading.position(|loading| loading.ticket == ticket);
        found.map_or_else(Vec::new, |found| self.loading.swap_remove(found).since)
    }

    /// Keeps a context that was read, unless it alone is too large.
    fn keep(&mut self, context: Context) {
        self.drop_context(context.loop_id);
        if context.bytes > self.limit {
            return;
        }
        self.bytes += context.bytes;
        let (loop_id, used) = (context.loop_id, self.tick());
        self.loaded.insert(loop_id, Loaded { context, used });
        self.fit();
    }
}

impl SessionState {
    /// What the model of a loop sees, if the log need not be asked: it is in memory, or nothing was
    /// said yet, and then it is in memory from now on.
    pub(super) fn known_context(&mut self, loop_id: LoopId) -> Option<Vec<Arc<Message>>> {
        if let Some(messages) = self.contexts.get(loop_id) {
            return Some(messages);
        }
        let fresh = match self.find(loop_id) {
            Some(found) if found.turns == 0 && found.marks == Marks::default() => found.started,
            Some(_) => return None,
            None => return Some(Vec::new()),
        };
        self.contexts.keep(Context::new(loop_id, fresh, true));
        Some(Vec::new())
    }
}

/// Ends a loading that fails.
struct Begun<'a> {
    core: &'a SessionCore,
    ticket: u64,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.core.state().contexts.end(self.ticket);
    }
}

impl SessionCore {
    /// What the model of a loop sees; read from the log unless it is in memory.
    pub(super) fn context(&self, loop_id: LoopId) -> Result<Vec<Arc<Message>>, ReplayError> {
        loop {
            let (begun, last, started, standing) = {
                let mut state = self.state();
                if let Some(messages) = state.known_context(loop_id) {
                    return Ok(messages);
                }
                let Some(found) = state.find(loop_id) else {
                    return Ok(Vec::new());
                };
                let (started, standing) = (found.started, found.marks.standing());
                let ticket = state.contexts.begin(loop_id);
                (ticket, state.last, started, standing)
            };
            let begun = Begun {
                core: self,
                ticket: begun,
            };
            let mut context = self.read_context(loop_id, started, standing, last)?;
            let mut state = self.state();
            // Neither lost nor doubled: what was committed since `last` was read.
            let since = state.contexts.end(begun.ticket);
            if since.iter().all(|committed| context.take(committed)) {
                let messages = context.messages();
                state.contexts.keep(context);
                drop(state);
                return Ok(messages);
            }
        }
    }

    fn read_context(
        &self,
        loop_id: LoopId,
        started: Seq,
        standing: Standing,
        last: Seq,
    ) -> Result<Context, ReplayError> {
        let standing = match standing {
            Standing::Forgotten => {
                let mut marks = Marks::all();
                for committed in Replay::of_loop(self, loop_id, started, last, is_mark) {
                    let committed = committed?;
                    marks.fold(&committed.event().body, committed.seq());
                }
                marks.standing()
            }
            known => known,
        };
        let from = match standing {
            Standing::At(compaction) => compaction.needs().max(started),
            Standing::None | Standing::Forgotten => started,
        };
        let mut context = Context::new(loop_id, from, from == started);
        for committed in Replay::of_loop(self, loop_id, from, last, is_context) {
            context.fold(&committed?);
        }
        context.settle();
        Ok(context)
    }
}

fn is_mark(kind: Kind) -> bool {
    matches!(kind, Kind::ContextCompacted | Kind::Rewound)
}

fn is_context(kind: Kind) -> bool {
    is_mark(kind) || super::history::is_said(kind)
}
