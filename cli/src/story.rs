//! What the records of a session tell, in their order, with the gaps that damage left. A fold of its
//! own over the replayed events: `history` shows it, and the demo compares it with the library's.

use std::collections::HashMap;

use stepwell::content::Message;
use stepwell::event::{Body, InterruptReason};
use stepwell::identity::{AgentName, LoopId, StepId, Timestamp, TurnId};
use stepwell::journal::Seq;
use stepwell::store::{Committed, ReplayError, Session};

/// A message with the record that it came with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Said {
    pub(crate) seq: Seq,
    pub(crate) loop_id: LoopId,
    pub(crate) turn: TurnId,
    pub(crate) step: StepId,
    pub(crate) at: Option<Timestamp>,
    pub(crate) proven: bool,
    pub(crate) message: Message,
}

/// One thing that the story tells.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    /// A committed message.
    Said(Said),
    /// What became of a turn of this loop, when it did not simply end well.
    Note { loop_id: LoopId, text: String },
    /// Records that cannot be read stood here.
    Gap(String),
}

/// What is known of a session's story before it is told: messages are not kept, so that a session of
/// any length can be shown.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// Its loops in the order in which they appear.
    pub(crate) loops: Vec<(LoopId, AgentName)>,
    /// Its turns that were closed because their process had ended.
    pub(crate) closed_by_restart: u64,
    /// Whether there is something that cannot be read.
    pub(crate) has_gaps: bool,
    /// Up to and including this record.
    at: Option<Seq>,
    /// Of each loop, the records with messages that stand, and how many they have.
    said: HashMap<LoopId, Vec<(Seq, usize)>>,
    /// Of each loop, the records `(to, at)` between which messages were taken back.
    rewound: HashMap<LoopId, Vec<(Seq, Seq)>>,
}

impl Story {
    /// Reads the story, up to and including the record `at`.
    pub(crate) fn read(session: &Session, at: Option<Seq>) -> Story {
        let mut story = Story {
            at,
            ..Story::default()
        };
        for read in up_to(session, at) {
            match read {
                Ok(committed) => story.take(&committed),
                Err(_) => story.has_gaps = true,
            }
        }
        story
    }

    fn take(&mut self, committed: &Committed) {
        let (event, seq) = (committed.event(), committed.seq());
        let loop_id = event.header.coordinates.loop_id;
        let known = || self.loops.iter().any(|(id, _)| *id == loop_id);
        if !loop_id.is_nil() && !self.said.contains_key(&loop_id) && !known() {
            self.loops.push((loop_id, event.header.agent_name.clone()));
            self.said.insert(loop_id, Vec::new());
        }
        let count = match &event.body {
            Body::TurnStarted(_) | Body::TurnFoldedInto(_) => 1,
            Body::StepDone(step) => step.messages.len(),
            Body::TurnInterrupted(ended) => {
                let restart = ended.reason == Some(InterruptReason::Restart);
                self.closed_by_restart += u64::from(restart);
                0
            }
            Body::Rewound(rewound) => {
                let to = Seq::new(rewound.to);
                if let Some(said) = self.said.get_mut(&loop_id) {
                    said.retain(|(seq, _)| *seq <= to);
                }
                self.rewound.entry(loop_id).or_default().push((to, seq));
                0
            }
            _ => 0,
        };
        if let Some(said) = self.said.get_mut(&loop_id)
            && count > 0
        {
            said.push((seq, count));
        }
    }

    /// How many messages a loop has.
    pub(crate) fn messages(&self, loop_id: LoopId) -> usize {
        let said = self.said.get(&loop_id).map_or(&[][..], Vec::as_slice);
        said.iter().map(|(_, count)| count).sum()
    }

    fn was_rewound(&self, loop_id: LoopId, seq: Seq) -> bool {
        let rewound = self.rewound.get(&loop_id).map_or(&[][..], Vec::as_slice);
        rewound.iter().any(|(to, at)| seq > *to && seq < *at)
    }

    /// Tells it, reading it once more.
    pub(crate) fn items<'a>(&'a self, session: &Session) -> impl Iterator<Item = Item> + 'a {
        up_to(session, self.at).flat_map(|read| match read {
            Ok(committed) => self.told(&committed),
            Err(error) => vec![Item::Gap(error.to_string())],
        })
    }

    fn told(&self, committed: &Committed) -> Vec<Item> {
        let event = committed.event();
        let at = event.header.coordinates;
        let said = |message: Message| {
            Item::Said(Said {
                seq: committed.seq(),
                loop_id: at.loop_id,
                turn: at.turn,
                step: at.step,
                at: event.header.created_at,
                proven: committed.is_proven(),
                message,
            })
        };
        let note = |text: String| {
            vec![Item::Note {
                loop_id: at.loop_id,
                text,
            }]
        };
        match &event.body {
            Body::TurnInterrupted(ended) => {
                let why = match ended.reason {
                    Some(InterruptReason::Restart) => {
                        "interrupted: its process ended, the next one closed it"
                    }
                    Some(InterruptReason::Cancelled) => "interrupted: cancelled",
                    Some(InterruptReason::Dropped) => "interrupted: the host dropped it",
                    _ => "interrupted",
                };
                note(format!("turn {} {why}", ended.turn_index))
            }
            Body::TurnFailed(failed) => note(format!(
                "turn {} failed: {}",
                failed.turn_index, failed.error.message
            )),
            Body::ContextCompacted(compacted) => note(format!(
                "the context was compacted to: {}",
                compacted.summary.to_text()
            )),
            Body::Rewound(rewound) => note(format!("rewound to record {}", rewound.to)),
            _ if self.was_rewound(at.loop_id, committed.seq()) => Vec::new(),
            Body::TurnStarted(started) => vec![said(Message::User(started.message.clone()))],
            Body::TurnFoldedInto(folded) => vec![said(Message::User(folded.message.clone()))],
            Body::StepDone(step) => step.messages.iter().cloned().map(said).collect(),
            _ => Vec::new(),
        }
    }
}

/// The records up to and including `at`; what cannot be read may stand behind it.
fn up_to(
    session: &Session,
    at: Option<Seq>,
) -> impl Iterator<Item = Result<Committed, ReplayError>> + use<> {
    let mut done = false;
    session.replay(Seq::new(1)).take_while(move |read| {
        let seq = read.as_ref().ok().map(Committed::seq);
        let beyond = done || at.is_some() && seq > at;
        done |= seq.is_some() && seq == at;
        !beyond
    })
}
