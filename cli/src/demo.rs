//! `stepwell demo`: the promise, seen on the real disk.
//!
//! A child process runs an agent loop (`child`, `agent`) that says its script (`script`) and commits
//! its steps; this process kills it again and again (`parent`), and compares at the end what the
//! child noted in the side channel (`books`) with what the store gives back (`check`).

mod agent;
mod books;
mod check;
pub(crate) mod child;
#[cfg(test)]
mod falsified;
mod parent;
mod script;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use stepwell::Store;
use stepwell::journal::{Fault, OpenError};
use stepwell::runtime::{RunError, ShutdownError, SpawnError};
use stepwell::store::{
    CommitError, OrderError, ReplayError, SessionCloseError, SessionError, StoreError,
};

use crate::Verdict;
use crate::args::DemoArgs;
use crate::failure::{Failure, one_line};
use crate::output::{self, Output, Progress, Table, count};
use crate::transcript::{Report, TranscriptError};
use books::Books;
use check::Findings;
use parent::Orders;
use script::Source;

/// How many problems of a transcript and of a judgement are told.
const TOLD: usize = 10;

/// Why the demo could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    #[error("the directory {} could not be made: {error}; give another one with --dir", path.display())]
    Folder { path: PathBuf, error: io::Error },
    #[error("{} is not empty; give a new directory with --dir", path.display())]
    NotEmpty { path: PathBuf },
    #[error("the child process could not be started: {0}")]
    Start(io::Error),
    #[error("the child process could not be watched: {0}")]
    Child(io::Error),
    #[error("the child ended by itself ({status}): {}", said_or_nothing(said))]
    ChildEnded { status: ExitStatus, said: String },
    #[error("the child noted nothing for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the side channel could not be read: {0}")]
    Books(io::Error),
    #[error(transparent)]
    Transcript(#[from] TranscriptError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Close(#[from] SessionCloseError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

fn said_or_nothing(said: &str) -> &str {
    match said.trim() {
        "" => "it said nothing",
        said => said.strip_prefix("stepwell: ").unwrap_or(said),
    }
}

/// Why the child could not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    #[error("the side channel could not be opened: {0}")]
    Ledger(io::Error),
    #[error("the scratch directory could not be made: {0}")]
    Scratch(io::Error),
    #[error("the runtime could not be started: {0}")]
    Runtime(io::Error),
    #[error(transparent)]
    Transcript(#[from] TranscriptError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Close(#[from] SessionCloseError),
    #[error(transparent)]
    Shutdown(#[from] ShutdownError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("a turn failed: {0}")]
    TurnFailed(String),
    #[error("a turn was interrupted, and nobody had asked for it")]
    TurnInterrupted,
    #[error("{0}")]
    Faulted(Fault),
    #[error("the subscription ended early")]
    WitnessLost,
}

/// Where the demo keeps what.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(path: PathBuf) -> Folder {
        Folder(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    fn scratch(&self) -> PathBuf {
        self.0.join("scratch")
    }

    fn ledger(&self) -> PathBuf {
        self.0.join("side-channel.jsonl")
    }
}

/// The object of `--json`.
#[derive(Serialize)]
struct Summary {
    kills: u64,
    steps_acknowledged: u64,
    steps_restored: u64,
    lost: u64,
    phantom: u64,
    history_equal: bool,
    open_turns_closed: u64,
}

pub(crate) fn run(args: &DemoArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let seed = args.seed.unwrap_or_else(fresh_seed);
    let (source, report) =
        Source::new(seed, args.transcript.as_deref()).map_err(DemoError::from)?;
    tell_unused(&report);
    let folder = prepare(args.dir.as_deref(), seed)?;
    let began = Instant::now();
    let judged = carry_out(args, seed, &folder, &source);
    let kept = matches!(&judged, Ok((_, findings)) if findings.is_kept());
    let temporary = args.dir.is_none();
    match (kept, temporary) {
        (true, true) => {
            // A folder that stays behind in the system's place for such is no failure of the store.
            let _ = std::fs::remove_dir_all(folder.path());
        }
        (false, _) => output::complain(&format!(
            "seed {seed}; everything was kept in {}",
            folder.path().display()
        )),
        (true, false) => {}
    }
    let (kills, findings) = judged?;
    for problem in findings.problems.iter().take(TOLD) {
        output::complain(&one_line(problem));
    }
    if args.json {
        out.json(&Summary {
            kills,
            steps_acknowledged: findings.steps_acknowledged,
            steps_restored: findings.steps_restored,
            lost: findings.lost,
            phantom: findings.phantom,
            history_equal: findings.history_equal,
            open_turns_closed: findings.open_turns_closed,
        })?;
    } else {
        print(kills, &findings, seed, began.elapsed(), out)?;
        if let (true, false) = (kept, temporary) {
            out.line(&format!(
                "Look into it: stepwell sessions {}",
                folder.store().display()
            ))?;
        }
    }
    Ok(match kept {
        true => Verdict::Ok,
        false => Verdict::Bad,
    })
}

fn carry_out(
    args: &DemoArgs,
    seed: u64,
    folder: &Folder,
    source: &Source,
) -> Result<(u64, Findings), DemoError> {
    let progress = Progress::new();
    let mut books = Books::new(folder.ledger());
    let orders = Orders {
        folder: folder.clone(),
        seed,
        transcript: args.transcript.clone(),
        kills: args.kills,
    };
    let done = orders.carry_out(&mut books, &progress);
    progress.clear();
    let kills = done?;
    let store = Store::open_existing(folder.store())?;
    let restored = check::restore(&store, source)?;
    Ok((kills, check::check(&books, &restored)))
}

/// A directory of the demo's own: the given one, if it is new or empty, or a temporary one.
fn prepare(given: Option<&Path>, seed: u64) -> Result<Folder, DemoError> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::temp_dir().join(format!(
            "stepwell-demo-{}-{:x}",
            std::process::id(),
            seed ^ fresh_seed()
        )),
    };
    let failed = |error| DemoError::Folder {
        path: path.clone(),
        error,
    };
    std::fs::create_dir_all(&path).map_err(failed)?;
    if std::fs::read_dir(&path).map_err(failed)?.next().is_some() {
        return Err(DemoError::NotEmpty { path });
    }
    Ok(Folder(path.canonicalize().map_err(failed)?))
}

