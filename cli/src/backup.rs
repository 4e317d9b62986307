//! `stepwell backup`: the sessions of a store in a new one.

use serde::Serialize;
use stepwell::Store;
use stepwell::identity::SessionId;
use stepwell::store::LeftOut;

use crate::Verdict;
use crate::args::BackupArgs;
use crate::failure::{Failure, one_line};
use crate::output::{Output, count};

/// The object of `--json`.
#[derive(Serialize)]
struct Report {
    store: String,
    complete: bool,
    sessions: Vec<Session>,
    left_out: Vec<Left>,
    tombstones: usize,
}

#[derive(Serialize)]
struct Session {
    session: SessionId,
    records: u64,
    last_seq: u64,
    /// Records that are there but not proven to have been acknowledged: not in the backup.
    unproven: u64,
    gaps: bool,
}

#[derive(Serialize)]
struct Left {
    session: SessionId,
    reason: String,
}

fn reason(why: &LeftOut) -> String {
    match why {
        LeftOut::Damaged(report) => match &report.damage {
            Some(damage) => format!("damaged: {damage}; 'stepwell repair' copies what is intact"),
            None => "acknowledged records cannot be read; 'stepwell repair' copies what is intact"
                .to_owned(),
        },
        LeftOut::NewerFormat { version } => {
            format!("has format version {version}; back it up with a newer build")
        }
        LeftOut::Unreadable(error) => error.to_string(),
        LeftOut::Read(error) => error.to_string(),
        LeftOut::Changing => "changed while it was copied, at each try; try again".to_owned(),
        LeftOut::NothingProven { unproven } => {
            let records = count(*unproven, "record", "records");
            format!("none of its {records} is proven yet; open it for writing once, or try again")
        }
        LeftOut::Deleted => "was deleted meanwhile".to_owned(),
        _ => "is left out".to_owned(),
    }
}

pub(crate) fn run(args: &BackupArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = Store::open_existing(&args.dir)?;
    let found = store.backup(&args.to)?;
    let verdict = match found.is_complete() {
        true => Verdict::Ok,
        false => Verdict::Bad,
    };
    let left_out = found.left_out.iter().map(|(session, why)| Left {
        session: *session,
        reason: one_line(&reason(why)),
    });
    let report = Report {
        store: args.to.display().to_string(),
        complete: found.is_complete(),
        left_out: left_out.collect(),
        sessions: found
            .sessions
            .iter()
            .map(|copied| Session {
                session: copied.session,
                records: copied.records,
                last_seq: copied.last_seq.get(),
                unproven: copied.unproven,
                gaps: copied.gaps,
            })
            .collect(),
        tombstones: found.tombstones,
    };
    if args.json {
        out.json(&report)?;
        return Ok(verdict);
    }
    let sessions = count(report.sessions.len() as u64, "session", "sessions");
    let new = &report.store;
    out.line(&format!(
        "{sessions} in {new}; 'stepwell verify {new}' reads them"
    ))?;
    for copied in report.sessions.iter().filter(|copied| copied.unproven > 0) {
        let records = count(copied.unproven, "record", "records");
        out.line(&format!(
            "{}: up to {}; {records} behind it not proven, so not in the backup",
            copied.session, copied.last_seq
        ))?;
    }
    for left in &report.left_out {
        out.line(&format!("NOT in it: {}: {}", left.session, left.reason))?;
    }
    Ok(verdict)
}
