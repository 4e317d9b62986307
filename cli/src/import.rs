//! `stepwell import`: a session of lines, one event each.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Serialize;
use stepwell::Store;
use stepwell::identity::SessionId;
use stepwell::store::ImportId;

use crate::Verdict;
use crate::args::ImportArgs;
use crate::failure::Failure;
use crate::output::{Output, count, visible};

/// The object of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    session: SessionId,
    events: u64,
    /// Events with an idempotency key.
    keys: u64,
    renumbered: bool,
    passed_over: &'a BTreeMap<String, u64>,
}

pub(crate) fn run(args: &ImportArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let from: Box<dyn BufRead> = if args.file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.file).map_err(|error| Failure::File {
            path: args.file.clone(),
            error,
        })?;
        Box::new(BufReader::new(file))
    };
    let store = Store::open(&args.store)?;
    let id = match args.new_id {
        true => ImportId::Fresh,
        false => ImportId::Same,
    };
    let report = store.import(from, id)?;
    let session = report.session;
    if args.json {
        out.json(&Line {
            session,
            events: report.events,
            keys: report.keys,
            renumbered: report.renumbered,
            passed_over: &report.passed_over,
        })?;
        return Ok(Verdict::Ok);
    }
    let events = count(report.events, "event", "events");
    out.line(&format!("{session}: {events} imported"))?;
    if report.keys == 0 {
        out.line("none of them has an idempotency key")?;
    }
    for (name, number) in &report.passed_over {
        let lines = count(*number, "line", "lines");
        out.line(&format!(
            "{lines} of the kind {} passed over",
            visible(name)
        ))?;
    }
    if report.renumbered {
        out.line("the events behind them have lower sequences than before")?;
    }
    Ok(Verdict::Ok)
}
