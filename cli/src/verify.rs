//! `stepwell verify`: reads everything. A torn tail is a note, damage is not.

use serde::Serialize;
use stepwell::Store;
use stepwell::identity::SessionId;
use stepwell::journal::{Cut, OpenError};
use stepwell::store::VerifyReport;

use crate::Verdict;
use crate::args::VerifyArgs;
use crate::failure::{Failure, one_line};
use crate::output::{Output, Progress, Table, count};
use crate::repair::GapLine;
use crate::target;

/// How many of the unreadable places of one session are shown to a person.
const SHOWN: usize = 20;

/// One line of `--json`.
#[derive(Serialize)]
struct Line {
    session: SessionId,
    intact: bool,
    /// Whether it could not be looked at: a failure of the disk or of permissions is no damage.
    unreadable: bool,
    events: u64,
    steps: u64,
    last_seq: u64,
    /// The last Lsn that is proven durable, and the last one that is there.
    proven_lsn: u64,
    last_lsn: u64,
    /// What the next opening for writing cuts off; nothing in it was acknowledged.
    torn_tail: Option<TornTail>,
    quarantined: Vec<String>,
    /// Records that are gone and named: deleted, or given up by a repair.
    gaps: Vec<GapLine>,
    /// Every problem, in words.
    problems: Vec<String>,
}

#[derive(Serialize)]
struct TornTail {
    path: String,
    offset: u64,
    bytes: u64,
    first_lsn: Option<u64>,
    last_lsn: Option<u64>,
    incomplete_batch: bool,
}

impl From<&Cut> for TornTail {
    fn from(cut: &Cut) -> TornTail {
        TornTail {
            path: cut.path.display().to_string(),
            offset: cut.offset,
            bytes: cut.bytes,
            first_lsn: cut.lsns.map(|(first, _)| first.get()),
            last_lsn: cut.lsns.map(|(_, last)| last.get()),
            incomplete_batch: cut.incomplete_batch,
        }
    }
}

impl Line {
    fn of(session: SessionId, verified: Result<VerifyReport, OpenError>) -> Line {
        match verified {
            Ok(report) => {
                let damage = report.damage.iter().map(ToString::to_string);
                let unreadable = report.unreadable.iter().map(ToString::to_string);
                Line {
                    session,
                    intact: report.is_intact(),
                    unreadable: false,
                    events: report.events,
                    steps: report.steps,
                    last_seq: report.last_seq.get(),
                    proven_lsn: report.journal.watermark.get(),
                    last_lsn: report.journal.last.get(),
                    torn_tail: report.journal.cut.as_ref().map(TornTail::from),
                    quarantined: report
                        .quarantined
                        .iter()
                        .map(|path| path.display().to_string())
                        .collect(),
                    gaps: report.gaps.iter().map(GapLine::from).collect(),
                    problems: damage
                        .chain(unreadable)
                        .map(|text| one_line(&text))
                        .collect(),
                }
            }
            Err(error) => Line {
                session,
                intact: false,
                unreadable: true,
                events: 0,
                steps: 0,
                last_seq: 0,
                proven_lsn: 0,
                last_lsn: 0,
                torn_tail: None,
                quarantined: Vec::new(),
                gaps: Vec::new(),
                problems: vec![one_line(&error.to_string())],
            },
        }
    }

    fn result(&self) -> &'static str {
        if self.unreadable {
            return "UNREADABLE";
        }
        if self.intact && !self.gaps.is_empty() {
            return "intact, with gaps";
        }
        match (self.intact, &self.torn_tail) {
            (false, _) => "DAMAGED",
            (true, Some(_)) => "intact, torn tail",
            (true, None) => "intact",
        }
    }
}

pub(crate) fn run(args: &VerifyArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = Store::open_existing(&args.dir)?;
    let ids: Vec<SessionId> = match &args.session {
        Some(given) => vec![target::session(&store, given)?],
        None => store
            .sessions()?
            .into_iter()
            .map(|entry| entry.id)
            .collect(),
    };
    let mut lines = Vec::with_capacity(ids.len());
    for id in ids {
        let bar = Progress::bar(format!("verifying {id}"));
        let verified = store.verify_with_progress(id, bar);
        Progress::new().clear();
        let line = Line::of(id, verified);
        if args.json {
            out.json(&line)?;
        }
        lines.push(line);
    }
    if !args.json {
        print(args, &lines, out)?;
    }
    Ok(match lines.iter().all(|line| line.intact) {
        true => Verdict::Ok,
        false => Verdict::Bad,
    })
}

fn print(args: &VerifyArgs, lines: &[Line], out: &mut Output) -> Result<(), Failure> {
    if lines.is_empty() {
        return out.line("No sessions.");
    }
    let mut table = Table::new(&["SESSION", ">EVENTS", ">STEPS", "RESULT"]);
    for line in lines {
        table.row(vec![
            line.session.to_string(),
            line.events.to_string(),
            line.steps.to_string(),
            line.result().to_owned(),
        ]);
    }
    table.print(out)?;
    out.line("")?;
    for line in lines {
        for problem in line.problems.iter().take(SHOWN) {
            out.line(&format!("{}: {problem}", line.session))?;
        }
        if line.problems.len() > SHOWN {
            let more = line.problems.len() - SHOWN;
            out.line(&format!(
                "{}: and {more} more (--json shows all)",
                line.session
            ))?;
        }
        if let (true, Some(tail)) = (line.intact, &line.torn_tail) {
            out.line(&format!(
                "{}: note: {} at offset {} of {} cannot be read as a finished commit. Nothing proves that they were acknowledged (a last step that was damaged at rest looks the same); the next writer sets them aside in quarantine",
                line.session,
                count(tail.bytes, "byte", "bytes"),
                tail.offset,
                tail.path,
            ))?;
        }
    }
    for line in lines {
        for gap in line.gaps.iter().take(SHOWN) {
            let session = line.session;
            out.line(&format!("{session}: note: {gap}; it opens read-only"))?;
        }
        if line.gaps.len() > SHOWN {
            let more = line.gaps.len() - SHOWN;
            out.line(&format!("{}: note: and {more} more gaps", line.session))?;
        }
    }
    for line in lines.iter().filter(|line| !line.quarantined.is_empty()) {
        out.line(&format!(
            "{}: note: earlier openings set torn tails aside: {}",
            line.session,
            line.quarantined.join(", ")
        ))?;
    }
    let unreadable = lines.iter().filter(|line| line.unreadable).count() as u64;
    if unreadable > 0 {
        out.line(&format!(
            "{} could not be looked at, which says nothing about what they hold; remove the cause and verify again.",
            count(unreadable, "session", "sessions")
        ))?;
    }
    let damaged = lines
        .iter()
        .filter(|line| !line.intact && !line.unreadable)
        .count() as u64;
    match damaged {
        0 if unreadable > 0 => Ok(()),
        0 => out.line(&format!(
            "{} verified: all that is proven to have been acknowledged can be read.",
            count(lines.len() as u64, "session", "sessions")
        )),
        _ => out.line(&format!(
            "{damaged} of {} damaged; 'stepwell history' shows what is intact. Keep the files, and restore them from a copy or copy out what is intact: {}",
            count(lines.len() as u64, "session is", "sessions are"),
            crate::repair::command(&args.dir)
        )),
    }
}
