//! Committing steps with a large tool result: with the body in a file of its own, against the body in the
//! log. Both are stepwell; the second is the limit.

use std::path::Path;

use serde::Serialize;
use stepwell::Store;
use stepwell::content::{AssistantMessage, RawJson, ToolResultMessage, UserMessage};
use stepwell::store::{Loop, LoopSpec, SessionSpec, StepDraft, StoreOptions};

use super::BenchError;
use super::folder::Folder;
use super::measure::{median, payload, short, time};
use crate::failure::Failure;
use crate::output::{Output, Progress, Table};

const ROUNDS: usize = 11;
/// Steps of one part of a round.
const STEPS: usize = 32;

#[derive(Debug, Serialize)]
struct Summary {
    result_kib: u32,
    /// Milliseconds of a commit.
    blob_ms: f64,
    inline_ms: f64,
    /// How many commits into files there are in the time of one into the log; more is better.
    ratio: f64,
    rounds: usize,
}

pub(super) fn run(
    folder: &Folder,
    kibibytes: u32,
    json: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let progress = Progress::new();
    let mut blob = session(&folder.join("blob"), 0)?;
    let mut inline = session(&folder.join("inline"), usize::MAX)?;
    let text = text(kibibytes as usize * 1024);
    // Once unmeasured: segments have grown to their size then.
    for sink in [&mut blob, &mut inline] {
        commit(sink, &text)?;
    }
    let mut rounds = Vec::with_capacity(ROUNDS);
    for number in 0..ROUNDS {
        progress.show(&format!("round {} of {ROUNDS}", number + 1));
        let mut limit = 0.0;
        if number % 2 == 0 {
            limit = time(|| commit(&mut inline, &text))?.1;
        }
        let ours = time(|| commit(&mut blob, &text))?.1;
        if number % 2 == 1 {
            limit = time(|| commit(&mut inline, &text))?.1;
        }
        rounds.push((limit, ours));
    }
    progress.clear();
    let each = |seconds: f64| short(seconds * 1e3 / STEPS as f64);
    let summary = Summary {
        result_kib: kibibytes,
        blob_ms: each(median(rounds.iter().map(|(_, ours)| *ours))),
        inline_ms: each(median(rounds.iter().map(|(limit, _)| *limit))),
        ratio: short(median(rounds.iter().map(|(limit, ours)| limit / ours))),
        rounds: ROUNDS,
    };
    if json {
        return out.json(&summary);
    }
    out.line(&format!(
        "steps with a result of {kibibytes} KiB, {STEPS} in each part of a round, medians of {ROUNDS} rounds"
    ))?;
    out.line("")?;
    let mut table = Table::new(&["", ">MS"]);
    for (name, millis) in [
        ("body in a file", summary.blob_ms),
        ("body in the log", summary.inline_ms),
    ] {
        table.row(vec![name.to_owned(), format!("{millis:.2}")]);
    }
    table.print(out)?;
    out.line("")?;
    out.line(&format!("file to log  {:.2}", summary.ratio))
}

fn session(path: &Path, blob_threshold: usize) -> Result<Loop, BenchError> {
    let options = StoreOptions {
        blob_threshold,
        ..StoreOptions::default()
    };
    let store = Store::open_with(path, options)?;
    let session = store.create_session(SessionSpec::new())?;
    Ok(session.create_loop(LoopSpec::new("main"))?)
}

/// Text that does not compress, of so many bytes.
fn text(bytes: usize) -> String {
    let hex = payload(bytes.div_ceil(2), 1);
    let mut text: String = hex.iter().map(|byte| format!("{byte:02x}")).collect();
    text.truncate(bytes);
    text
}

fn commit(to: &mut Loop, text: &str) -> Result<(), BenchError> {
    let mut turn = to.begin_turn(UserMessage::text("go"))?;
    for _ in 0..STEPS {
        let call = AssistantMessage::text("").with_tool_use("a", "read", RawJson::empty_object());
        let step = StepDraft::new(call).results([ToolResultMessage::text("a", text)]);
        turn.commit_step(step)?;
    }
    turn.finish()?;
    Ok(())
}
