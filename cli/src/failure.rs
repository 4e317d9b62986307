//! Why a command could not do its work, in words for the person at the terminal.

use std::io;
use std::path::PathBuf;

use stepwell::identity::SessionId;
use stepwell::journal::{InspectError, OpenError};
use stepwell::store::{
    BackupError, CommitError, ExportError, ForkError, ImportError, OrderError, RepairError,
    SessionCloseError, SessionError, StoreError,
};

use crate::bench::BenchError;
use crate::demo::{ChildError, DemoError};

/// Why a command failed. Its text says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The store could not be opened or listed.
    #[error("{0}{advice}", advice = store_advice(.0))]
    Store(#[from] StoreError),
    /// A session could not be opened.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The journal of a session could not be opened.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// A session could not be repaired.
    #[error("{0}")]
    Repair(#[from] RepairError),
    /// A session could not be exported to its end.
    #[error("{0}; what is intact: 'stepwell repair'")]
    Export(#[from] ExportError),
    /// A session could not be imported.
    #[error("{0}; nothing was imported")]
    Import(#[from] ImportError),
    /// A store could not be backed up.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// A session could not be forked.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// An event could not be committed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A loop could not be held.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A session was not closed cleanly.
    #[error(transparent)]
    Close(#[from] SessionCloseError),
    /// A file could not be opened or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// What is asked for cannot be undone, and was not confirmed.
    #[error("{0} would be deleted for good; take --yes to do it")]
    NotConfirmed(SessionId),
    /// A beginning of an id is not enough here.
    #[error("'{0}' is not a whole session id; deleting takes the whole of it")]
    NotWhole(String),
    /// A file could not be looked into.
    #[error("{0}{advice}", advice = inspect_advice(.0))]
    Inspect(#[from] InspectError),
    /// No session has an id that begins so.
    #[error("no session begins with '{given}'; list them with 'stepwell sessions {}'", dir.display())]
    NoSuchSession {
        /// What was given.
        given: String,
        /// The store.
        dir: PathBuf,
    },
    /// Several sessions have an id that begins so.
    #[error("'{given}' is ambiguous: {}; give more of the id", some_of(matches))]
    Ambiguous {
        /// What was given.
        given: String,
        /// The sessions that it may mean.
        matches: Vec<SessionId>,
    },
    /// The session has no loop of that name.
    #[error("the session has no loop '{given}'; it has {}", known.join(", "))]
    NoSuchLoop {
        /// What was given.
        given: String,
        /// The names that it has.
        known: Vec<String>,
    },
    /// The demo could not be carried out.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// The demo's child could not go on.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The measurement could not be carried out.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The output could not be written.
    #[error("the output could not be written: {0}; redirect it elsewhere")]
    Output(io::Error),
    /// A value could not be written as JSON.
    #[error("a value could not be written as JSON: {0}; please report this")]
    Json(#[from] serde_json::Error),
}

fn inspect_advice(error: &InspectError) -> &'static str {
    match error {
        InspectError::NeedsManifest { .. } => " (--manifest FILE)",
        _ => "",
    }
}

fn store_advice(error: &StoreError) -> &'static str {
    match error {
        StoreError::NotFound { .. } => "; give the directory that holds its STORE file",
        _ => "",
    }
}

/// The first few of the sessions that a prefix may mean.
fn some_of(matches: &[SessionId]) -> String {
    const SHOWN: usize = 3;
    let mut names: Vec<String> = matches
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    if matches.len() > SHOWN {
        names.push(format!("{} more", matches.len() - SHOWN));
    }
    names.join(", ")
}

/// Folds a text into one line without control characters: errors of the system and of parsers may
/// have several lines, and names may hold anything.
pub(crate) fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    crate::output::visible(&words.join(" "))
}
