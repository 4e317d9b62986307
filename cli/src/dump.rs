//! `stepwell dump`: every record of a session's log as it stands on disk, fences too.

use serde::Serialize;
use serde_json::value::RawValue;
use stepwell::Store;
use stepwell::event::{Limits, StoredBody, decode_header, to_wire};
use stepwell::identity::SessionId;
use stepwell::journal::{Entry, FrameKind, Lsn};
use stepwell::store::Layout;

use crate::Verdict;
use crate::args::DumpArgs;
use crate::failure::{Failure, one_line};
use crate::output::Output;
use crate::target;

/// One record.
#[derive(Serialize)]
struct Record {
    /// Its place in the session; `null` for a fence.
    seq: Option<u64>,
    lsn: u64,
    position: Place,
    /// `record` or `fence`.
    frame: &'static str,
    /// The kind of its event; for a fence, `fence`.
    kind: String,
    proven: bool,
    /// The opening that wrote it, and its place in its atomic batch.
    epoch: u64,
    batch: BatchPlace,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Bytes of its body, if that stands in a file of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    outside: Option<u64>,
    /// The event in its wire form; `null` for a fence, or if it cannot be read.
    event: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Place {
    segment: String,
    offset: u64,
}

#[derive(Serialize)]
struct BatchPlace {
    index: u16,
    count: u16,
}

/// What stands in the place of records that cannot be read.
#[derive(Serialize)]
struct Unreadable {
    kind: &'static str,
    error: String,
}

impl Record {
    fn of(store: &Store, session: SessionId, entry: &Entry) -> Record {
        let mut record = Record {
            seq: (entry.kind != FrameKind::Fence).then(|| entry.seq.get()),
            lsn: entry.lsn.get(),
            position: Place {
                segment: entry.position.segment.to_string(),
                offset: entry.position.offset,
            },
            frame: "record",
            kind: "unreadable".to_owned(),
            proven: entry.proven,
            epoch: entry.epoch,
            batch: BatchPlace {
                index: entry.batch.0,
                count: entry.batch.1,
            },
            key: None,
            outside: None,
            event: None,
            error: None,
        };
        if entry.kind == FrameKind::Fence {
            record.frame = "fence";
            record.kind = "fence".to_owned();
        } else if let Err(problem) = record.read_event(store, session, entry) {
            record.error = Some(one_line(&problem));
        }
        record
    }

    fn read_event(
        &mut self,
        store: &Store,
        session: SessionId,
        entry: &Entry,
    ) -> Result<(), String> {
        let owner = if entry.session.is_nil() {
            session
        } else {
            entry.session
        };
        let header = decode_header(&entry.payload, &Limits::default());
        let header = header.map_err(|error| error.to_string())?;
        self.kind = match header.kind {
            Some(kind) => kind.name().to_owned(),
            None => format!("unknown ({})", header.code),
        };
        self.key = header.key.map(|key| key.as_str().to_owned());
        if let StoredBody::Outside(outside) = header.body {
            self.outside = Some(outside.length);
        }
        let event = store.event_of(owner, entry);
        if let Some((committed, _)) = event.map_err(|error| error.to_string())? {
            let wire = to_wire(committed.event()).map_err(|error| error.to_string())?;
            let raw = RawValue::from_string(wire).map_err(|error| error.to_string())?;
            self.event = Some(raw);
        }
        Ok(())
    }
}

pub(crate) fn run(args: &DumpArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = Store::open_existing(&args.dir)?;
    let session = target::session(&store, &args.session)?;
    let view = store.journal_view(session)?;
    let mut verdict = Verdict::Ok;
    let mut problem = |error: String| {
        verdict = Verdict::Bad;
        Unreadable {
            kind: "unreadable",
            error: one_line(&error),
        }
    };
    if let Some(damage) = view.damage() {
        print(&problem(damage.to_string()), args.json, out)?;
    }
    for entry in view.read(Lsn::ZERO) {
        match entry {
            // In a journal that all share: fences are of all of them.
            Ok(entry)
                if store.layout() == Layout::Shared
                    && entry.kind == FrameKind::Record
                    && entry.session != session => {}
            Ok(entry) => {
                let record = Record::of(&store, session, &entry);
                if let Some(error) = &record.error {
                    let _ = problem(error.clone());
                }
                print(&record, args.json, out)?;
            }
            Err(error) => print(&problem(error.to_string()), args.json, out)?,
        }
        if out.is_closed() {
            break;
        }
    }
    Ok(verdict)
}

/// On one line, or spread over lines for reading (the event itself stays on its line, byte for byte).
fn print(value: &impl Serialize, json: bool, out: &mut Output) -> Result<(), Failure> {
    if json {
        out.json(value)
    } else {
        out.line(&serde_json::to_string_pretty(value)?)
    }
}
