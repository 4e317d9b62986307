//! `stepwell repair`: copies what is intact of a session to a new store, and says what is lost.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use stepwell::Store;
use stepwell::identity::SessionId;
use stepwell::journal::{FrameKind, Gap, RepairReport};
use stepwell::store::RepairError;

use crate::Verdict;
use crate::args::RepairArgs;
use crate::failure::{Failure, one_line};
use crate::output::{Output, Progress, count};
use crate::target;

/// How many of the lost places are shown to a person.
const SHOWN: usize = 20;

/// A range of records that are gone.
#[derive(Serialize)]
pub(crate) struct GapLine {
    kind: &'static str,
    first_lsn: u64,
    last_lsn: u64,
    first_seq: Option<u64>,
    last_seq: Option<u64>,
}

impl From<&Gap> for GapLine {
    fn from(gap: &Gap) -> GapLine {
        GapLine {
            kind: match gap.kind {
                FrameKind::Erased => "deleted",
                _ => "lost",
            },
            first_lsn: gap.first.get(),
            last_lsn: gap.last.get(),
            first_seq: gap.seqs.map(|(first, _)| first.get()),
            last_seq: gap.seqs.map(|(_, last)| last.get()),
        }
    }
}

impl fmt::Display for GapLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first_seq, self.last_seq) {
            (Some(first), Some(last)) if first == last => write!(f, "record {first}")?,
            (Some(first), Some(last)) => write!(f, "records {first} to {last}")?,
            _ => f.write_str("what stood there of the log, perhaps no record")?,
        }
        match (self.first_lsn, self.last_lsn) {
            (first, last) if first == last => write!(f, ": {} (Lsn {first})", self.kind),
            (first, last) => write!(f, ": {} (Lsn {first} to {last})", self.kind),
        }
    }
}

/// A record that is lost because its body, which stands in a file, is.
#[derive(Serialize)]
struct LostBody {
    seq: u64,
    path: String,
}

/// The command that copies what is intact of a session of a store, for people.
pub(crate) fn command(dir: &Path) -> String {
    format!("stepwell repair {} SESSION --to NEWDIR", dir.display())
}

#[derive(Serialize)]
struct Block {
    path: String,
    offset: u64,
    bytes: u64,
}

/// The object of `--json`.
#[derive(Serialize)]
struct Report {
    session: SessionId,
    /// The new store; `null` if nothing was written.
    store: Option<String>,
    records: u64,
    /// Those of them that are not proven to have been acknowledged.
    unproven: u64,
    last_seq: u64,
    lost: Vec<GapLine>,
    /// Those of the lost ones of which only the body is.
    bodies: Vec<LostBody>,
    /// What was gone before.
    gaps: Vec<GapLine>,
    /// The last sequence before the first of all these gaps that is proven: a fork can go on from it.
    fork_at: u64,
    /// Whether records may be missing behind the last one that is known.
    end_missing: bool,
    fences: u64,
    damage: Option<String>,
    unreadable: Vec<Block>,
    /// Bytes of a torn tail, which is not copied.
    torn_bytes: Option<u64>,
}

impl Report {
    fn of(report: &RepairReport, store: Option<&Path>) -> Report {
        let lines = |gaps: &[Gap]| gaps.iter().map(GapLine::from).collect();
        let damage = report.damage.as_ref();
        // A gap of which no sequences are known hides none, or stands at the end.
        let missing = report.lost.iter().chain(&report.gaps);
        let missing = missing.filter_map(|gap| gap.seqs.map(|(first, _)| first.get() - 1));
        // Records that are not proven are the last ones.
        let proven = report.last_seq.get().saturating_sub(report.unproven);
        Report {
            session: report.session,
            store: store.map(|path| path.display().to_string()),
            records: report.records,
            unproven: report.unproven,
            last_seq: report.last_seq.get(),
            lost: lines(&report.lost),
            bodies: report
                .bodies
                .iter()
                .map(|(seq, path)| LostBody {
                    seq: seq.get(),
                    path: path.display().to_string(),
                })
                .collect(),
            gaps: lines(&report.gaps),
            fork_at: missing.min().unwrap_or(proven).min(proven),
            end_missing: report.end_missing,
            fences: report.fences,
            damage: damage.map(|damage| one_line(&damage.to_string())),
            unreadable: report
                .unreadable
                .iter()
                .map(|block| Block {
                    path: block.path.display().to_string(),
                    offset: block.offset,
                    bytes: block.bytes,
                })
                .collect(),
            torn_bytes: report.torn.as_ref().map(|torn| torn.bytes),
        }
    }

