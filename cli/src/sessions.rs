//! `stepwell sessions`: what is in a store. A damaged session is marked and hides no other.

use std::collections::BTreeMap;

use serde::Serialize;
use stepwell::Store;
use stepwell::content::RawJson;
use stepwell::identity::{SessionId, Timestamp};
use stepwell::store::{Cursor, Filter, ForkedFrom, Listed, Page, SessionEntry, SessionStatus};

use crate::Verdict;
use crate::args::{SessionsArgs, Status};
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
    turns: Option<u64>,
    steps: Option<u64>,
    open_turns: Option<usize>,
    pending_gates: Option<usize>,
    forked_from: Option<Parent>,
    /// Of its log.
    bytes: Option<u64>,
    created: Option<Timestamp>,
    last_active: Option<Timestamp>,
    /// Why it is damaged or unreadable.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Parent {
    session: SessionId,
    at: u64,
}

impl From<ForkedFrom> for Parent {
    fn from(from: ForkedFrom) -> Parent {
        Parent {
            session: from.parent,
            at: from.at.get(),
        }
    }
}

/// The last line of `--json`, if there is a next page.
#[derive(Serialize)]
struct Next {
    next: String,
    /// Sessions on all pages.
    total: usize,
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
                turns: Some(listed.turns),
                steps: Some(listed.steps),
                open_turns: Some(listed.open_turns),
                pending_gates: Some(listed.pending_gates),
                forked_from: listed.forked_from.map(Parent::from),
                // Not known of one that shares its log.
                bytes: Some(listed.bytes).filter(|bytes| *bytes > 0),
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
                turns: None,
                steps: None,
                open_turns: None,
                pending_gates: None,
                forked_from: None,
                bytes: None,
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

fn filter(args: &SessionsArgs) -> Filter {
    let mut filter = Filter::new();
    for status in &args.status {
        filter = filter.status(match status {
            Status::Idle => SessionStatus::Idle,
            Status::Active => SessionStatus::Active,
            Status::Interrupted => SessionStatus::Interrupted,
            Status::Failed => SessionStatus::Failed,
            Status::Stopped => SessionStatus::Stopped,
            Status::Damaged => SessionStatus::Damaged,
        });
    }
    if let Some(since) = args.since {
        filter = filter.active_since(since);
    }
    match &args.title {
        Some(title) => filter.title(title),
        None => filter,
    }
}

fn page(args: &SessionsArgs) -> Page {
    let page = match args.limit {
        Some(limit) => Page::first(usize::try_from(limit).unwrap_or(usize::MAX)),
        None => Page::all(),
    };
    match args.after {
        Some(cursor) => page.after(cursor),
        None => page,
    }
}

pub(crate) fn run(args: &SessionsArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = Store::open_existing(&args.dir)?;
    let listing = store.list(&filter(args), &page(args))?;
    let lines: Vec<Line<'_>> = listing.entries.iter().map(Line::of).collect();
    if args.json {
        lines.iter().try_for_each(|line| out.json(line))?;
        if let Some(next) = listing.next {
            out.json(&Next {
                next: next.to_string(),
                total: listing.total,
            })?;
        }
        return Ok(Verdict::Ok);
    }
    print(args, &lines, out)?;
    if let Some(next) = listing.next {
        out.line("")?;
        out.line(&more(lines.len(), listing.total, next))?;
    }
    Ok(Verdict::Ok)
}

fn more(shown: usize, total: usize, next: Cursor) -> String {
    format!("{shown} of {total} sessions; the next ones: --after {next}")
}

fn print(args: &SessionsArgs, lines: &[Line<'_>], out: &mut Output) -> Result<(), Failure> {
    if lines.is_empty() {
        return out.line("No sessions.");
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
    for line in lines {
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
        out.line(&format!(
            "Keep the files, and restore them from a copy or copy out what is intact: {}",
            crate::repair::command(&args.dir)
        ))?;
    }
    Ok(())
}
