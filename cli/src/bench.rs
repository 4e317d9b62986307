//! `stepwell bench`: what a disk can do, and what stepwell makes of it.
//!
//! A time alone says nothing on a machine that others use too. So each round measures a limit (a plain
//! loop of our own over the same bytes) and stepwell right after each other, in alternating order, and
//! what is reported are medians over the rounds, of ratios within a round.

mod append;
mod counting;
mod folder;
mod group;
mod journal;
mod limit;
mod measure;
mod open;
mod replay;
mod report;
mod result;
mod steps;

use std::io;
use std::path::{Path, PathBuf};

use stepwell::journal::{AppendError, CloseError, OpenError, ReadError};
use stepwell::store::{CommitError, SessionError, StoreError};

use crate::Verdict;
use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::output::Output;
use folder::Folder;

/// Why a measurement was not finished.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A call of a loop of our own, or of the preparation, failed.
    #[error("{}: {error}; give a directory on the disk to be measured, with space left", path.display())]
    Disk {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The async runtime could not be made.
    #[error("the async runtime of the measurement: {0}")]
    Runtime(io::Error),
    /// The journal could not be opened.
    #[error("the journal of the measurement: {0}")]
    Open(#[from] OpenError),
    /// An append failed.
    #[error("an append of the measurement: {0}")]
    Append(#[from] AppendError),
    /// The journal could not be closed.
    #[error("the journal of the measurement: {0}")]
    Close(#[from] CloseError),
    /// The store could not be made.
    #[error("the store of the measurement: {0}")]
    Store(#[from] StoreError),
    /// A session could not be made.
    #[error("a session of the measurement: {0}")]
    Session(#[from] SessionError),
    /// A step could not be committed.
    #[error("a commit of the measurement: {0}")]
    Commit(#[from] CommitError),
    /// A record could not be read back.
    #[error("reading the measurement's journal: {0}")]
    Read(#[from] ReadError),
    /// Not everything came back.
    #[error("{found} of {written} records were read back; please report this")]
    Missing {
        /// How many were written.
        written: u64,
        /// How many were read.
        found: u64,
    },
    /// The thread that writes for all has stopped after an error of its own.
    #[error("the thread that writes the limit has stopped; please report this")]
    Stopped,
    /// A thread of the measurement panicked.
    #[error("a thread of the measurement panicked; please report this")]
    Panic,
}

impl BenchError {
    /// Of a call on this path.
    fn disk(path: &Path) -> impl FnOnce(io::Error) -> BenchError {
        let path = path.to_owned();
        move |error| BenchError::Disk { path, error }
    }
}

pub(crate) fn run(args: &BenchArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let folder = Folder::make(&args.dir)?;
    match (args.replay, args.open, args.result) {
        (Some(mebibytes), ..) => replay::run(&folder, mebibytes, args.json, out)?,
        (_, Some(mebibytes), _) => open::run(&folder, mebibytes, args.json, out)?,
        (.., Some(kibibytes)) => result::run(&folder, kibibytes, args.json, out)?,
        _ => append::run(&folder, args, out)?,
    }
    Ok(Verdict::Ok)
}
