//! Messages of the four roles, and usage.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::block::BlockFields;
use super::{Block, ContentError, RawJson};

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The user.
    User,
    /// The system.
    System,
    /// The model.
    Assistant,
    /// A tool.
    Tool,
}

impl Role {
    /// The role as JSON has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::System => "system",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a model call cost, in tokens. Odd values (reasoning above output) are kept as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens read.
    #[serde(alias = "InputTokens", skip_serializing_if = "is_zero")]
    pub input_tokens: u64,
    /// Tokens written.
    #[serde(alias = "OutputTokens", skip_serializing_if = "is_zero")]
    pub output_tokens: u64,
    /// Tokens read from the provider's cache.
    #[serde(alias = "CacheReadTokens", skip_serializing_if = "is_zero")]
    pub cache_read_tokens: u64,
    /// Tokens written to the provider's cache.
    #[serde(alias = "CacheCreationTokens", skip_serializing_if = "is_zero")]
    pub cache_creation_tokens: u64,
    /// Tokens of reasoning.
    #[serde(alias = "ReasoningTokens", skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Usage {
    /// The sum, or `None` when a counter would overflow.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Some(Self {
            input_tokens: self.input_tokens.checked_add(other.input_tokens)?,
            output_tokens: self.output_tokens.checked_add(other.output_tokens)?,
            cache_read_tokens: self
                .cache_read_tokens
                .checked_add(other.cache_read_tokens)?,
            cache_creation_tokens: self
                .cache_creation_tokens
                .checked_add(other.cache_creation_tokens)?,
            reasoning_tokens: self.reasoning_tokens.checked_add(other.reasoning_tokens)?,
        })
    }
}

/// What a user said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserMessage {
    /// Its blocks.
    pub blocks: Vec<Block>,
}

/// A system prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SystemMessage {
    /// Its blocks.
    pub blocks: Vec<Block>,
}

/// What the model said in one step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AssistantMessage {
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// What the call cost; all-zero usage is not the same as none.
    pub usage: Option<Usage>,
}

/// The result of one tool call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolResultMessage {
    /// The call that it answers.
    pub tool_use_id: String,
    /// Whether the call failed, also before it ran.
    pub is_error: bool,
    /// What the tool gave.
    pub blocks: Vec<Block>,
}

/// A message of any role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A user's message.
    User(UserMessage),
    /// A system prompt.
    System(SystemMessage),
    /// The model's message.
    Assistant(AssistantMessage),
    /// A tool's result.
    ToolResult(ToolResultMessage),
}

/// The texts of text blocks and refusals, joined by newlines; other blocks are left out.
fn flatten(blocks: &[Block]) -> String {
    let texts: Vec<&str> = blocks.iter().filter_map(Block::as_text).collect();
    texts.join("\n")
}

impl From<&str> for UserMessage {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for UserMessage {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl UserMessage {
    /// A message of one text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            blocks: vec![Block::text(text)],
        }
    }

    /// Its texts, joined by newlines.
    #[must_use]
    pub fn to_text(&self) -> String {
        flatten(&self.blocks)
    }
}

impl SystemMessage {
    /// A message of one text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            blocks: vec![Block::text(text)],
        }
    }

    /// Its texts, joined by newlines.
    #[must_use]
    pub fn to_text(&self) -> String {
        flatten(&self.blocks)
    }
}

impl AssistantMessage {
    /// A message of one text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            blocks: vec![Block::text(text)],
            usage: None,
        }
    }

    /// This message with one more block.
    #[must_use]
    pub fn with_block(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }

    /// This message with one more tool call.
    #[must_use]
    pub fn with_tool_use(
        self,
        id: impl Into<String>,
        name: impl Into<String>,
        input: RawJson,
    ) -> Self {
        self.with_block(Block::tool_use(id, name, input))
    }

    /// This message with its usage.
    #[must_use]
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// Its texts, joined by newlines.
    #[must_use]
    pub fn to_text(&self) -> String {
        flatten(&self.blocks)
    }

    /// Its tool calls in order.
    pub fn tool_uses(&self) -> impl Iterator<Item = &super::ToolUse> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolUse(call) => Some(call),
            _ => None,
        })
    }
}

