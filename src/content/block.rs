//! The kinds of block, and how they stand in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::raw::{self, RawJson};
use super::{ContentError, blocks_from};

/// One part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Block {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// The model's refusal. An empty text is meaningful.
    Refusal {
        /// The text.
        text: String,
    },
    /// The model's reasoning.
    Thinking(Thinking),
    /// A call of a tool, as it is stored.
    ToolUse(ToolUse),
    /// The result of a tool, nested in a message.
    ToolResult(ToolResult),
    /// An image.
    Image(Image),
    /// A sound.
    Audio(Audio),
    /// A document.
    Document(Document),
}

/// The model's reasoning, with what its provider needs to take it back. Signature and state can be
/// replayed only to the dialect whose format they carry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thinking {
    /// The reasoning in words, possibly empty.
    pub thinking: String,
    /// The provider's signature, possibly empty.
    pub signature: String,
    /// The dialect of the signature, possibly empty.
    pub signature_format: String,
    /// Opaque state of the provider, kept byte for byte.
    pub provider_state: Option<RawJson>,
    /// The dialect of the state, possibly empty.
    pub provider_state_format: String,
}

/// A call of a tool in its stored view: the input is always valid JSON
/// (see [`RawToolCall`](super::RawToolCall) for the executable view).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolUse {
    /// The model's id of the call; unique within its step only.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The input, kept byte for byte.
    pub input: RawJson,
    /// Opaque state of the provider, kept byte for byte.
    pub provider_state: Option<RawJson>,
    /// The dialect of the state, possibly empty.
    pub provider_state_format: String,
}

/// A tool's result as a block inside a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolResult {
    /// The call that it answers.
    pub tool_use_id: String,
    /// What the tool gave.
    pub content: Vec<Block>,
    /// Whether the tool failed.
    pub is_error: bool,
}

/// Where an image is: at a URL or in the bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// The URL, empty when the bytes are given.
    pub url: String,
    /// The bytes, empty when the URL is given.
    pub data: Vec<u8>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// Its media type, such as `image/png`.
    pub media_type: String,
    /// Where it is.
    pub source: Source,
}

/// A sound.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audio {
    /// Its media type, such as `audio/wav`.
    pub media_type: String,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// A document: its bytes, its text, or both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Document {
    /// Its media type, such as `application/pdf`.
    pub media_type: String,
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its text.
    pub text: String,
}

impl Block {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// A refusal.
    pub fn refusal(text: impl Into<String>) -> Self {
        Self::Refusal { text: text.into() }
    }

    /// A tool call with a valid input.
    pub fn tool_use(id: impl Into<String>, name: impl Into<String>, input: RawJson) -> Self {
        Self::ToolUse(ToolUse {
            id: id.into(),
            name: name.into(),
            input,
            provider_state: None,
            provider_state_format: String::new(),
        })
    }

    /// The block's tag in JSON.
    #[must_use]
    pub fn tag(&self) -> &'static str {
        match self {
            Self::Text { .. } => "text",
            Self::Refusal { .. } => "refusal",
            Self::Thinking(_) => "thinking",
            Self::ToolUse(_) => "tool_use",
            Self::ToolResult(_) => "tool_result",
            Self::Image(_) => "image",
            Self::Audio(_) => "audio",
            Self::Document(_) => "document",
        }
    }

    /// The text of a text block or a refusal.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } | Self::Refusal { text } => Some(text),
            _ => None,
        }
    }
}

/// Bytes as standard base64; `null` reads as no bytes.
#[derive(Default)]
struct Base64(Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text =
            Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?.unwrap_or_default();
        STANDARD
            .decode(text.as_bytes())
            .map(Self)
            .map_err(de::Error::custom)
    }
}

struct Base64Ref<'a>(&'a [u8]);

impl Base64Ref<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Base64Ref<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&base64::display::Base64Display::new(self.0, &STANDARD))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SourceFields {
    #[serde(alias = "URL")]
    url: String,
    #[serde(alias = "Data")]
    data: Base64,
}

/// Every key that any block may have. The tag may come last and opaque JSON cannot be buffered, so
/// the tag picks from this after reading instead of steering the reading.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct BlockFields {
    #[serde(rename = "type")]
    tag: String,
    #[serde(alias = "Text")]
    text: String,
    #[serde(alias = "Thinking")]
    thinking: String,
    #[serde(alias = "Signature")]
    signature: String,
    #[serde(alias = "SignatureFormat")]
    signature_format: String,
    #[serde(alias = "ProviderState", deserialize_with = "raw::present")]
    provider_state: Option<RawJson>,
    #[serde(alias = "ProviderStateFormat")]
    provider_state_format: String,
    #[serde(alias = "ID")]
    id: String,
    #[serde(alias = "Name")]
    name: String,
    #[serde(alias = "Input", deserialize_with = "raw::present")]
    input: Option<RawJson>,
    tool_use_id: String,
    content: Option<Vec<Option<BlockFields>>>,
    is_error: bool,
    #[serde(alias = "MediaType")]
    media_type: String,
    #[serde(alias = "Source")]
    source: SourceFields,
    #[serde(alias = "Data")]
    data: Base64,
}

