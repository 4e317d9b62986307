//! One line of a transcript.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use stepwell::content::{Block, RawJson, Thinking, Usage};

/// The dialect of the signatures in these transcripts.
const SIGNATURES: &str = "anthropic";

/// What a line holds.
#[derive(Debug, PartialEq)]
pub(super) enum Parsed {
    User(UserParts),
    Assistant(AssistantParts),
    Sidechain,
    /// A line of another type.
    Other(String),
}

/// Of a user line: the results that it gives, and what the user said.
#[derive(Debug, PartialEq, Default)]
pub(super) struct UserParts {
    pub(super) results: Vec<ToolResult>,
    pub(super) blocks: Vec<Block>,
}

/// The result of a call; without an id it answers a call without an id.
#[derive(Debug, PartialEq)]
pub(super) struct ToolResult {
    pub(super) call: Option<String>,
    pub(super) is_error: bool,
    pub(super) blocks: Vec<Block>,
}

/// Of an assistant line: a part of a message.
#[derive(Debug, PartialEq)]
pub(super) struct AssistantParts {
    /// The message's id; parts without one stand alone.
    pub(super) id: Option<String>,
    pub(super) parts: Vec<Part>,
    pub(super) usage: Option<Usage>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Block(Block),
    Call {
        id: Option<String>,
        name: String,
        input: RawJson,
    },
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(rename = "isSidechain", default)]
    is_sidechain: Option<bool>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Counters {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

/// All keys that any block may have.
#[derive(Deserialize)]
struct RawBlock<'a> {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    signature: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(default)]
    tool_use_id: Option<String>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(default)]
    is_error: Option<bool>,
}

/// Reads a line; the error says what is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let line: Line<'_> = read(bytes)?;
    if line.is_sidechain == Some(true) {
        return Ok(Parsed::Sidechain);
    }
    let kind = line.kind.unwrap_or(Cow::Borrowed("(none)"));
    let is_user = match &*kind {
        "user" => true,
        "assistant" => false,
        _ => return Ok(Parsed::Other(kind.into_owned())),
    };
    let message = line.message.ok_or("it has no message")?;
    let body: Body<'_> = read(message.get().as_bytes())?;
    if is_user {
        user(body.content).map(Parsed::User)
    } else {
        Ok(Parsed::Assistant(AssistantParts {
            id: body.id.filter(|id| !id.is_empty()),
            parts: assistant(body.content)?,
            usage: body.usage.and_then(usage),
        }))
    }
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

fn user(content: Option<&RawValue>) -> Result<UserParts, String> {
    let mut parts = UserParts::default();
    for block in blocks(content)? {
        if block.kind == "tool_result" {
            parts.results.push(ToolResult {
                call: block.tool_use_id.filter(|id| !id.is_empty()),
                is_error: block.is_error.unwrap_or(false),
                blocks: plain(blocks(block.content)?),
            });
        } else {
            parts.blocks.extend(plain(vec![block]));
        }
    }
    Ok(parts)
}

fn assistant(content: Option<&RawValue>) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for block in blocks(content)? {
        match block.kind.as_str() {
            "tool_use" => parts.push(Part::Call {
                id: block.id.filter(|id| !id.is_empty()),
                name: block.name.unwrap_or_default(),
                input: match block.input {
                    Some(input) => {
                        RawJson::parse(input.get()).map_err(|error| error.to_string())?
                    }
                    None => RawJson::empty_object(),
                },
            }),
            "thinking" => {
                let thinking = Thinking {
                    thinking: block.thinking.unwrap_or_default(),
                    signature: block.signature.unwrap_or_default(),
                    ..Thinking::default()
                };
                let signed = !thinking.signature.is_empty();
                if signed || !thinking.thinking.is_empty() {
                    let signature_format = if signed { SIGNATURES } else { "" }.to_owned();
                    parts.push(Part::Block(Block::Thinking(Thinking {
                        signature_format,
                        ..thinking
                    })));
                }
            }
            _ => parts.extend(plain(vec![block]).into_iter().map(Part::Block)),
        }
    }
    Ok(parts)
}

/// The blocks of a content: a string is one text, nothing is none.
fn blocks(content: Option<&RawValue>) -> Result<Vec<RawBlock<'_>>, String> {
    let Some(content) = content.map(RawValue::get) else {
        return Ok(Vec::new());
    };
    match content.as_bytes().first() {
        Some(b'"') => Ok(vec![RawBlock {
            kind: "text".to_owned(),
            text: Some(read(content.as_bytes())?),
            thinking: None,
            signature: None,
            id: None,
            name: None,
            input: None,
            tool_use_id: None,
            content: None,
            is_error: None,
        }]),
        Some(b'[') => read(content.as_bytes()),
        Some(b'n') => Ok(Vec::new()),
        _ => Err("its content is neither a text nor a list of blocks".to_owned()),
    }
}

/// Texts, and texts in the place of what cannot be kept. Empty texts are left out.
fn plain(blocks: Vec<RawBlock<'_>>) -> Vec<Block> {
    let texts = blocks.into_iter().map(|block| match block.kind.as_str() {
        "text" => block.text.unwrap_or_default(),
        "image" => "[an image, not kept]".to_owned(),
        other => format!("[a block of type '{other}', not kept]"),
    });
    texts
        .filter(|text| !text.is_empty())
        .map(Block::text)
        .collect()
}

/// Usage is told by the transcript for what it is worth: odd values count as none.
fn usage(raw: &RawValue) -> Option<Usage> {
    let counters: Counters = serde_json::from_str(raw.get()).ok()?;
    Some(Usage {
        input_tokens: counters.input_tokens.unwrap_or(0),
        output_tokens: counters.output_tokens.unwrap_or(0),
        cache_read_tokens: counters.cache_read_input_tokens.unwrap_or(0),
        cache_creation_tokens: counters.cache_creation_input_tokens.unwrap_or(0),
        reasoning_tokens: 0,
    })
}