    fn print(&self, out: &mut Output) -> Result<(), Failure> {
        let kept = count(self.records, "record is intact", "records are intact");
        out.line(&format!(
            "{}: {kept}, the last one is {}",
            self.session, self.last_seq
        ))?;
        if let Some(damage) = &self.damage {
            out.line(&format!("damage: {damage}"))?;
        }
        for block in self.unreadable.iter().take(SHOWN) {
            let (bytes, offset) = (block.bytes, block.offset);
            out.line(&format!(
                "the disk does not give {bytes} bytes at offset {offset} of {}",
                block.path
            ))?;
        }
        for body in self.bodies.iter().take(SHOWN) {
            let (seq, path) = (body.seq, &body.path);
            out.line(&format!("the body of record {seq} is not whole: {path}"))?;
        }
        for gap in self.lost.iter().take(SHOWN) {
            out.line(&format!("{gap}"))?;
        }
        let shown = self.lost.len().min(SHOWN);
        if self.lost.len() > shown {
            out.line(&format!(
                "and {} more (--json shows all)",
                self.lost.len() - shown
            ))?;
        }
        if self.end_missing {
            out.line("the end of the log is missing: records behind the last one may be lost, nobody can say how many; the last gap stands for them")?;
        }
        for gap in &self.gaps {
            out.line(&format!("{gap}, before this repair"))?;
        }
        if self.fences > 0 {
            let fences = count(self.fences, "fence", "fences");
            out.line(&format!(
                "{fences} written anew; they hold nothing of the session"
            ))?;
        }
        if self.unproven > 0 {
            let records = count(self.unproven, "record", "records");
            out.line(&format!(
                "{records} kept that are not proven to have been acknowledged"
            ))?;
        }
        if let Some(bytes) = self.torn_bytes {
            let bytes = count(bytes, "byte", "bytes");
            out.line(&format!(
                "a torn tail of {bytes} is not copied: nothing proves that it was acknowledged"
            ))?;
        }
        Ok(())
    }
}

pub(crate) fn run(args: &RepairArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = Store::open_existing(&args.dir)?;
    let session = target::session(&store, &args.session)?;
    let bar = Progress::bar(format!("repairing {session}"));
    let repaired = store.repair_with_progress(session, &args.to, args.accept_loss, bar);
    Progress::new().clear();
    let (report, verdict) = match &repaired {
        Ok(report) => (Report::of(report, Some(&args.to)), Verdict::Ok),
        Err(RepairError::WouldLose(report)) => (Report::of(report, None), Verdict::Bad),
        Err(other) => return Err(other.clone().into()),
    };
    if args.json {
        out.json(&report)?;
        return Ok(verdict);
    }
    report.print(out)?;
    let new = args.to.display();
    match verdict {
        Verdict::Bad => out.line("Nothing was written: this would be lost. Take --accept-loss to go on without it.")?,
        Verdict::Ok if report.lost.is_empty() && report.gaps.is_empty() => out.line(&format!(
            "The session is in the new store {new} and can be used: stepwell history {new} {session}"
        ))?,
        Verdict::Ok => out.line(&format!(
            "The session is in the new store {new}, to be read only: stepwell history {new} {session} shows what is intact, with its gaps. To go on from before the first gap: stepwell fork {new} {session} --at {}",
            report.fork_at
        ))?,
    }
    Ok(verdict)
}
