//! `stepwell delete` and `stepwell prune`: sessions that go for good.

use serde::Serialize;
use stepwell::Store;
use stepwell::identity::{SessionId, Timestamp};
use stepwell::store::{DeletionReceipt, PassedOver, Reason, RetentionPolicy};

use crate::Verdict;
use crate::args::{DeleteArgs, PruneArgs};
use crate::failure::{Failure, one_line};
use crate::output::{Output, count, when};
use crate::target::existing;

/// The object of `delete --json`.
#[derive(Serialize)]
struct Receipt {
    session: SessionId,
    files: u64,
    bytes: u64,
    last_seq: Option<u64>,
    resumed: bool,
}

impl From<&DeletionReceipt> for Receipt {
    fn from(receipt: &DeletionReceipt) -> Receipt {
        Receipt {
            session: receipt.session,
            files: receipt.files,
            bytes: receipt.bytes,
            last_seq: receipt.last_seq.map(|seq| seq.get()),
            resumed: receipt.resumed,
        }
    }
}

pub(crate) fn run(args: &DeleteArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let id: SessionId = args
        .session
        .to_ascii_lowercase()
        .parse()
        .map_err(|_| Failure::NotWhole(args.session.clone()))?;
    if !args.yes {
        return Err(Failure::NotConfirmed(id));
    }
    let receipt = existing(&args.dir)?.delete_session(id)?;
    if args.json {
        out.json(&Receipt::from(&receipt))?;
        return Ok(Verdict::Ok);
    }
    let files = count(receipt.files, "file", "files");
    let bytes = count(receipt.bytes, "byte", "bytes");
    out.line(&format!("{id} is deleted: {files}, {bytes}"))?;
    Ok(Verdict::Ok)
}

/// One line of `prune --json`.
#[derive(Serialize)]
struct Line {
    session: SessionId,
    /// `delete` in a dry run, `deleted`, or `passed over`.
    what: &'static str,
    reason: String,
    bytes: Option<u64>,
    last_seq: Option<u64>,
    last_active: Option<Timestamp>,
}

fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Age => "age",
        Reason::Count => "count",
        Reason::Bytes => "bytes",
        _ => "limit",
    }
}

fn passed(why: &PassedOver) -> String {
    match why {
        PassedOver::Open => "it is open".to_owned(),
        PassedOver::Lock(error) => one_line(&format!("its lock could not be taken: {error}")),
        PassedOver::Damaged => "it is damaged".to_owned(),
        PassedOver::Unreadable(error) => one_line(&error.to_string()),
        PassedOver::NoTime => "its events do not say when they were made".to_owned(),
        PassedOver::Used => "it was used meanwhile".to_owned(),
        PassedOver::Gone => "it is gone already".to_owned(),
        PassedOver::Failed(error) => one_line(&error.to_string()),
        _ => "it is passed over".to_owned(),
    }
}

pub(crate) fn prune(args: &PruneArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = match args.dry_run {
        true => Store::open_existing(&args.dir)?,
        false => existing(&args.dir)?,
    };
    let plan = store.retention(RetentionPolicy {
        older_than: args.older_than,
        keep_last: args.keep_last,
        max_bytes: args.max_bytes,
    })?;
    let mut lines = Vec::new();
    let mut passed_over = plan.passed_over.clone();
    let done = (!args.dry_run).then(|| store.prune(&plan));
    for expired in &plan.remove {
        let deleted = done.as_ref().map(|done| {
            let mut receipts = done.deleted.iter();
            receipts.any(|receipt| receipt.session == expired.session)
        });
        if deleted != Some(false) {
            lines.push(Line {
                session: expired.session,
                what: deleted.map_or("delete", |_| "deleted"),
                reason: why(expired.reason).to_owned(),
                bytes: Some(expired.bytes),
                last_seq: Some(expired.last_seq.get()),
                last_active: expired.last_active,
            });
        }
    }
    if let Some(done) = done {
        passed_over.extend(done.passed_over);
    }
    let failed = |(_, why): &(SessionId, PassedOver)| {
        matches!(why, PassedOver::Lock(_) | PassedOver::Failed(_))
    };
    let verdict = match passed_over.iter().any(failed) {
        true => Verdict::Bad,
        false => Verdict::Ok,
    };
    lines.extend(passed_over.iter().map(|(session, why)| Line {
        session: *session,
        what: "passed over",
        reason: passed(why),
        bytes: None,
        last_seq: None,
        last_active: None,
    }));
    if args.json {
        lines.iter().try_for_each(|line| out.json(line))?;
        return Ok(verdict);
    }
    let now = Timestamp::now();
    for line in &lines {
        let active = match line.last_active {
            Some(_) => format!(", last active {}", when(line.last_active, now)),
            None => String::new(),
        };
        out.line(&format!(
            "{}: {} ({}{active})",
            line.session, line.what, line.reason
        ))?;
    }
    let kept = count(plan.kept as u64, "session stays", "sessions stay");
    let bytes = count(plan.kept_bytes, "byte", "bytes");
    out.line(&format!(
        "{kept}; with those passed over they have {bytes} of files"
    ))?;
    Ok(verdict)
}
