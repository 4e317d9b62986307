//! `stepwell fork`: another session with the same history up to a record.

use serde::Serialize;
use stepwell::identity::SessionId;
use stepwell::journal::Seq;
use stepwell::store::ForkSpec;

use crate::Verdict;
use crate::args::ForkArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::target;

/// The object of `--json`.
#[derive(Serialize)]
struct Line {
    /// The fork.
    session: SessionId,
    parent: SessionId,
    /// The last record that they have in common.
    at: u64,
}

pub(crate) fn run(args: &ForkArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = target::existing(&args.dir)?;
    let parent = target::session(&store, &args.session)?;
    let mut spec = match args.at {
        Some(at) => ForkSpec::at(Seq::new(at)),
        None => ForkSpec::new(),
    };
    if let Some(title) = &args.title {
        spec = spec.title(title);
    }
    let (session, _) = store.fork(parent, spec)?;
    let id = session.id();
    let at = session.forked_from().map_or(0, |from| from.at.get());
    session.close()?;
    if args.json {
        out.json(&Line {
            session: id,
            parent,
            at,
        })?;
    } else {
        out.line(&format!("{id} is a fork of {parent} up to record {at}"))?;
    }
    Ok(Verdict::Ok)
}