impl TryFrom<BlockFields> for Block {
    type Error = ContentError;

    fn try_from(fields: BlockFields) -> Result<Self, ContentError> {
        Ok(match fields.tag.as_str() {
            "text" => Self::Text { text: fields.text },
            "refusal" => Self::Refusal { text: fields.text },
            "thinking" => Self::Thinking(Thinking {
                thinking: fields.thinking,
                signature: fields.signature,
                signature_format: fields.signature_format,
                provider_state: fields.provider_state,
                provider_state_format: fields.provider_state_format,
            }),
            "tool_use" => Self::ToolUse(ToolUse {
                id: fields.id,
                name: fields.name,
                input: fields.input.unwrap_or_else(RawJson::null),
                provider_state: fields.provider_state,
                provider_state_format: fields.provider_state_format,
            }),
            "tool_result" => Self::ToolResult(ToolResult {
                tool_use_id: fields.tool_use_id,
                content: blocks_from(fields.content)?,
                is_error: fields.is_error,
            }),
            "image" => Self::Image(Image {
                media_type: fields.media_type,
                source: Source {
                    url: fields.source.url,
                    data: fields.source.data.0,
                },
            }),
            "audio" => Self::Audio(Audio {
                media_type: fields.media_type,
                data: fields.data.0,
            }),
            "document" => Self::Document(Document {
                media_type: fields.media_type,
                name: fields.name,
                data: fields.data.0,
                text: fields.text,
            }),
            _ => return Err(ContentError::UnknownBlockType { tag: fields.tag }),
        })
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BlockFields::deserialize(deserializer)?
            .try_into()
            .map_err(de::Error::custom)
    }
}

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written::of(self).serialize(serializer)
    }
}

/// Blocks of any kind as they are written: `None` is left out.
#[derive(Default, Serialize)]
struct Written<'a> {
    #[serde(rename = "type")]
    tag: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    signature: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    signature_format: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_state: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "str::is_empty")]
    provider_state_format: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_use_id: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Block]>::is_empty")]
    content: &'a [Block],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_error: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    media_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<WrittenSource<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Base64Ref<'a>>,
}

#[derive(Serialize)]
struct WrittenSource<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    url: &'a str,
    #[serde(skip_serializing_if = "Base64Ref::is_empty")]
    data: Base64Ref<'a>,
}

impl<'a> Written<'a> {
    fn of(block: &'a Block) -> Self {
        let tag = block.tag();
        match block {
            Block::Text { text } | Block::Refusal { text } => Self {
                tag,
                text: Some(text),
                ..Self::default()
            },
            Block::Thinking(thinking) => Self {
                tag,
                thinking: Some(&thinking.thinking),
                signature: &thinking.signature,
                signature_format: &thinking.signature_format,
                provider_state: thinking.provider_state.as_ref(),
                provider_state_format: &thinking.provider_state_format,
                ..Self::default()
            },
            Block::ToolUse(call) => Self {
                tag,
                id: Some(&call.id),
                name: Some(&call.name),
                input: Some(&call.input),
                provider_state: call.provider_state.as_ref(),
                provider_state_format: &call.provider_state_format,
                ..Self::default()
            },
            Block::ToolResult(result) => Self {
                tag,
                tool_use_id: Some(&result.tool_use_id),
                content: &result.content,
                is_error: result.is_error,
                ..Self::default()
            },
            Block::Image(image) => Self {
                tag,
                media_type: &image.media_type,
                source: Some(WrittenSource {
                    url: &image.source.url,
                    data: Base64Ref(&image.source.data),
                }),
                ..Self::default()
            },
            Block::Audio(audio) => Self {
                tag,
                media_type: &audio.media_type,
                data: Some(Base64Ref(&audio.data)),
                ..Self::default()
            },
            Block::Document(document) => Self {
                tag,
                media_type: &document.media_type,
                name: (!document.name.is_empty()).then_some(&document.name),
                data: (!document.data.is_empty()).then_some(Base64Ref(&document.data)),
                text: (!document.text.is_empty()).then_some(&document.text),
                ..Self::default()
            },
        }
    }
}
