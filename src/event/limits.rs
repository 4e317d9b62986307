//! The limits that writer and reader share (P10), and the walk that enforces them.

use std::fmt;

use thiserror::Error;

use super::{Body, SessionChanged, StepDone};
use crate::content::scan::MAX_STRUCTURE_DEPTH;
use crate::content::{Block, Message};

/// What an event may hold at most. Writer and reader use the same limits, so what was written can be
/// read; whoever raises them must not lower them again for the same log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of an encoded event: 16 MiB.
    pub record_bytes: u32,
    /// Blocks in one list: 10,000.
    pub blocks: u32,
    /// Bytes of one block's texts, opaque JSON and data before encoding, without nested blocks: 8 MiB.
    pub block_bytes: u32,
    /// Messages of one step: 10,000.
    pub messages: u32,
    /// How deep JSON may nest outside opaque JSON: 127, which is also the most that counts. Opaque
    /// JSON has its own limit, [`RawJson::MAX_DEPTH`](crate::content::RawJson::MAX_DEPTH).
    pub depth: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            record_bytes: 16 << 20,
            blocks: 10_000,
            block_bytes: 8 << 20,
            messages: 10_000,
            depth: 127,
        }
    }
}

/// Which limit was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitKind {
    /// Bytes of an encoded event.
    RecordBytes,
    /// Blocks in one list.
    Blocks,
    /// Bytes of one block.
    BlockBytes,
    /// Messages of one step.
    Messages,
    /// Nesting of blocks in blocks.
    Depth,
    /// Bytes of what a change says of a session.
    Metadata,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RecordBytes => "bytes of an encoded event",
            Self::Blocks => "blocks in a list",
            Self::BlockBytes => "bytes of a block",
            Self::Messages => "messages of a step",
            Self::Depth => "nesting of JSON",
            Self::Metadata => "bytes of title, labels and data of a session",
        })
    }
}

/// The tool call whose result is too large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Culprit {
    /// The call's id.
    pub tool_use_id: String,
    /// The tool's name, empty when the step holds no such call.
    pub tool_name: String,
}

/// An event exceeds a limit. Nothing was written: shorten the event, or raise the limit for good.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{kind}: {got} is more than the limit of {max}{}", culprit_text(.tool.as_ref()))]
pub struct LimitExceeded {
    /// Which limit.
    pub kind: LimitKind,
    /// What the event has.
    pub got: u64,
    /// The limit.
    pub max: u64,
    /// The tool whose result it is, or, for a record, the one with the largest result.
    pub tool: Option<Culprit>,
}

fn culprit_text(tool: Option<&Culprit>) -> String {
    tool.map_or_else(String::new, |tool| {
        format!(
            " (result of the tool {:?}, call {:?})",
            tool.tool_name, tool.tool_use_id
        )
    })
}

impl LimitExceeded {
    pub(super) fn new(kind: LimitKind, got: usize, max: u32) -> Self {
        Self {
            kind,
            got: got as u64,
            max: u64::from(max),
            tool: None,
        }
    }

    pub(super) fn record(body: &Body, got: usize, max: u32) -> Self {
        let largest = match body {
            Body::StepDone(step) => largest_result(step),
            _ => None,
        };
        Self {
            tool: largest,
            ..Self::new(LimitKind::RecordBytes, got, max)
        }
    }
}

