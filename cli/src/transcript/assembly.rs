//! Puts the lines of a transcript together: parts to messages, results to calls, messages to turns.

use std::collections::{HashMap, HashSet, VecDeque};

use stepwell::content::{AssistantMessage, Block, ToolResultMessage, UserMessage};

use super::line::{AssistantParts, Part, ToolResult, UserParts};
use super::{Report, Step, Trouble, Turn};

/// What stands for the user when the model speaks first.
const NOBODY: &str = "[the transcript begins without a user's text]";

/// The turns so far.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    turns: Vec<OpenTurn>,
    /// The messages of the last turn that have an id.
    by_id: HashMap<String, usize>,
    waiting: Waiting,
}

#[derive(Debug)]
struct OpenTurn {
    user: UserMessage,
    messages: Vec<OpenMessage>,
}

/// A message that may still get parts and results.
#[derive(Debug, Default)]
struct OpenMessage {
    line: u64,
    assistant: AssistantMessage,
    calls: Vec<Call>,
    /// The ids that its calls have, and the call of each id that stands in the transcript.
    ids: HashSet<String>,
    given: HashMap<String, usize>,
    /// How many ids were tried when ids had to be made up: none is tried twice.
    made_up: u64,
}

#[derive(Debug)]
struct Call {
    id: String,
    block: usize,
    result: Option<ToolResultMessage>,
}

/// Where a call stands: turn, message, call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    turn: usize,
    message: usize,
    call: usize,
}

/// The calls without a result, by the id in the transcript. A result belongs to the last message
/// that has such a call, and there to the first such call.
#[derive(Debug, Default)]
struct Waiting(HashMap<Option<String>, Vec<VecDeque<At>>>);

impl Waiting {
    fn push(&mut self, id: Option<String>, at: At) {
        let groups = self.0.entry(id).or_default();
        let same = |group: &&mut VecDeque<At>| {
            let last = group.back();
            last.is_some_and(|last| (last.turn, last.message) == (at.turn, at.message))
        };
        match groups.last_mut().filter(same) {
            Some(group) => group.push_back(at),
            None => groups.push(VecDeque::from([at])),
        }
    }

    fn take(&mut self, id: &Option<String>) -> Option<At> {
        let groups = self.0.get_mut(id)?;
        let at = groups.last_mut()?.pop_front();
        if groups.last().is_some_and(VecDeque::is_empty) {
            groups.pop();
        }
        at
    }
}

impl Assembly {
    /// A user's line: its results answer the calls before it, its text begins a turn.
    pub(super) fn user(&mut self, line: u64, parts: UserParts, report: &mut Report) {
        for result in parts.results {
            self.answer(line, result, report);
        }
        if !parts.blocks.is_empty() {
            self.begin(UserMessage {
                blocks: parts.blocks,
            });
        }
    }

    fn begin(&mut self, user: UserMessage) {
        self.by_id.clear();
        self.turns.push(OpenTurn {
            user,
            messages: Vec::new(),
        });
    }

    fn answer(&mut self, line: u64, result: ToolResult, report: &mut Report) {
        let found = self.waiting.take(&result.call);
        let call = found.and_then(|at| {
            let turn = self.turns.get_mut(at.turn)?;
            turn.messages.get_mut(at.message)?.calls.get_mut(at.call)
        });
        match call {
            Some(call) => {
                call.result = Some(ToolResultMessage {
                    tool_use_id: call.id.clone(),
                    is_error: result.is_error,
                    blocks: result.blocks,
                });
            }
            None => report.add(line, Trouble::NoSuchCall(result.call.unwrap_or_default())),
        }
    }

    /// An assistant's line: a part of the message with its id, or a message of its own.
    pub(super) fn assistant(&mut self, line: u64, parts: AssistantParts) {
        if self.turns.is_empty() {
            self.begin(UserMessage::text(NOBODY));
        }
        let turn_index = self.turns.len() - 1;
        let Some(turn) = self.turns.last_mut() else {
            return;
        };
        let known = parts.id.as_ref().and_then(|id| self.by_id.get(id));
        let index = known.copied().unwrap_or(turn.messages.len());
        if index == turn.messages.len() {
            turn.messages.push(OpenMessage {
                line,
                ..OpenMessage::default()
            });
            if let Some(id) = parts.id {
                self.by_id.insert(id, index);
            }
        }
        let Some(message) = turn.messages.get_mut(index) else {
            return;
        };
        // The parts of a message repeat its usage; the last one has counted most.
        message.assistant.usage = parts.usage.or(message.assistant.usage);
        for part in parts.parts {
            if let Some((id, call)) = message.add(line, part) {
                self.waiting.push(
                    id,
                    At {
                        turn: turn_index,
                        message: index,
                        call,
                    },
                );
            }
        }
    }

    /// The turns, with whole steps only.
    pub(super) fn finish(self, report: &mut Report) -> Vec<Turn> {
        let turns = self.turns.into_iter();
        turns
            .map(|turn| Turn {
                user: turn.user,
                steps: turn
                    .messages
                    .into_iter()
                    .filter_map(|message| message.finish(report))
                    .collect(),
            })
            .collect()
    }
}

impl OpenMessage {
    /// Adds a part. Gives, for a call, its id in the transcript and its index.
    fn add(&mut self, line: u64, part: Part) -> Option<(Option<String>, usize)> {
        let (id, name, input) = match part {
            Part::Block(block) => {
                self.assistant.blocks.push(block);
                return None;
            }
            Part::Call { id, name, input } => (id, name, input),
        };
        let index = self.calls.len();
        if let Some(first) = id.as_ref().and_then(|id| self.given.get(id)) {
            let first = self.calls.get(*first).map(|call| call.block);
            let block = first.and_then(|block| self.assistant.blocks.get(block));
            // The same call again: a part that was written twice.
            if matches!(block, Some(Block::ToolUse(old)) if old.name == name && old.input == input)
            {
                return None;
            }
        }
        let own = match &id {
            Some(id) if !self.ids.contains(id) => id.clone(),
            // Without an id, or with one that another call of the message has.
            _ => self.make_up_id(line),
        };
        self.ids.insert(own.clone());
        if let Some(id) = &id {
            self.given.entry(id.clone()).or_insert(index);
        }
        self.calls.push(Call {
            id: own.clone(),
            block: self.assistant.blocks.len(),
            result: None,
        });
        self.assistant
            .blocks
            .push(Block::tool_use(own, name, input));
        Some((id, index))
    }

    fn make_up_id(&mut self, line: u64) -> String {
        loop {
            self.made_up += 1;
            let id = format!("made-up-{line}-{}", self.made_up);
            if !self.ids.contains(&id) {
                return id;
            }
        }
    }

    /// The step, if it is whole: pairing is checked before anything is committed.
    fn finish(self, report: &mut Report) -> Option<Step> {
        if self.assistant.blocks.is_empty() {
            report.add(self.line, Trouble::Empty);
            return None;
        }
        let calls = self.calls.len();
        let mut results = Vec::with_capacity(calls);
        let mut unanswered = Vec::new();
        for call in self.calls {
            match call.result {
                Some(result) => results.push(result),
                None => unanswered.push(call.id),
            }
        }
        if unanswered.is_empty() {
            return Some(Step {
                assistant: self.assistant,
                results,
            });
        }
        report.add(
            self.line,
            Trouble::Unanswered {
                ids: unanswered,
                calls,
            },
        );
        None
    }
}
