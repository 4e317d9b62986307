//! `stepwell rewind`: a loop goes on from an earlier record.

use serde::Serialize;
use stepwell::identity::{LoopId, SessionId};
use stepwell::journal::Seq;
use stepwell::store::{Mode, Session};

use crate::Verdict;
use crate::args::RewindArgs;
use crate::failure::{Failure, one_line};
use crate::output::Output;
use crate::target;

/// The object of `--json`.
#[derive(Serialize)]
struct Line {
    session: SessionId,
    #[serde(rename = "loop")]
    loop_id: LoopId,
    to: u64,
    /// The record that says so.
    seq: u64,
}

pub(crate) fn run(args: &RewindArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = target::existing(&args.dir)?;
    let id = target::session(&store, &args.session)?;
    let (session, _) = store.open_session(id, Mode::Write)?;
    let loop_id = chosen(&session, args.loop_name.as_deref())?;
    let mut owned = session.hold(loop_id)?;
    let rewound = owned.rewind(Seq::new(args.to), &args.reason)?;
    let (name, seq) = (one_line(owned.name().as_str()), rewound.seq().get());
    drop(owned);
    session.close()?;
    let to = args.to;
    if args.json {
        out.json(&Line {
            session: id,
            loop_id,
            to,
            seq,
        })?;
    } else {
        out.line(&format!(
            "{id}: the loop {name} goes on from record {to}, by record {seq}"
        ))?;
    }
    Ok(Verdict::Ok)
}

/// The named loop, or the first one.
fn chosen(session: &Session, name: Option<&str>) -> Result<LoopId, Failure> {
    let loops = session.loops();
    let mut fitting = loops.iter();
    let found = fitting.find(|(_, known)| name.is_none_or(|name| known.as_str() == name));
    found.map(|(id, _)| *id).ok_or_else(|| Failure::NoSuchLoop {
        given: name.unwrap_or_default().to_owned(),
        known: loops.iter().map(|(_, name)| name.to_string()).collect(),
    })
}