/// Checks all limits but the size of the record. Iterative: a host may hand in any nesting (P14).
pub(super) fn check(body: &Body, limits: &Limits) -> Result<(), LimitExceeded> {
    match body {
        Body::StepDone(step) => {
            if step.messages.len() > limits.messages as usize {
                return Err(LimitExceeded::new(
                    LimitKind::Messages,
                    step.messages.len(),
                    limits.messages,
                ));
            }
            for message in &step.messages {
                check_blocks(message.blocks(), limits).map_err(|error| LimitExceeded {
                    tool: culprit(step, message),
                    ..error
                })?;
            }
            Ok(())
        }
        Body::TurnStarted(turn) => check_blocks(&turn.message.blocks, limits),
        Body::TurnFoldedInto(turn) => check_blocks(&turn.message.blocks, limits),
        Body::TurnDone(turn) => check_blocks(&turn.message.blocks, limits),
        Body::InputCancelled(input) => input
            .message
            .as_ref()
            .map_or(Ok(()), |message| check_blocks(&message.blocks, limits)),
        Body::ContextCompacted(compacted) => check_blocks(&compacted.summary.blocks, limits),
        Body::SessionChanged(changed) => match changed.bytes() {
            got if got > SessionChanged::MAX_BYTES as usize => Err(LimitExceeded::new(
                LimitKind::Metadata,
                got,
                SessionChanged::MAX_BYTES,
            )),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn check_blocks(blocks: &[Block], limits: &Limits) -> Result<(), LimitExceeded> {
    // Each nested list costs two levels of JSON: itself and its blocks.
    let deepest = (limits.depth as usize).min(MAX_STRUCTURE_DEPTH) / 2;
    let mut lists = vec![(blocks, 1_usize)];
    while let Some((list, level)) = lists.pop() {
        if level > deepest {
            return Err(LimitExceeded::new(
                LimitKind::Depth,
                level * 2,
                limits.depth,
            ));
        }
        if list.len() > limits.blocks as usize {
            return Err(LimitExceeded::new(
                LimitKind::Blocks,
                list.len(),
                limits.blocks,
            ));
        }
        for block in list {
            let bytes = own_bytes(block);
            if bytes > limits.block_bytes as usize {
                return Err(LimitExceeded::new(
                    LimitKind::BlockBytes,
                    bytes,
                    limits.block_bytes,
                ));
            }
            if let Block::ToolResult(result) = block {
                lists.push((&result.content, level + 1));
            }
        }
    }
    Ok(())
}

/// Bytes of a block before encoding, without the blocks nested in it.
fn own_bytes(block: &Block) -> usize {
    match block {
        Block::Text { text } | Block::Refusal { text } => text.len(),
        Block::Thinking(it) => {
            let state = it
                .provider_state
                .as_ref()
                .map_or(0, |state| state.get().len());
            it.thinking.len()
                + it.signature.len()
                + it.signature_format.len()
                + it.provider_state_format.len()
                + state
        }
        Block::ToolUse(it) => {
            let state = it
                .provider_state
                .as_ref()
                .map_or(0, |state| state.get().len());
            it.id.len()
                + it.name.len()
                + it.input.get().len()
                + it.provider_state_format.len()
                + state
        }
        Block::ToolResult(it) => it.tool_use_id.len(),
        Block::Image(it) => it.media_type.len() + it.source.url.len() + it.source.data.len(),
        Block::Audio(it) => it.media_type.len() + it.data.len(),
        Block::Document(it) => it.media_type.len() + it.name.len() + it.data.len() + it.text.len(),
    }
}

fn culprit(step: &StepDone, message: &Message) -> Option<Culprit> {
    let Message::ToolResult(result) = message else {
        return None;
    };
    let mut calls = step
        .assistant()
        .into_iter()
        .flat_map(|assistant| assistant.tool_uses());
    let call = calls.find(|call| call.id == result.tool_use_id);
    Some(Culprit {
        tool_use_id: result.tool_use_id.clone(),
        tool_name: call.map_or_else(String::new, |call| call.name.clone()),
    })
}

fn largest_result(step: &StepDone) -> Option<Culprit> {
    let size = |message: &&Message| message.blocks().iter().map(own_bytes).sum::<usize>();
    let results = step
        .messages
        .iter()
        .filter(|message| matches!(message, Message::ToolResult(_)));
    results
        .max_by_key(size)
        .and_then(|message| culprit(step, message))
}
