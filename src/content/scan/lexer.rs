//! The tokens of JSON: strings, numbers, words.

use super::{JsonError, JsonProblem};

/// A place in JSON text.
pub(super) struct Lexer<'a> {
    text: &'a str,
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: 0,
        }
    }

    pub(super) fn fail(&self, problem: JsonProblem) -> JsonError {
        JsonError {
            offset: self.at,
            problem,
        }
    }

    /// The error for a byte that does not fit here, or for the missing one at the end.
    pub(super) fn misfit(&self) -> JsonError {
        self.fail(if self.at < self.bytes.len() {
            JsonProblem::Syntax
        } else {
            JsonProblem::UnexpectedEnd
        })
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    pub(super) fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    pub(super) fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.peek() != Some(byte) {
            return Err(self.misfit());
        }
        self.at += 1;
        Ok(())
    }

    /// A string; gives what stands between its quotes.
    pub(super) fn string(&mut self, opaque: bool) -> Result<&'a str, JsonError> {
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.escape(opaque)?,
                Some(0..=0x1f) | None => return Err(self.misfit()),
                Some(_) => self.skip_plain(),
            }
        }
        let inner = self.text.get(start..self.at).unwrap_or_default();
        self.at += 1;
        Ok(inner)
    }

    fn escape(&mut self, opaque: bool) -> Result<(), JsonError> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                let unit = self.hex4()?;
                if opaque {
                    return Ok(());
                }
                let pairs = match unit {
                    0xd800..=0xdbff => {
                        let followed = self
                            .bytes
                            .get(self.at..)
                            .is_some_and(|rest| rest.starts_with(b"\\u"));
                        self.at += usize::from(followed);
                        followed && matches!(self.hex4()?, 0xdc00..=0xdfff)
                    }
                    0xdc00..=0xdfff => false,
                    _ => true,
                };
                if !pairs {
                    return Err(JsonError {
                        offset: start,
                        problem: JsonProblem::LoneSurrogate,
                    });
                }
            }
            _ => return Err(self.misfit()),
        }
        Ok(())
    }

    /// `u` and four hex digits.
    fn hex4(&mut self) -> Result<u32, JsonError> {
        self.at += 1;
        let mut unit = 0_u32;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or_else(|| self.misfit())?;
            self.at += 1;
        }
        Ok(unit)
    }

    pub(super) fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        for byte in word {
            self.expect(*byte)?;
        }
        Ok(())
    }

    pub(super) fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.misfit());
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    /// Goes to the next byte of a string that means something: most of a record is such text.
    fn skip_plain(&mut self) {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let means = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
        self.at += rest.iter().position(means).unwrap_or(rest.len());
    }
}