impl ToolResultMessage {
    /// A result of one text block.
    pub fn text(tool_use_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            tool_use_id: tool_use_id.into(),
            is_error: false,
            blocks: vec![Block::text(text)],
        }
    }

    /// A failure, told in one text block.
    pub fn error(tool_use_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            is_error: true,
            ..Self::text(tool_use_id, text)
        }
    }

    /// Its texts, joined by newlines.
    #[must_use]
    pub fn to_text(&self) -> String {
        flatten(&self.blocks)
    }
}

impl Message {
    /// Who speaks.
    #[must_use]
    pub fn role(&self) -> Role {
        match self {
            Self::User(_) => Role::User,
            Self::System(_) => Role::System,
            Self::Assistant(_) => Role::Assistant,
            Self::ToolResult(_) => Role::Tool,
        }
    }

    /// Its blocks.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        match self {
            Self::User(message) => &message.blocks,
            Self::System(message) => &message.blocks,
            Self::Assistant(message) => &message.blocks,
            Self::ToolResult(message) => &message.blocks,
        }
    }

    /// Its texts, joined by newlines.
    #[must_use]
    pub fn to_text(&self) -> String {
        flatten(self.blocks())
    }
}

/// Every key that any message may have; the role picks from it after reading.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct MessageFields {
    role: String,
    blocks: Option<Vec<Option<BlockFields>>>,
    usage: Option<Usage>,
    tool_use_id: String,
    is_error: bool,
}

/// Turns read blocks into blocks; an absent list is an empty one.
pub(crate) fn blocks_from(
    list: Option<Vec<Option<BlockFields>>>,
) -> Result<Vec<Block>, ContentError> {
    let read = list.unwrap_or_default().into_iter().enumerate();
    read.map(|(index, fields)| fields.ok_or(ContentError::NullBlock { index })?.try_into())
        .collect()
}

impl TryFrom<MessageFields> for Message {
    type Error = ContentError;

    fn try_from(fields: MessageFields) -> Result<Self, ContentError> {
        let blocks = fields.blocks;
        Ok(match fields.role.as_str() {
            "user" => Self::User(UserMessage {
                blocks: blocks_from(blocks)?,
            }),
            "system" => Self::System(SystemMessage {
                blocks: blocks_from(blocks)?,
            }),
            "assistant" => Self::Assistant(AssistantMessage {
                blocks: blocks_from(blocks)?,
                usage: fields.usage,
            }),
            "tool" => Self::ToolResult(ToolResultMessage {
                tool_use_id: fields.tool_use_id,
                is_error: fields.is_error,
                blocks: blocks_from(blocks)?,
            }),
            _ => return Err(ContentError::UnknownMessageRole { role: fields.role }),
        })
    }
}

/// A message as it is written.
#[derive(Serialize)]
struct Written<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "<[Block]>::is_empty")]
    blocks: &'a [Block],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_use_id: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_error: bool,
}

impl<'a> Written<'a> {
    fn plain(role: Role, blocks: &'a [Block]) -> Self {
        Self {
            role: role.as_str(),
            blocks,
            usage: None,
            tool_use_id: None,
            is_error: false,
        }
    }
}

macro_rules! messages {
    ($($message:ident $variant:ident $role:ident: |$it:ident| $written:expr;)+) => {$(
        impl From<$message> for Message {
            fn from(message: $message) -> Self {
                Self::$variant(message)
            }
        }

        impl TryFrom<Message> for $message {
            type Error = ContentError;

            fn try_from(message: Message) -> Result<Self, ContentError> {
                match message {
                    Message::$variant(message) => Ok(message),
                    other => Err(ContentError::UnexpectedRole { want: Role::$role, got: other.role() }),
                }
            }
        }

        impl Serialize for $message {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $it = self;
                $written.serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $message {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Message::deserialize(deserializer)?.try_into().map_err(de::Error::custom)
            }
        }
    )+

        impl Serialize for Message {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {$(Self::$variant(message) => message.serialize(serializer),)+}
            }
        }
    };
}

messages! {
    UserMessage User User: |it| Written::plain(Role::User, &it.blocks);
    SystemMessage System System: |it| Written::plain(Role::System, &it.blocks);
    AssistantMessage Assistant Assistant: |it| Written {
        usage: it.usage.as_ref(),
        ..Written::plain(Role::Assistant, &it.blocks)
    };
    ToolResultMessage ToolResult Tool: |it| Written {
        tool_use_id: Some(&it.tool_use_id),
        is_error: it.is_error,
        ..Written::plain(Role::Tool, &it.blocks)
    };
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        MessageFields::deserialize(deserializer)?
            .try_into()
            .map_err(de::Error::custom)
    }
}
