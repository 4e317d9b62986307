//! The side channel: an append-only file in which the child notes what it is about to offer and what
//! was acknowledged, and from which the parent knows what the store owes.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::hash::Hasher as _;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stepwell::content::Message;
use stepwell::event::Body;
use stepwell::identity::{SessionId, StepId};
use stepwell::store::Committed;

/// A message in short: 64 bits of FNV-1a over its JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Digest(u64);

struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl Digest {
    /// Of a message. One that has no JSON (there is none) has the digest of nothing.
    pub(super) fn of(message: &Message) -> Digest {
        let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
        fnv.write(&serde_json::to_vec(message).unwrap_or_default());
        Digest(fnv.finish())
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Note {
    /// The child has started and is about to open the store.
    Opening { process: u32 },
    /// A user's text is about to be offered.
    Asking { session: SessionId, user: Digest },
    /// The model begins to answer.
    Answering { step: StepId },
    /// The model's answer is about to be whole.
    Offered {
        session: SessionId,
        step: StepId,
        assistant: Digest,
    },
    /// A tool begins.
    Working { step: StepId, call: String },
    /// A tool's result is about to be given.
    Result {
        step: StepId,
        call: String,
        result: Digest,
    },
    /// An event was acknowledged: it arrived from the store as committed. Or it was recovered: the
    /// kill came before the answer, and the next opening gives it.
    Acknowledged {
        session: SessionId,
        seq: u64,
        recovered: bool,
        record: Record,
    },
}

/// What of a record is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) kind: String,
    pub(super) step: StepId,
    /// The messages that it brings into the history.
    pub(super) messages: Vec<Digest>,
}

impl Record {
    pub(super) fn of(committed: &Committed) -> Record {
        let event = committed.event();
        let user = |message: &stepwell::content::UserMessage| {
            vec![Digest::of(&Message::User(message.clone()))]
        };
        Record {
            kind: event.kind().name().to_owned(),
            step: event.header.coordinates.step,
            messages: match &event.body {
                Body::TurnStarted(started) => user(&started.message),
                Body::TurnFoldedInto(folded) => user(&folded.message),
                Body::StepDone(step) => step.messages.iter().map(Digest::of).collect(),
                _ => Vec::new(),
            },
        }
    }

    pub(super) fn is_step(&self) -> bool {
        self.kind == "StepDone"
    }
}

/// The child's end: notes are handed to the system one by one, so they outlive a killed process.
#[derive(Debug)]
pub(super) struct Ledger {
    file: File,
}

impl Ledger {
    pub(super) fn open(path: &Path) -> io::Result<Ledger> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)?;
        // The killed child before this one may have left half a line.
        let mut last = [b'\n'];
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        if last != [b'\n'] {
            file.write_all(b"\n")?;
        }
        Ok(Ledger { file })
    }

    /// Notes. Without its witness the demo can say nothing, so a failure ends the child.
    pub(super) fn note(&self, note: &Note) {
        let written = serde_json::to_string(note)
            .map_err(io::Error::other)
            .and_then(|line| (&self.file).write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            crate::output::complain(&format!("the side channel could not be written: {error}"));
            std::process::exit(1);
        }
    }
}

/// The parent's end: what all children noted so far.
#[derive(Debug, Default)]
pub(super) struct Books {
    path: PathBuf,
    /// How far the file was read, and the beginning of a line that is not whole yet.
    offset: u64,
    rest: Vec<u8>,
    /// All whole lines, and those that are no notes: half a line that a kill left.
    pub(super) lines: u64,
    pub(super) broken: u64,
    pub(super) asked: HashSet<(SessionId, Digest)>,
    pub(super) offered: HashSet<(SessionId, StepId, Digest)>,
    pub(super) results: HashSet<(StepId, String, Digest)>,
    pub(super) acknowledged: BTreeMap<(SessionId, u64), Record>,
    /// The steps among them whose answer came before the kill.
    steps: HashSet<(SessionId, u64)>,
    /// Two acknowledgements of one record that do not agree.
    pub(super) contradictions: Vec<(SessionId, u64)>,
}

impl Books {
    pub(super) fn new(path: PathBuf) -> Books {
        Books {
            path,
            ..Books::default()
        }
    }

    /// Reads what was added.
    pub(super) fn update(&mut self) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if file.metadata()?.len() <= self.offset {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let read = file.read_to_end(&mut self.rest)?;
        self.offset += read as u64;
        let held = std::mem::take(&mut self.rest);
        let whole = held.iter().rposition(|byte| *byte == b'\n');
        let (lines, rest) = held.split_at(whole.map_or(0, |end| end + 1));
        self.rest = rest.to_vec();
        for line in lines.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            self.lines += 1;
            match serde_json::from_slice(line) {
                Ok(note) => self.enter(note),
                Err(_) => self.broken += 1,
            }
        }
        Ok(())
    }

    pub(super) fn enter(&mut self, note: Note) {
        match note {
            Note::Opening { .. } | Note::Answering { .. } | Note::Working { .. } => {}
            Note::Asking { session, user } => {
                self.asked.insert((session, user));
            }
            Note::Offered {
                session,
                step,
                assistant,
            } => {
                self.offered.insert((session, step, assistant));
            }
            Note::Result { step, call, result } => {
                self.results.insert((step, call, result));
            }
            Note::Acknowledged {
                session,
                seq,
                recovered,
                record,
            } => {
                if !recovered && record.is_step() {
                    self.steps.insert((session, seq));
                }
                let known = self.acknowledged.entry((session, seq));
                if *known.or_insert_with(|| record.clone()) != record {
                    self.contradictions.push((session, seq));
                }
            }
        }
    }

    /// The steps that were acknowledged.
    pub(super) fn steps(&self) -> u64 {
        self.steps.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_come_and_half_a_line_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut books = Books::new(path.clone());
        books.update().unwrap();
        let ledger = Ledger::open(&path).unwrap();
        ledger.note(&Note::Opening { process: 1 });
        books.update().unwrap();
        assert_eq!((books.lines, books.broken), (1, 0));

        let session = SessionId::new();
        let user = Digest(7);
        let line = serde_json::to_string(&Note::Asking { session, user }).unwrap();
        let (half, other) = line.split_at(line.len() / 2);
        (&ledger.file).write_all(half.as_bytes()).unwrap();
        books.update().unwrap();
        assert_eq!((books.lines, books.asked.len()), (1, 0));
        (&ledger.file).write_all(other.as_bytes()).unwrap();
        (&ledger.file).write_all(b"\n").unwrap();
        books.update().unwrap();
        assert_eq!(
            (books.lines, books.asked.contains(&(session, user))),
            (2, true)
        );

        // Half a line of a killed child is closed by the next one, and is no note.
        (&ledger.file).write_all(half.as_bytes()).unwrap();
        Ledger::open(&path)
            .unwrap()
            .note(&Note::Opening { process: 2 });
        books.update().unwrap();
        assert_eq!((books.lines, books.broken), (4, 1));
    }

    #[test]
    fn a_digest_sees_every_byte() {
        let digest =
            |text: &str| Digest::of(&Message::User(stepwell::content::UserMessage::text(text)));
        assert_eq!(digest("a"), digest("a"));
        assert_ne!(digest("a"), digest("b"));
        assert_ne!(digest(""), digest(" "));
    }
}
