//! The acceptance scan: one pass over JSON text, without recursion (P10, P14).
//!
//! It accepts exactly the JSON grammar and, outside opaque JSON, adds what the codecs demand: no
//! duplicate keys (compared after lower-casing), no lone surrogates, bounded depth and key count.
//! Which parts are opaque follows from where they stand ([`Slot`]), and mirrors the places where the
//! types of content and event hold a [`RawJson`](super::RawJson) that nobody interprets.

mod lexer;

use std::borrow::Cow;
use std::collections::HashSet;

use thiserror::Error;

use super::RawJson;
use lexer::Lexer;

/// How deep the structure outside opaque JSON may nest; what the parser behind the scan can take.
pub(crate) const MAX_STRUCTURE_DEPTH: usize = 127;
/// How many keys one object outside opaque JSON may have.
pub(crate) const MAX_KEYS: usize = 10_000;
/// From here on the keys of an object are looked up in a set instead of one by one.
const KEYS_COMPARED_ONE_BY_ONE: usize = 16;

/// JSON text that is not acceptable, and where. Its writer is at fault, or it was damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("unacceptable JSON at byte {offset}: {problem}")]
pub struct JsonError {
    /// Offset of the byte at which the text stops being acceptable.
    pub offset: usize,
    /// What is wrong there.
    pub problem: JsonProblem,
}

/// What is wrong with JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JsonProblem {
    /// The text is not UTF-8.
    #[error("the text is not UTF-8")]
    NotUtf8,
    /// The text breaks the grammar.
    #[error("this byte does not belong here")]
    Syntax,
    /// The text ends inside a value.
    #[error("the text ends too early")]
    UnexpectedEnd,
    /// Something follows the value.
    #[error("something follows the value")]
    TrailingBytes,
    /// A key repeats within one object, perhaps in another case.
    #[error("this key repeats in its object (keys are compared in lower case)")]
    DuplicateKey,
    /// Arrays and objects nest deeper than the limit.
    #[error("the nesting is deeper than {max}")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// An object has more keys than the limit.
    #[error("an object has more than {max} keys")]
    TooManyKeys {
        /// The limit.
        max: usize,
    },
    /// An escape names half of a surrogate pair.
    #[error("a lone surrogate escape: the text has no UTF-8 form")]
    LoneSurrogate,
    /// The value has no JSON form.
    #[error("the value has no JSON form")]
    Rejected,
}

impl JsonError {
    pub(crate) fn rejected() -> Self {
        Self {
            offset: 0,
            problem: JsonProblem::Rejected,
        }
    }
}

/// What a value is, by where it stands. An array hands its slot to its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The event itself.
    Event,
    Message,
    Block,
    Gate,
    Audit,
    /// Structure that has nothing opaque below it.
    Plain,
    /// Opaque JSON: only the grammar and its own depth count.
    Opaque,
}

impl Slot {
    /// The slot of the value under `key` in an object that stands in this slot.
    fn under(self, key: &str) -> Self {
        match (self, key) {
            (Self::Opaque, _) => Self::Opaque,
            (Self::Event, "message" | "messages" | "summary") => Self::Message,
            (Self::Event, "data" | "answer" | "spec" | "host") => Self::Opaque,
            (Self::Event, "gate") => Self::Gate,
            (Self::Event, "audit") => Self::Audit,
            (Self::Message, "blocks") | (Self::Block, "content") => Self::Block,
            (Self::Block, "input" | "Input" | "provider_state" | "ProviderState") => Self::Opaque,
            (Self::Gate, "payload") | (Self::Audit, "data") => Self::Opaque,
            _ => Self::Plain,
        }
    }
}

/// What the scan saw of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    /// Whether the value is an object.
    pub(crate) is_object: bool,
    /// Whether it has one of the header's keys that stand in a record's body.
    pub(crate) has_header_keys: bool,
}

