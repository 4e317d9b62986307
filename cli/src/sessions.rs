//! `stepwell sessions`: what is in a store. A damaged session is marked and hides no other.

use std::collections::BTreeMap;

use serde::Serialize;
use stepwell::Store;
use stepwell::content::RawJson;
use stepwell::identity::{SessionId, Timestamp};
use stepwell::store::{Listed, SessionEntry, SessionStatus};

use crate::Verdict;
use crate::args::SessionsArgs;
use crate::failure::{Failure, one_line};
use crate::output::{Output, Table, count, short, when};

const TITLE_WIDTH: usize = 40;

/// One line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    session: SessionId,
    title: Option<&'a str>,
    labels: Option<&'a BTreeMap<String, String>>,
    host: Option<&'a RawJson>,
    status: &'static str,
    last_seq: Option<u64>,
    created: Option<Timestamp>,
    last_active: Option<Timestamp>,
    /// Why it is damaged or unreadable.
    problem: Option<String>,
}

impl<'a> Line<'a> {
    fn of(entry: &'a SessionEntry) -> Line<'a> {
        match &entry.state {
            Ok(listed) => Line {
                session: entry.id,
                title: listed.metadata.title.as_deref(),
                labels: Some(&listed.metadata.labels).filter(|labels| !labels.is_empty()),
                host: listed.metadata.host.as_ref(),
                status: match problem(listed) {
                    Some(_) => "damaged",
                    None => word(listed.status),
                },
                last_seq: Some(listed.last_seq.get()),
                created: listed.created,
                last_active: listed.last_active,
                problem: problem(listed),
            },
            Err(error) => Line {
                session: entry.id,
                title: None,
                labels: None,
                host: None,
                status: "unreadable",
                last_seq: None,
                created: None,
                last_active: None,
                problem: Some(one_line(&error.to_string())),
            },
        }
    }
}

fn problem(listed: &Listed) -> Option<String> {
    let damage = listed.damage.as_ref().map(ToString::to_string);
    let unreadable = listed.unreadable.as_ref().map(ToString::to_string);
    damage.or(unreadable).map(|text| one_line(&text))
}

fn word(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Idle => "idle",
        SessionStatus::Active => "active",
        SessionStatus::Interrupted => "interrupted",
        SessionStatus::Failed => "failed",
        SessionStatus::Stopped => "stopped",
        _ => "unknown",
    }
}

pub(crate) fn run(args: &SessionsArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = Store::open_existing(&args.dir)?;
    let entries = store.sessions()?;
    let mut lines: Vec<Line<'_>> = entries.iter().map(Line::of).collect();
    // The oldest first; what cannot say when it was created comes last.
    lines.sort_by_key(|line| (line.created.is_none(), line.created, line.session));
    if args.json {
        lines.iter().try_for_each(|line| out.json(line))?;
        return Ok(Verdict::Ok);
    }
    if lines.is_empty() {
        out.line("No sessions.")?;
        return Ok(Verdict::Ok);
    }
    let now = Timestamp::now();
    let mut table = Table::new(&[
        "SESSION",
        "STATUS",
        ">EVENTS",
        "CREATED",
        "LAST ACTIVE",
        "TITLE",
    ]);
    for line in &lines {
        table.row(vec![
            line.session.to_string(),
            line.status.to_owned(),
            line.last_seq.map_or("-".to_owned(), |seq| seq.to_string()),
            when(line.created, now),
            when(line.last_active, now),
            short(line.title.unwrap_or("-"), TITLE_WIDTH),
        ]);
    }
    table.print(out)?;
    let problems: Vec<&Line<'_>> = lines.iter().filter(|line| line.problem.is_some()).collect();
    if !problems.is_empty() {
        let number = problems.len() as u64;
        out.line("")?;
        out.line(&format!(
            "{} damaged; 'stepwell verify {}' says how far:",
            count(number, "session is", "sessions are"),
            args.dir.display()
        ))?;
        for line in problems {
            let problem = line.problem.as_deref().unwrap_or_default();
            out.line(&format!("  {}: {problem}", line.session))?;
        }
    }
    Ok(Verdict::Ok)
}
