//! `stepwell export`: the events of a session, one a line.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Serialize;
use stepwell::Store;
use stepwell::identity::SessionId;
use stepwell::store::{ExportError, ExportReport};

use crate::Verdict;
use crate::args::ExportArgs;
use crate::failure::Failure;
use crate::output::{Output, complain, count};
use crate::target;

/// The object of `--json`.
#[derive(Serialize)]
struct Line {
    session: SessionId,
    events: u64,
    bytes: u64,
    last_seq: u64,
    unproven: u64,
    /// Optional events of a newer version, which have no lines.
    passed_over: u64,
}

pub(crate) fn run(args: &ExportArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = Store::open_existing(&args.dir)?;
    let session = target::session(&store, &args.session)?;
    let Some(path) = &args.out else {
        let report = match store.export(session, &mut BufWriter::new(io::stdout().lock())) {
            // Nobody reads any more.
            Err(ExportError::Write(ErrorKind::BrokenPipe)) => return Ok(Verdict::Ok),
            report => report?,
        };
        notes(&report).iter().for_each(|note| complain(note));
        return Ok(Verdict::Ok);
    };
    let report = to_file(&store, session, path)?;
    if args.json {
        out.json(&Line {
            session,
            events: report.events,
            bytes: report.bytes,
            last_seq: report.last_seq.get(),
            unproven: report.unproven,
            passed_over: report.passed_over.values().sum(),
        })?;
        return Ok(Verdict::Ok);
    }
    let events = count(report.events, "event", "events");
    out.line(&format!("{session}: {events} in {}", path.display()))?;
    notes(&report).iter().try_for_each(|note| out.line(note))?;
    Ok(Verdict::Ok)
}

/// The file gets its name when it is whole and durable; until then it is called otherwise.
fn to_file(store: &Store, session: SessionId, path: &Path) -> Result<ExportReport, Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| Failure::File { path, error }
    };
    if path.exists() {
        return Err(failed(path)(ErrorKind::AlreadyExists.into()));
    }
    let file = File::create_new(&part).map_err(failed(&part))?;
    let mut writer = BufWriter::new(file);
    let report = store.export(session, &mut writer)?;
    writer.get_ref().sync_all().map_err(failed(&part))?;
    fs::rename(&part, path).map_err(failed(path))?;
    Ok(report)
}

fn notes(report: &ExportReport) -> Vec<String> {
    let mut notes = Vec::new();
    if report.unproven > 0 {
        let events = count(report.unproven, "event is", "events are");
        notes.push(format!(
            "{events} not proven to have been acknowledged: the session was killed and not opened since"
        ));
    }
    let skipped = report.passed_over.values().sum();
    if skipped > 0 {
        let events = count(skipped, "optional event", "optional events");
        notes.push(format!("{events} of a newer version passed over"));
    }
    notes
}
