//! Reading lines of any text in bounded memory.

use std::io::{BufRead, ErrorKind};

use super::ImportError;

/// Lines of bounded length.
pub(super) struct Lines<R> {
    from: R,
    max: usize,
    /// The line that was read last.
    pub(super) line: Vec<u8>,
    /// Its number, from 1.
    pub(super) number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(from: R, max: usize) -> Lines<R> {
        Lines {
            from,
            max,
            line: Vec::new(),
            number: 0,
        }
    }

    /// Reads the next line that is not blank; false at the end.
    pub(super) fn advance(&mut self) -> Result<bool, ImportError> {
        loop {
            self.line.clear();
            self.number += 1;
            if !self.fill()? {
                return Ok(false);
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn fill(&mut self) -> Result<bool, ImportError> {
        let mut any = false;
        loop {
            let read = match self.from.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.map_err(|source| ImportError::Read {
                    line: self.number,
                    source,
                })?,
            };
            if read.is_empty() {
                return Ok(any);
            }
            any = true;
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = read.get(..end.unwrap_or(read.len())).unwrap_or_default();
            let used = part.len() + usize::from(end.is_some());
            if self.line.len() + part.len() > self.max {
                return Err(ImportError::LineTooLong {
                    line: self.number,
                    max: self.max,
                });
            }
            self.line.extend_from_slice(part);
            self.from.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}
