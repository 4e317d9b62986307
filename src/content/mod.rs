//! Messages and the blocks they are made of.
//!
//! | module | what it holds |
//! |---|---|
//! | [`raw`](RawJson) | opaque JSON that is kept byte for byte (P11) |
//! | `scan` | the one-pass check that JSON text is acceptable (P10) |
//! | `block` | the eight kinds of block |
//! | `message` | user, system, assistant and tool-result messages, usage |
//! | `storable` | what of a model's reply is stored, and the executable view of a tool call |

mod block;
mod message;
mod raw;
pub(crate) mod scan;
mod storable;

pub use block::{Audio, Block, Document, Image, Source, Thinking, ToolResult, ToolUse};
pub use message::{
    AssistantMessage, Message, Role, SystemMessage, ToolResultMessage, Usage, UserMessage,
};
pub(crate) use message::{MessageFields, blocks_from, is_zero};
pub use raw::RawJson;
pub(crate) use raw::present;
pub use scan::{JsonError, JsonProblem};
pub use storable::{RawToolCall, StorableReply};

use thiserror::Error;

/// JSON that is well formed but holds no message or block that this version knows.
///
/// The writer is at fault, or a newer version wrote it. Nothing is skipped: the record is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ContentError {
    /// The `role` of a message is missing or unknown.
    #[error("unknown message role {role:?}: a newer version may have written it")]
    UnknownMessageRole {
        /// The role found, empty when it was missing.
        role: String,
    },
    /// The `type` of a block is missing or unknown.
    #[error("unknown block type {tag:?}: a newer version may have written it")]
    UnknownBlockType {
        /// The tag found, empty when it was missing.
        tag: String,
    },
    /// A message stands where one of another role belongs.
    #[error("a message with the role {want:?} belongs here, not one with the role {got:?}")]
    UnexpectedRole {
        /// The role that belongs there.
        want: Role,
        /// The role found.
        got: Role,
    },
    /// A list of blocks holds `null`.
    #[error("a list of blocks holds null at index {index}")]
    NullBlock {
        /// Index in the list.
        index: usize,
    },
}