/// The clock's smallest digits.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::from(now.subsec_nanos()))
}

/// What of a transcript is not replayed.
fn tell_unused(report: &Report) {
    let skipped = report.skipped_lines();
    if skipped + report.sidechains > 0 {
        output::complain(&format!(
            "of {} of the transcript, {skipped} of other types and {} of side conversations are not replayed",
            count(report.lines, "line", "lines"),
            report.sidechains
        ));
    }
    for problem in report.problems.iter().take(TOLD) {
        output::complain(&one_line(&format!("transcript {problem}")));
    }
    if report.problems.len() > TOLD {
        let more = report.problems.len() - TOLD;
        output::complain(&format!("transcript: and {more} more problems"));
    }
}

fn print(
    kills: u64,
    findings: &Findings,
    seed: u64,
    took: Duration,
    out: &mut Output,
) -> Result<(), Failure> {
    let mut table = Table::new(&["", ">"]);
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    row("kills (SIGKILL)", kills.to_string());
    row(
        "steps acknowledged",
        findings.steps_acknowledged.to_string(),
    );
    row("steps restored", findings.steps_restored.to_string());
    row("acknowledged, but lost", findings.lost.to_string());
    row("restored, but never offered", findings.phantom.to_string());
    let equal = if findings.history_equal { "yes" } else { "NO" };
    row("history equal", equal.to_owned());
    row("open turns closed", findings.open_turns_closed.to_string());
    table
        .lines()
        .iter()
        .skip(1)
        .try_for_each(|line| out.line(line))?;
    out.line("")?;
    let recovered = findings
        .steps_restored
        .saturating_sub(findings.steps_acknowledged);
    if recovered > 0 {
        out.line(&format!(
            "{} durable although the kill came before the answer.",
            count(recovered, "step was", "steps were")
        ))?;
    }
    let verdict = match findings.is_kept() {
        true => "Every acknowledged step is there, and the agent went on where it had stopped.",
        false => "THE PROMISE WAS BROKEN.",
    };
    out.line(&format!(
        "{verdict} ({:.1} s, seed {seed})",
        took.as_secs_f64()
    ))
}