/// Accepts `bytes` as one opaque JSON value.
pub(crate) fn check_opaque(bytes: &[u8]) -> Result<&str, JsonError> {
    let text = utf8(bytes)?;
    Scan::new(text, RawJson::MAX_DEPTH).run(Slot::Opaque)?;
    Ok(text)
}

/// Accepts `bytes` as an event's JSON whose structure nests at most `depth` deep.
pub(crate) fn check_event(bytes: &[u8], depth: usize) -> Result<(&str, Facts), JsonError> {
    let text = utf8(bytes)?;
    let facts = Scan::new(text, depth.min(MAX_STRUCTURE_DEPTH)).run(Slot::Event)?;
    Ok((text, facts))
}

fn utf8(bytes: &[u8]) -> Result<&str, JsonError> {
    std::str::from_utf8(bytes).map_err(|error| JsonError {
        offset: error.valid_up_to(),
        problem: JsonProblem::NotUtf8,
    })
}

struct Frame {
    is_object: bool,
    slot: Slot,
    /// Where this object's keys begin in `Scan::keys`.
    first_key: usize,
    /// The keys again, once there are many.
    many: Option<HashSet<Box<str>>>,
}

struct Scan<'a> {
    lexer: Lexer<'a>,
    depth: usize,
    stack: Vec<Frame>,
    /// How many of the frames are structure; the others are opaque and stand above them.
    structure: usize,
    keys: Vec<Cow<'a, str>>,
    facts: Facts,
}

