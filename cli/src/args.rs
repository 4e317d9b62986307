//! The arguments of the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use stepwell::identity::Timestamp;
use stepwell::store::Cursor;

/// An embedded, crash-safe store for agent loops: look into a store, verify it, see it keep its
/// promise.
#[derive(Debug, Parser)]
#[command(name = "stepwell", version, max_term_width = 100)]
#[command(
    after_help = "Exit status: 0 ok, 1 damage found or the operation failed, 2 wrong usage. 'sessions' marks what is damaged and ends with 0."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the sessions of a store.
    Sessions(SessionsArgs),
    /// Show the committed messages of a session.
    History(HistoryArgs),
    /// Read everything and say what is damaged.
    Verify(VerifyArgs),
    /// Copy what is intact of a session to a new store, and say what is lost.
    Repair(RepairArgs),
    /// Write the events of a session, one JSON object a line.
    Export(ExportArgs),
    /// Make a session of lines that an export wrote, or of another engine's events.
    Import(ImportArgs),
    /// Copy a store that may be in use to a new one.
    Backup(BackupArgs),
    /// Make another session that has a session's history up to a record.
    Fork(ForkArgs),
    /// Take a loop of a session back to a record; what it leaves stays in the log.
    Rewind(RewindArgs),
    /// Delete a session for good.
    Delete(DeleteArgs),
    /// Delete the sessions that are old or too many.
    Prune(PruneArgs),
    /// Show what stands in a file of a journal, also a damaged one.
    Inspect(InspectArgs),
    /// Print every record of a session's log, one JSON object each.
    Dump(DumpArgs),
    /// Kill a working agent again and again, and check that nothing acknowledged is lost.
    Demo(DemoArgs),
    /// Measure what a disk can do and what stepwell makes of it.
    Bench(BenchArgs),
    /// The process that the demo kills.
    #[command(hide = true)]
    DemoChild(ChildArgs),
}

/// Of `sessions`.
#[derive(Debug, clap::Args)]
pub(crate) struct SessionsArgs {
    /// The store's directory; it is only read.
    pub(crate) dir: PathBuf,
    /// Only those with this status; given again, also those with the other.
    #[arg(long, value_name = "STATUS")]
    pub(crate) status: Vec<Status>,
    /// Only those that were active since: 30d, 12h, 90m, 45s, or a time such as
    /// 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "WHEN", value_parser = since)]
    pub(crate) since: Option<Timestamp>,
    /// Only those with this text in their title, in upper or lower case.
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// A page of at most so many; all otherwise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// The page behind this place, which the page before named.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<Cursor>,
    /// One JSON object per line; if there is a next page, the last one says where it begins.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Status {
    /// No turn is open, and the last one ended well.
    Idle,
    /// A turn is open.
    Active,
    /// The last turn was interrupted.
    Interrupted,
    /// The last turn failed.
    Failed,
    /// It was stopped.
    Stopped,
    /// It is damaged, or cannot be read.
    Damaged,
}

/// A moment, or how long ago it was.
fn since(given: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = duration(given) {
        let now = Timestamp::now();
        let secs = i64::try_from(ago.as_secs()).unwrap_or(i64::MAX);
        return Timestamp::new(now.secs().saturating_sub(secs), now.nanos())
            .map_err(|_| "there was no time so long ago".to_owned());
    }
    given.parse().map_err(|_| {
        "give a number and d, h, m or s, such as 30d, or a time such as 2026-01-31T12:00:00Z"
            .to_owned()
    })
}

/// Of `history`.
#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// The store's directory.
    pub(crate) dir: PathBuf,
    /// The session's id, or the beginning of it.
    pub(crate) session: String,
    /// As it was when the record with this sequence was the last one.
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) at: Option<u64>,
    /// The loop, by its name; the first one otherwise.
    #[arg(long = "loop", value_name = "NAME")]
    pub(crate) loop_name: Option<String>,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The store's directory.
    pub(crate) dir: PathBuf,
    /// The session's id, or the beginning of it; all sessions otherwise.
    pub(crate) session: Option<String>,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `repair`.
#[derive(Debug, clap::Args)]
pub(crate) struct RepairArgs {
    /// The store's directory; it is only read.
    pub(crate) dir: PathBuf,
    /// The session's id, or the beginning of it.
    pub(crate) session: String,
    /// A new or empty directory for the new store.
    #[arg(long, value_name = "NEWDIR")]
    pub(crate) to: PathBuf,
    /// Go on although acknowledged records cannot be read; gaps stand for them.
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// The store's directory; it is only read.
    pub(crate) dir: PathBuf,
    /// The session's id, or the beginning of it.
    pub(crate) session: String,
    /// A new file for the lines; they go to stdout otherwise. It gets its name when all are in it.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// What was written, as one JSON object; needs --out, since the lines are on stdout otherwise.
    #[arg(long, requires = "out")]
    pub(crate) json: bool,
}

/// Of `import`.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// The lines; '-' reads them from stdin.
    pub(crate) file: PathBuf,
    /// The store's directory; it is made if it is absent.
    #[arg(long, value_name = "DIR")]
    pub(crate) store: PathBuf,
    /// Give the session a new id.
    #[arg(long)]
    pub(crate) new_id: bool,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `backup`.
#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// The store's directory; it is only read.
    pub(crate) dir: PathBuf,
    /// A new or empty directory for the backup.
    pub(crate) to: PathBuf,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `fork`.
