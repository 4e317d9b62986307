//! Puts a model's answer together from its fragments.

use std::collections::HashMap;

use crate::content::{Block, RawToolCall, StorableReply, Thinking};
use crate::event::Chunk;

/// What a new block costs beside its bytes, so that empty fragments are bounded too.
const BLOCK_COST: usize = 64;

/// The answer is larger than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer of the model is larger than {max} bytes")]
pub(super) struct ReplyTooLarge {
    max: usize,
}

#[derive(Debug)]
enum Part {
    Text(String),
    Refusal(String),
    Thinking(Thinking),
    Call(RawToolCall),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sort {
    Text,
    Refusal,
    Thinking,
    Call,
}

/// An answer that is not whole yet. Blocks stand in the order of their indices; blocks of different
/// kinds that share an index stand in the order in which they were first seen.
#[derive(Debug)]
pub(super) struct Accumulator {
    parts: Vec<(u32, Part)>,
    /// Where fragments of a kind at an index go.
    open: HashMap<(u32, Sort), usize>,
    size: usize,
    max: usize,
}

impl Accumulator {
    pub(super) fn new(max: usize) -> Accumulator {
        Accumulator {
            parts: Vec::new(),
            open: HashMap::new(),
            size: 0,
            max,
        }
    }

    /// Folds a fragment in.
    pub(super) fn fold(&mut self, chunk: &Chunk) -> Result<(), ReplyTooLarge> {
        self.size = self.size.saturating_add(weight(chunk));
        match chunk {
            Chunk::Text { index, text } => {
                let part = self.part(*index, Sort::Text, || Part::Text(String::new()));
                if let Some(Part::Text(whole)) = part {
                    whole.push_str(text);
                }
            }
            Chunk::Refusal { index, text } => {
                let part = self.part(*index, Sort::Refusal, || Part::Refusal(String::new()));
                if let Some(Part::Refusal(whole)) = part {
                    whole.push_str(text);
                }
            }
            Chunk::Thinking {
                index,
                text,
                signature,
                signature_format,
                provider_state,
                provider_state_format,
            } => {
                let empty = || Part::Thinking(Thinking::default());
                if let Some(Part::Thinking(whole)) = self.part(*index, Sort::Thinking, empty) {
                    whole.thinking.push_str(text);
                    whole.signature.push_str(signature);
                    told(&mut whole.signature_format, signature_format);
                    told(&mut whole.provider_state_format, provider_state_format);
                    if provider_state.is_some() {
                        whole.provider_state.clone_from(provider_state);
                    }
                }
            }
            Chunk::ToolUse { index, id, name } => self.call(*index, id, name),
            Chunk::ToolInput { index, fragment } => {
                let empty = || Part::Call(RawToolCall::default());
                if let Some(Part::Call(call)) = self.part(*index, Sort::Call, empty) {
                    call.input.extend_from_slice(fragment);
                }
            }
        }
        if self.size > self.max {
            return Err(ReplyTooLarge { max: self.max });
        }
        Ok(())
    }

    /// A call begins, or says again what it is: some providers repeat id and name.
    fn call(&mut self, index: u32, id: &str, name: &str) {
        let other =
            |known: &str, said: &str| !known.is_empty() && !said.is_empty() && known != said;
        let open = self.open.get(&(index, Sort::Call)).copied();
        let open = open.and_then(|at| self.parts.get(at));
        if let Some((_, Part::Call(call))) = open
            && (other(&call.id, id) || other(&call.name, name))
        {
            self.open.remove(&(index, Sort::Call));
        }
        let empty = || Part::Call(RawToolCall::default());
        if let Some(Part::Call(call)) = self.part(index, Sort::Call, empty) {
            told(&mut call.id, id);
            told(&mut call.name, name);
        }
    }