/// What the scan does next.
enum Next {
    Value(Slot),
    /// A value has ended.
    Ended,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str, depth: usize) -> Self {
        Self {
            lexer: Lexer::new(text),
            depth,
            stack: Vec::new(),
            structure: 0,
            keys: Vec::new(),
            facts: Facts::default(),
        }
    }

    fn run(mut self, slot: Slot) -> Result<Facts, JsonError> {
        self.lexer.skip_space();
        self.facts.is_object = self.lexer.peek() == Some(b'{');
        let mut next = Next::Value(slot);
        loop {
            next = match next {
                Next::Value(slot) => self.value(slot)?,
                Next::Ended if self.stack.is_empty() => break,
                Next::Ended => self.after_element()?,
            };
        }
        self.lexer.skip_space();
        if self.lexer.at < self.lexer.bytes.len() {
            return Err(self.lexer.fail(JsonProblem::TrailingBytes));
        }
        Ok(self.facts)
    }

    fn value(&mut self, slot: Slot) -> Result<Next, JsonError> {
        self.lexer.skip_space();
        match self.lexer.peek() {
            Some(b'{') => {
                self.open(true, slot)?;
                self.lexer.skip_space();
                if self.lexer.peek() == Some(b'}') {
                    self.lexer.at += 1;
                    self.close();
                    return Ok(Next::Ended);
                }
                self.key()
            }
            Some(b'[') => {
                self.open(false, slot)?;
                self.lexer.skip_space();
                if self.lexer.peek() == Some(b']') {
                    self.lexer.at += 1;
                    self.close();
                    return Ok(Next::Ended);
                }
                Ok(Next::Value(slot))
            }
            Some(b'"') => self.lexer.string(slot == Slot::Opaque).map(|_| Next::Ended),
            Some(b't') => self.lexer.word(b"true").map(|()| Next::Ended),
            Some(b'f') => self.lexer.word(b"false").map(|()| Next::Ended),
            Some(b'n') => self.lexer.word(b"null").map(|()| Next::Ended),
            Some(b'-' | b'0'..=b'9') => self.lexer.number().map(|()| Next::Ended),
            _ => Err(self.lexer.misfit()),
        }
    }

    /// After an element of an array or object: a comma and the next one, or its end.
    fn after_element(&mut self) -> Result<Next, JsonError> {
        self.lexer.skip_space();
        let Some((is_object, slot)) = self.stack.last().map(|frame| (frame.is_object, frame.slot))
        else {
            return Ok(Next::Ended);
        };
        match self.lexer.peek() {
            Some(b',') => {
                self.lexer.at += 1;
                if is_object {
                    self.key()
                } else {
                    Ok(Next::Value(slot))
                }
            }
            Some(b'}') if is_object => {
                self.lexer.at += 1;
                self.close();
                Ok(Next::Ended)
            }
            Some(b']') if !is_object => {
                self.lexer.at += 1;
                self.close();
                Ok(Next::Ended)
            }
            _ => Err(self.lexer.misfit()),
        }
    }

    fn open(&mut self, is_object: bool, slot: Slot) -> Result<(), JsonError> {
        let (depth, max) = if slot == Slot::Opaque {
            (self.stack.len() - self.structure, RawJson::MAX_DEPTH)
        } else {
            (self.structure, self.depth)
        };
        if depth >= max {
            return Err(self.lexer.fail(JsonProblem::TooDeep { max }));
        }
        if slot != Slot::Opaque {
            self.structure += 1;
        }
        self.stack.push(Frame {
            is_object,
            slot,
            first_key: self.keys.len(),
            many: None,
        });
        self.lexer.at += 1;
        Ok(())
    }

    fn close(&mut self) {
        if let Some(frame) = self.stack.pop() {
            if frame.slot != Slot::Opaque {
                self.structure -= 1;
            }
            self.keys.truncate(frame.first_key);
        }
    }

    /// A key with its colon; gives the slot of the value that follows.
    fn key(&mut self) -> Result<Next, JsonError> {
        self.lexer.skip_space();
        let start = self.lexer.at;
        if self.lexer.peek() != Some(b'"') {
            return Err(self.lexer.misfit());
        }
        let slot = self.stack.last().map_or(Slot::Plain, |frame| frame.slot);
        let key = self.lexer.string(slot == Slot::Opaque)?;
        let below = if slot == Slot::Opaque {
            Slot::Opaque
        } else {
            let key = unescape(key);
            if self.stack.len() == 1
                && matches!(key.as_ref(), "agent_name" | "cause" | "visibility")
            {
                self.facts.has_header_keys = true;
            }
            let below = slot.under(&key);
            if let Err(problem) = self.remember(key) {
                return Err(JsonError {
                    offset: start,
                    problem,
                });
            }
            below
        };
        self.lexer.skip_space();
        self.lexer.expect(b':')?;
        Ok(Next::Value(below))
    }

    /// Refuses a key that the innermost object already has.
    fn remember(&mut self, key: Cow<'a, str>) -> Result<(), JsonProblem> {
        let Some(frame) = self.stack.last_mut() else {
            return Ok(());
        };
        // Lower-case keys without other letters, the usual ones, cost no allocation.
        let is_lower = key
            .bytes()
            .all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
        let folded = if is_lower {
            key
        } else {
            Cow::Owned(key.to_lowercase())
        };
        let known = self.keys.get(frame.first_key..).unwrap_or_default();
        if known.len() >= MAX_KEYS {
            return Err(JsonProblem::TooManyKeys { max: MAX_KEYS });
        }
        let repeats = if known.len() < KEYS_COMPARED_ONE_BY_ONE {
            known.contains(&folded)
        } else {
            let set = frame
                .many
                .get_or_insert_with(|| known.iter().map(|key| key.as_ref().into()).collect());
            !set.insert(folded.as_ref().into())
        };
        if repeats {
            return Err(JsonProblem::DuplicateKey);
        }
        self.keys.push(folded);
        Ok(())
    }
}

/// The text that a checked key stands for.
fn unescape(key: &str) -> Cow<'_, str> {
    if !key.contains('\\') {
        return Cow::Borrowed(key);
    }
    // The scan has accepted the key, so this cannot fail; the raw text would do as well.
    serde_json::from_str(&format!("\"{key}\"")).map_or(Cow::Borrowed(key), Cow::Owned)
}
