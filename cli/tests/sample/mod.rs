//! A small store on the real disk, and the binary run on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use stepwell::Store;
use stepwell::content::{AssistantMessage, RawJson, ToolResultMessage, UserMessage};
use stepwell::identity::SessionId;
use stepwell::journal::{Entry, Lsn};
use stepwell::store::{LoopSpec, SessionSpec, StepDraft};

pub struct Sample {
    folder: tempfile::TempDir,
    pub store: Store,
    pub session: SessionId,
}

/// The id that the sample's session has, so that prefixes of it are known.
pub const ID: &str = "0197aaaa-0000-7000-8000-000000000001";

impl Sample {
    /// One session, left as a crash leaves it: two loops, a finished turn of two steps and a turn
    /// that is still open.
    pub fn new() -> Sample {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        let session = ID.parse().unwrap();
        let sample = Sample {
            folder,
            store,
            session,
        };
        sample.fill(session, "listing files");
        sample
    }

    pub fn fill(&self, id: SessionId, title: &str) {
        let spec = SessionSpec::new().id(id).title(title);
        let session = self.store.create_session(spec).unwrap();
        let mut main = session.create_loop(LoopSpec::new("main")).unwrap();
        let mut side = session.create_loop(LoopSpec::new("side")).unwrap();
        let mut turn = main
            .begin_turn(UserMessage::text("list the files"))
            .unwrap();
        let input = RawJson::parse(r#"{"path": ".",  "n":1.50}"#).unwrap();
        let call = AssistantMessage::text("Looking.").with_tool_use("call-1", "list", input);
        let result = ToolResultMessage::text("call-1", "a.txt\n\x1b[2Jb.txt");
        let step = StepDraft::new(call).results([result]);
        turn.commit_step(step).unwrap();
        turn.commit_last_step(StepDraft::new(AssistantMessage::text("Two files.")))
            .unwrap();
        let mut turn = side.begin_turn(UserMessage::text("on the side")).unwrap();
        turn.commit_step(StepDraft::new(AssistantMessage::text("Half way.")))
            .unwrap();
    }

    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    pub fn entries(&self) -> Vec<Entry> {
        let view = self.store.journal_view(self.session).unwrap();
        view.read(Lsn::ZERO).collect::<Result<_, _>>().unwrap()
    }

    /// Flips a byte in the payload of the record at this sequence.
    pub fn flip(&self, seq: u64) {
        let entries = self.entries();
        let entry = entries.iter().find(|entry| entry.seq.get() == seq).unwrap();
        let segment = entry.position.segment.to_string();
        let path = find(&self.store.session_dir(self.session), &segment);
        let mut bytes = std::fs::read(&path).unwrap();
        let start = usize::try_from(entry.position.offset).unwrap();
        let at = (start..bytes.len())
            .find(|at| bytes[*at..].starts_with(&entry.payload))
            .unwrap();
        bytes[at + entry.payload.len() / 2] ^= 0x40;
        std::fs::write(path, bytes).unwrap();
    }

    /// Runs the binary; `{}` among the arguments stands for the store's directory.
    pub fn run(&self, args: &[&str]) -> Run {
        let dir = self.dir();
        let args = args.iter().map(|arg| match *arg {
            "{}" => dir.as_os_str().to_owned(),
            other => other.into(),
        });
        Run::of(Command::new(binary()).args(args).output().unwrap())
    }
}

pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_stepwell"))
}

fn find(dir: &Path, name: &str) -> PathBuf {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        if path.file_name().is_some_and(|found| found == name) {
            return path;
        }
    }
    panic!("{name} is not in {}", dir.display());
}

/// What a run of the binary gave.
#[derive(Debug)]
pub struct Run {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn of(output: Output) -> Run {
        Run {
            status: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The lines of stdout as JSON objects; one object per line, nothing else.
    pub fn objects(&self) -> Vec<serde_json::Value> {
        let lines = self.stdout.lines();
        lines
            .map(|line| {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                assert!(value.is_object(), "{line}");
                value
            })
            .collect()
    }

    /// That it failed with one line on stderr that holds this text.
    pub fn fails(&self, status: i32, text: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.stderr.starts_with("stepwell: "), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.contains(text), "{self:?}");
    }
}