#[derive(Debug, clap::Args)]
pub(crate) struct ForkArgs {
    /// The store's directory.
    pub(crate) dir: PathBuf,
    /// The session's id, or the beginning of it; another process may have it open.
    pub(crate) session: String,
    /// Up to the record with this sequence, inclusive; up to the last that is proven otherwise.
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) at: Option<u64>,
    /// The title of the fork; that of the session otherwise.
    #[arg(long)]
    pub(crate) title: Option<String>,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `rewind`.
#[derive(Debug, clap::Args)]
pub(crate) struct RewindArgs {
    /// The store's directory.
    pub(crate) dir: PathBuf,
    /// The session's id, or the beginning of it.
    pub(crate) session: String,
    /// The last record that counts, by its sequence; 0: back to before the loop said anything.
    #[arg(long, value_name = "SEQ")]
    pub(crate) to: u64,
    /// The loop, by its name; the first one otherwise.
    #[arg(long = "loop", value_name = "NAME")]
    pub(crate) loop_name: Option<String>,
    /// Why; it stands in the log.
    #[arg(long, default_value = "")]
    pub(crate) reason: String,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `delete`.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    /// The store's directory.
    pub(crate) dir: PathBuf,
    /// The session's whole id: a beginning of it is not enough.
    pub(crate) session: String,
    /// Do it: nothing brings the session back.
    #[arg(long)]
    pub(crate) yes: bool,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `prune`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("limit").required(true).multiple(true).args(["older_than", "keep_last", "max_bytes"]))]
pub(crate) struct PruneArgs {
    /// The store's directory.
    pub(crate) dir: PathBuf,
    /// Delete sessions whose last event is older: 30d, 12h, 90m or 45s.
    #[arg(long, value_name = "AGE", value_parser = duration)]
    pub(crate) older_than: Option<Duration>,
    /// Keep so many sessions, those that were active last, whatever the other limits say; without
    /// them, delete all others.
    #[arg(long, value_name = "N")]
    pub(crate) keep_last: Option<usize>,
    /// Delete those that were active the longest ago until the others have at most so many bytes.
    #[arg(long, value_name = "BYTES")]
    pub(crate) max_bytes: Option<u64>,
    /// Only say what would be deleted.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number with the letter of its unit.
fn duration(given: &str) -> Result<Duration, String> {
    let unit = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let read = unit.into_iter().find_map(|(letter, secs)| {
        let number: u64 = given.strip_suffix(letter)?.parse().ok()?;
        number.checked_mul(secs)
    });
    read.map(Duration::from_secs)
        .ok_or_else(|| "give a number and d, h, m or s, such as 30d".to_owned())
}

/// Of `inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// A manifest, a segment, a footer or a quarantined file.
    pub(crate) file: PathBuf,
    /// A manifest of the same journal, for a segment whose header is damaged.
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Show the first bytes of each payload too; 256 unless told.
    #[arg(long, value_name = "BYTES", num_args = 0..=1, default_missing_value = "256")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) payload: Option<u32>,
    /// One JSON object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `dump`.
#[derive(Debug, clap::Args)]
pub(crate) struct DumpArgs {
    /// The store's directory.
    pub(crate) dir: PathBuf,
    /// The session's id, or the beginning of it.
    pub(crate) session: String,
    /// One JSON object per line; spread over lines for reading otherwise.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// A new or empty directory to work in and to keep; a temporary one otherwise.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// How often the agent is killed.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=100_000))]
    pub(crate) kills: u64,
    /// What script and kills are drawn from; the clock otherwise.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// A Claude Code transcript (JSON lines) to replay instead of a made-up script.
    #[arg(long, value_name = "FILE")]
    pub(crate) transcript: Option<PathBuf>,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// A directory on the disk to be measured; a temporary folder is made in it.
    pub(crate) dir: PathBuf,
    /// How many threads append at the same time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) writers: u16,

    /// The writers are tasks of an async runtime instead of threads
    #[arg(long)]
    pub(crate) tasks: bool,
    /// Bytes of a record.
    #[arg(long, value_name = "B", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) size: u32,
    /// Commit steps of about that many bytes instead, each thread in a session of its own, in a store of this
    /// layout.
    #[arg(long, value_name = "LAYOUT", conflicts_with = "tasks")]
    pub(crate) sessions: Option<Sessions>,
    /// How long to measure, in seconds, without the preparation.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Measure reading a journal of so many mebibytes instead.
    #[arg(long, value_name = "MIB", conflicts_with_all = ["writers", "tasks", "size", "seconds", "sessions", "open"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) replay: Option<u32>,
    /// Measure opening a journal of so many mebibytes instead.
    #[arg(long, value_name = "MIB", conflicts_with_all = ["writers", "tasks", "size", "seconds", "sessions"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) open: Option<u32>,
    /// Measure committing steps with a result of so many kibibytes instead, in a file and in the log.
    #[arg(long, value_name = "KIB", conflicts_with_all = ["writers", "tasks", "size", "seconds", "replay", "open"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) result: Option<u32>,
    /// One JSON object per line; the last one sums up.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How the store of a measurement lays out its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sessions {
    /// One journal for all.
    Shared,
    /// A journal for each.
    PerSession,
}

/// A time between a twentieth of a second and a day.
fn seconds(given: &str) -> Result<f64, String> {
    match given.parse::<f64>() {
        Ok(seconds) if (0.05..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds between 0.05 and 86400".to_owned()),
    }
}

/// Of the hidden `demo-child`.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    #[arg(long)]
    pub(crate) dir: PathBuf,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) transcript: Option<PathBuf>,
    #[arg(long)]
    pub(crate) finish: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        super::Args::command().debug_assert();
    }
}
