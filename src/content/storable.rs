//! What of a model's reply is stored, and the executable view of its tool calls.
//!
//! A tool call exists twice. The stored view must be JSON, so malformed input becomes `{}` there; the
//! raw view keeps the model's bytes, so that the call fails visibly instead of running with `{}`.

use super::{AssistantMessage, Block, RawJson, Thinking, ToolUse, Usage};

/// A tool call as the model wrote it: what the runner executes or refuses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawToolCall {
    /// The model's id of the call, possibly empty.
    pub id: String,
    /// The tool's name, possibly empty.
    pub name: String,
    /// The input, byte for byte, whether it is JSON or not.
    pub input: Vec<u8>,
    /// Opaque state of the provider.
    pub provider_state: Option<RawJson>,
    /// The dialect of the state, possibly empty.
    pub provider_state_format: String,
}

impl RawToolCall {
    /// A call with its input.
    pub fn new(id: impl Into<String>, name: impl Into<String>, input: impl Into<Vec<u8>>) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            input: input.into(),
            ..Self::default()
        }
    }

    /// The stored view. Its input is `{}` when id or name is empty or the input is no valid JSON (or
    /// nests deeper than [`RawJson::MAX_DEPTH`]). `[]`, `1` and `null` are valid JSON and stay.
    #[must_use]
    pub fn stored(&self) -> ToolUse {
        ToolUse {
            id: self.id.clone(),
            name: self.name.clone(),
            input: self
                .executable_input()
                .unwrap_or_else(RawJson::empty_object),
            provider_state: self.provider_state.clone(),
            provider_state_format: self.provider_state_format.clone(),
        }
    }

    /// The input when the stored view keeps it. `None` means that the call must not run: it gets an
    /// error result that the model can see.
    #[must_use]
    pub fn executable_input(&self) -> Option<RawJson> {
        if self.id.is_empty() || self.name.is_empty() {
            return None;
        }
        RawJson::parse(&self.input).ok()
    }
}

impl From<&ToolUse> for RawToolCall {
    fn from(call: &ToolUse) -> Self {
        Self {
            id: call.id.clone(),
            name: call.name.clone(),
            input: call.input.get().as_bytes().to_vec(),
            provider_state: call.provider_state.clone(),
            provider_state_format: call.provider_state_format.clone(),
        }
    }
}

/// One part of a model's whole reply, before it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Block(Block),
    Call(RawToolCall),
}

/// A model's whole reply in its order, from which the storable message and the raw calls are taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StorableReply {
    parts: Vec<Part>,
}

impl StorableReply {
    /// An empty reply.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a block. A [`Block::ToolUse`] counts as a raw call with that input.
    pub fn push(&mut self, block: Block) {
        self.parts.push(match block {
            Block::ToolUse(call) => Part::Call(RawToolCall::from(&call)),
            other => Part::Block(other),
        });
    }

    /// Adds a tool call as the model wrote it.
    pub fn push_call(&mut self, call: RawToolCall) {
        self.parts.push(Part::Call(call));
    }

    /// Whether the reply holds nothing: no text, no reasoning, no call, no refusal, no other content.
    /// Such a step is not stored; its turn fails with an empty response. A refusal counts even with an
    /// empty text, and so does reasoning that has only opaque state.
    #[must_use]
    pub fn is_empty_response(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Block(block) => !is_storable(block),
            Part::Call(_) => false,
        })
    }

    /// The tool calls in order, as the model wrote them.
    pub fn calls(&self) -> impl Iterator<Item = &RawToolCall> {
        self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            Part::Block(_) => None,
        })
    }

    /// The message to store: without empty text, without reasoning that has neither words nor opaque
    /// state, and with each call in its stored view. It shares nothing with the raw calls.
    #[must_use]
    pub fn message(&self, usage: Option<Usage>) -> AssistantMessage {
        let blocks = self.parts.iter().filter_map(|part| match part {
            Part::Block(block) => is_storable(block).then(|| block.clone()),
            Part::Call(call) => Some(Block::ToolUse(call.stored())),
        });
        AssistantMessage {
            blocks: blocks.collect(),
            usage,
        }
    }
}

fn is_storable(block: &Block) -> bool {
    match block {
        Block::Text { text } => !text.is_empty(),
        Block::Thinking(thinking) => has_reasoning(thinking),
        _ => true,
    }
}

fn has_reasoning(thinking: &Thinking) -> bool {
    !thinking.thinking.is_empty()
        || thinking.provider_state.is_some()
        || !thinking.signature.is_empty()
}
