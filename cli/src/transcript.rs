//! Reads a Claude Code transcript: JSON lines, in file order.
//!
//! A user text begins a turn; assistant lines with the same `message.id` are parts of one message;
//! `tool_result` blocks of user lines answer the calls before them. What cannot be used is never
//! passed over in silence: it is counted or reported with its line.

mod assembly;
mod line;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use stepwell::content::{AssistantMessage, ToolResultMessage, UserMessage};

use assembly::Assembly;

/// Longest line in bytes; longer ones are reported and skipped without being held. No event may be
/// larger either.
const LINE_BYTES: usize = 16 << 20;
/// Largest transcript in bytes.
const FILE_BYTES: u64 = 512 << 20;
/// How many types of skipped lines are told apart, and the longest name of one in characters.
const TYPES: usize = 64;
const TYPE_CHARS: usize = 40;

/// A transcript, ready to be replayed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Transcript {
    pub(crate) turns: Vec<Turn>,
    pub(crate) report: Report,
}

/// What a user said, and the steps that followed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    pub(crate) user: UserMessage,
    pub(crate) steps: Vec<Step>,
}

/// One message of the model with the results of its calls, in call order: one for each.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) assistant: AssistantMessage,
    pub(crate) results: Vec<ToolResultMessage>,
}

/// What was not used.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Report {
    /// All lines that are not empty.
    pub(crate) lines: u64,
    /// Lines of other types, by type.
    pub(crate) skipped: BTreeMap<String, u64>,
    /// Lines of side conversations.
    pub(crate) sidechains: u64,
    /// Everything else, in the order of its lines.
    pub(crate) problems: Vec<Problem>,
}

/// Something that could not be used, with its line, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) line: u64,
    pub(crate) trouble: Trouble,
}

/// Why something could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The line is not what a transcript holds; it was skipped.
    Broken(String),
    /// The line is longer than [`LINE_BYTES`]; it was skipped.
    TooLong,
    /// The message has calls that never got a result; it was dropped whole.
    Unanswered { ids: Vec<String>, calls: usize },
    /// The message holds nothing; it was dropped.
    Empty,
    /// The result answers no call; it was dropped.
    NoSuchCall(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.trouble {
            Trouble::Broken(why) => write!(f, "skipped: {why}"),
            Trouble::TooLong => write!(f, "skipped: it is longer than {LINE_BYTES} bytes"),
            Trouble::Unanswered { ids, calls } => write!(
                f,
                "message dropped: {} of its {calls} calls never got a result ({})",
                ids.len(),
                ids.join(", ")
            ),
            Trouble::Empty => f.write_str("message dropped: it holds nothing"),
            Trouble::NoSuchCall(id) => write!(f, "result dropped: there is no open call '{id}'"),
        }
    }
}

/// Why a transcript could not be read at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TranscriptError {
    /// The file could not be read.
    #[error("{} could not be read: {error}; give a transcript in JSON lines", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The file is too large.
    #[error("{} is larger than {FILE_BYTES} bytes; give a smaller transcript", path.display())]
    TooLarge { path: PathBuf },
    /// There is nothing in it to replay.
    #[error("{} holds no turn to replay; give a Claude Code transcript in JSON lines", path.display())]
    NoTurns { path: PathBuf },
}

impl Transcript {
    /// Reads a file.
    pub(crate) fn open(path: &Path) -> Result<Transcript, TranscriptError> {
        let failed = |error| TranscriptError::Io {
            path: path.to_owned(),
            error,
        };
        // Opening a pipe would wait for somebody to write to it.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            let text = "it is not a regular file";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        let file = File::open(path).map_err(failed)?;
        let mut limited = BufReader::new(file.take(FILE_BYTES + 1));
        let transcript = Transcript::read(&mut limited).map_err(failed)?;
        if limited.get_ref().limit() == 0 {
            return Err(TranscriptError::TooLarge {
                path: path.to_owned(),
            });
        }
        if transcript.turns.is_empty() {
            return Err(TranscriptError::NoTurns {
                path: path.to_owned(),
            });
        }
        Ok(transcript)
    }

    /// Reads lines to their end.
    pub(crate) fn read(input: &mut impl BufRead) -> io::Result<Transcript> {
        let mut report = Report::default();
        let mut assembly = Assembly::default();
        let mut number = 0;
        while let Some(read) = next_line(input, LINE_BYTES)? {
            number += 1;
            let text = match read {
                Bounded::Line(bytes) if bytes.trim_ascii().is_empty() => continue,
                Bounded::Line(bytes) => bytes,
                Bounded::TooLong => {
                    report.lines += 1;
                    report.add(number, Trouble::TooLong);
                    continue;
                }
            };
            report.lines += 1;
            match line::parse(&text) {
                Ok(line::Parsed::User(parts)) => assembly.user(number, parts, &mut report),
                Ok(line::Parsed::Assistant(parts)) => assembly.assistant(number, parts),
                Ok(line::Parsed::Sidechain) => report.sidechains += 1,
                Ok(line::Parsed::Other(name)) => report.skip(&name),
                Err(why) => report.add(number, Trouble::Broken(why)),
            }
        }
        let turns = assembly.finish(&mut report);
        report.problems.sort_by_key(|problem| problem.line);
        Ok(Transcript { turns, report })
    }
}

impl Report {
    fn add(&mut self, line: u64, trouble: Trouble) {
        self.problems.push(Problem { line, trouble });
    }

    fn skip(&mut self, name: &str) {
        let name: String = name.chars().take(TYPE_CHARS).collect();
        let known = self.skipped.contains_key(&name) || self.skipped.len() < TYPES;
        let name = if known { name } else { "others".to_owned() };
        *self.skipped.entry(name).or_default() += 1;
    }

    /// How many lines were skipped because of their type.
    pub(crate) fn skipped_lines(&self) -> u64 {
        self.skipped.values().sum()
    }
}

enum Bounded {
    Line(Vec<u8>),
    TooLong,
}

/// The next line without its end; `None` at the end of the input. Holds at most `max` bytes.
fn next_line(input: &mut impl BufRead, max: usize) -> io::Result<Option<Bounded>> {
    let mut line = Vec::new();
    // One byte more than allowed, and the end of the line.
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(2);
    let read = input.by_ref().take(limit).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(None);
    }
    let ended = line.last() == Some(&b'\n');
    if ended {
        line.pop();
    }
    if line.len() <= max {
        return Ok(Some(Bounded::Line(line)));
    }
    if !ended {
        skip_line(input)?;
    }
    Ok(Some(Bounded::TooLong))
}

fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let held = match input.fill_buf() {
            Ok(held) => held,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if held.is_empty() {
            return Ok(());
        }
        let end = held.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(held.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(());
        }
    }
}
