//! What the records of a session tell, in their order, with the gaps that damage left. A fold of its
//! own over the replayed events: `history` shows it, and the demo compares it with the library's.

use std::collections::HashSet;

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

/// The story of a session, up to a record.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// Its loops in the order in which they appear.
    pub(crate) loops: Vec<(LoopId, AgentName)>,
    pub(crate) items: Vec<Item>,
    /// Its steps, and its turns that were closed because their process had ended.
    pub(crate) steps: u64,
    pub(crate) closed_by_restart: u64,
    seen: HashSet<LoopId>,
}

impl Story {
    /// Reads the story, up to and including the record `at`.
    pub(crate) fn read(session: &Session, at: Option<Seq>) -> Story {
        let mut story = Story::default();
        for read in session.replay(Seq::new(1)) {
            match read {
                Ok(committed) if at.is_some_and(|at| committed.seq() > at) => break,
                Ok(committed) => {
                    story.take(&committed);
                    if Some(committed.seq()) == at {
                        break;
                    }
                }
                Err(error) => story.gap(&error),
            }
        }
        story
    }

    /// The messages, of one loop or of all.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Said> {
        self.items.iter().filter_map(|item| match item {
            Item::Said(said) => Some(said),
            _ => None,
        })
    }

    pub(crate) fn has_gaps(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Gap(_)))
    }

    /// Names something that cannot be read.
    pub(crate) fn gap(&mut self, error: &ReplayError) {
        self.items.push(Item::Gap(error.to_string()));
    }

    fn take(&mut self, committed: &Committed) {
        let event = committed.event();
        let at = event.header.coordinates;
        if !at.loop_id.is_nil() && self.seen.insert(at.loop_id) {
            self.loops
                .push((at.loop_id, event.header.agent_name.clone()));
        }
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
        let note = |text: String| Item::Note {
            loop_id: at.loop_id,
            text,
        };
        match &event.body {
            Body::TurnStarted(started) => {
                self.items
                    .push(said(Message::User(started.message.clone())));
            }
            Body::TurnFoldedInto(folded) => {
                self.items.push(said(Message::User(folded.message.clone())));
            }
            Body::StepDone(step) => {
                self.steps += 1;
                self.items.extend(step.messages.iter().cloned().map(said));
            }
            Body::TurnInterrupted(ended) => {
                let why = match ended.reason {
                    Some(InterruptReason::Restart) => {
                        self.closed_by_restart += 1;
                        "interrupted: its process ended, the next one closed it"
                    }
                    Some(InterruptReason::Cancelled) => "interrupted: cancelled",
                    Some(InterruptReason::Dropped) => "interrupted: the host dropped it",
                    _ => "interrupted",
                };
                self.items
                    .push(note(format!("turn {} {why}", ended.turn_index)));
            }
            Body::TurnFailed(failed) => self.items.push(note(format!(
                "turn {} failed: {}",
                failed.turn_index, failed.error.message
            ))),
            Body::ContextCompacted(compacted) => self.items.push(note(format!(
                "the context was compacted to: {}",
                compacted.summary.to_text()
            ))),
            Body::Rewound(rewound) => {
                self.rewind(at.loop_id, Seq::new(rewound.to));
                self.items
                    .push(note(format!("rewound to record {}", rewound.to)));
            }
            _ => {}
        }
    }

    /// The messages of the loop behind the record are taken back; what else was told stays.
    fn rewind(&mut self, loop_id: LoopId, to: Seq) {
        self.items.retain(|item| match item {
            Item::Said(said) => said.loop_id != loop_id || said.seq <= to,
            _ => true,
        });
    }
}
