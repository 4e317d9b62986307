//! What a subscription asks for.

use std::collections::BTreeSet;

use crate::event::{Class, Event, Kind, Scope};
use crate::identity::{LoopId, Visibility};
use crate::journal::Seq;

/// Where a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// With the committed event at this sequence, or the first after it.
    Seq(Seq),
    /// With what is committed from now on.
    Now,
}

impl StartAt {
    /// From a sequence on; 1 is the first.
    pub fn seq(seq: u64) -> StartAt {
        StartAt::Seq(Seq::new(seq))
    }

    /// From now on.
    pub fn now() -> StartAt {
        StartAt::Now
    }
}

/// Of which loops events are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LoopScope {
    /// Of none.
    #[default]
    None,
    /// Of these.
    Only(BTreeSet<LoopId>),
    /// Of all.
    All,
}

impl LoopScope {
    fn has(&self, loop_id: LoopId) -> bool {
        match self {
            LoopScope::None => false,
            LoopScope::Only(loops) => loops.contains(&loop_id),
            LoopScope::All => true,
        }
    }
}

/// What a subscription wants. Events of the session itself always pass, internal ones never.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// The loops whose committed events are wanted.
    pub enduring: LoopScope,
    /// The loops whose live events are wanted.
    pub live: LoopScope,
    /// The kinds that are wanted, of those; `None`: all.
    pub kinds: Option<BTreeSet<Kind>>,
}

impl Filter {
    /// Everything.
    pub fn all() -> Filter {
        Filter {
            enduring: LoopScope::All,
            live: LoopScope::All,
            kinds: None,
        }
    }

    /// What is committed, and nothing live.
    pub fn committed() -> Filter {
        Filter {
            enduring: LoopScope::All,
            live: LoopScope::None,
            kinds: None,
        }
    }

    /// What belongs to one loop.
    pub fn of_loop(loop_id: LoopId) -> Filter {
        let only = LoopScope::Only(BTreeSet::from([loop_id]));
        Filter {
            enduring: only.clone(),
            live: only,
            kinds: None,
        }
    }

    /// Of these only events of some kinds, also of the session's own.
    #[must_use]
    pub fn kinds(self, kinds: impl IntoIterator<Item = Kind>) -> Filter {
        Filter {
            kinds: Some(kinds.into_iter().collect()),
            ..self
        }
    }

    /// Of these only events of one class: [`Class::Terminal`] for the ends of turns.
    #[must_use]
    pub fn class(self, class: Class) -> Filter {
        let kinds = Kind::ALL.iter().copied();
        self.kinds(kinds.filter(|kind| kind.class() == class))
    }

    pub(super) fn admits(&self, event: &Event) -> bool {
        let loops = if event.kind().class().is_enduring() {
            &self.enduring
        } else {
            &self.live
        };
        let of_kind = match &self.kinds {
            Some(kinds) => kinds.contains(&event.kind()),
            None => true,
        };
        of_kind
            && event.header.visibility == Visibility::Public
            && match event.scope() {
                Scope::Session => event.kind().class().is_enduring() || *loops != LoopScope::None,
                Scope::Loop => loops.has(event.header.coordinates.loop_id),
            }
    }
}