    fn part(&mut self, index: u32, sort: Sort, new: impl FnOnce() -> Part) -> Option<&mut Part> {
        let at = *self.open.entry((index, sort)).or_insert_with(|| {
            self.size = self.size.saturating_add(BLOCK_COST);
            self.parts.push((index, new()));
            self.parts.len() - 1
        });
        self.parts.get_mut(at).map(|(_, part)| part)
    }

    /// The whole answer.
    pub(super) fn finish(mut self) -> StorableReply {
        self.parts.sort_by_key(|(index, _)| *index);
        let mut reply = StorableReply::new();
        for (_, part) in self.parts {
            match part {
                Part::Text(text) => reply.push(Block::Text { text }),
                Part::Refusal(text) => reply.push(Block::Refusal { text }),
                Part::Thinking(thinking) => reply.push(Block::Thinking(thinking)),
                Part::Call(call) => reply.push_call(call),
            }
        }
        reply
    }
}

/// What a fragment tells once, or not at all.
fn told(known: &mut String, said: &str) {
    if !said.is_empty() {
        said.clone_into(known);
    }
}

fn weight(chunk: &Chunk) -> usize {
    match chunk {
        Chunk::Text { text, .. } | Chunk::Refusal { text, .. } => text.len(),
        Chunk::Thinking {
            text,
            signature,
            provider_state,
            ..
        } => {
            let state = provider_state.as_ref().map_or(0, |state| state.get().len());
            text.len() + signature.len() + state
        }
        Chunk::ToolUse { id, name, .. } => id.len() + name.len(),
        Chunk::ToolInput { fragment, .. } => fragment.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(index: u32, text: &str) -> Chunk {
        let text = text.to_owned();
        Chunk::Text { index, text }
    }

    fn call(index: u32, id: &str, name: &str) -> Chunk {
        let (id, name) = (id.to_owned(), name.to_owned());
        Chunk::ToolUse { index, id, name }
    }

    fn input(index: u32, fragment: &[u8]) -> Chunk {
        let fragment = fragment.to_vec();
        Chunk::ToolInput { index, fragment }
    }

    fn folded(chunks: &[Chunk]) -> StorableReply {
        let mut accumulator = Accumulator::new(1 << 20);
        for chunk in chunks {
            accumulator.fold(chunk).unwrap();
        }
        accumulator.finish()
    }

    #[test]
    fn blocks_stand_by_index_and_fragments_join_across_each_other() {
        let reply = folded(&[
            call(2, "c2", "b"),
            call(1, "c1", "a"),
            input(2, b"{\"x\":\"\xc3"),
            input(1, b"{}"),
            text(0, "he"),
            input(2, b"\xa4\"}"),
            text(0, "llo"),
        ]);
        let message = reply.message(None);
        assert_eq!(message.to_text(), "hello");
        let calls: Vec<_> = reply.calls().cloned().collect();
        assert_eq!(calls[0], RawToolCall::new("c1", "a", "{}"));
        assert_eq!(calls[1], RawToolCall::new("c2", "b", "{\"x\":\"ä\"}"));
    }

    #[test]
    fn a_repeated_id_is_one_call_and_another_id_is_another_call() {
        let reply = folded(&[
            call(0, "c1", "a"),
            input(0, b"{"),
            call(0, "c1", ""),
            input(0, b"}"),
            call(0, "c2", "a"),
            input(0, b"[]"),
        ]);
        let calls: Vec<_> = reply.calls().cloned().collect();
        assert_eq!(
            calls,
            [
                RawToolCall::new("c1", "a", "{}"),
                RawToolCall::new("c2", "a", "[]")
            ]
        );
    }

    #[test]
    fn an_answer_is_bounded_also_when_it_has_no_bytes() {
        let mut accumulator = Accumulator::new(1000);
        let broken = (0..1000).find(|index| accumulator.fold(&text(*index, "")).is_err());
        assert_eq!(broken, Some(15));
        let mut accumulator = Accumulator::new(1000);
        assert!(accumulator.fold(&text(0, &"x".repeat(900))).is_ok());
        assert!(accumulator.fold(&text(0, &"x".repeat(100))).is_err());
    }
}
