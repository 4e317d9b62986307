//! `stepwell inspect`: what stands in a file of a journal, for a person. It decides nothing: what is
//! damage and what is a torn tail, `verify` says.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use stepwell::event::{Limits, StoredBody, decode_header};
use stepwell::journal::{FrameKind, InspectedFrame, Part, inspect};
use stepwell::vfs::RealVfs;

use crate::Verdict;
use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::output::{Output, count};

/// Enough of a record to tell whether its body stands outside of it.
const HEAD: usize = 1024;

/// A frame in `--json`.
#[derive(Serialize)]
struct Frame {
    part: &'static str,
    offset: u64,
    bytes: u64,
    kind: String,
    lsn: u64,
    seq: u64,
    session: Option<String>,
    previous: u64,
    epoch: u64,
    watermark: u64,
    batch: (u16, u16),
    payload_len: u32,
    payload_intact: bool,
    /// Bytes of the body, if it stands in a file of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    outside: Option<u64>,
    follows: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
}

fn kind(kind: FrameKind) -> String {
    match kind {
        FrameKind::Record => "record".to_owned(),
        FrameKind::Fence => "fence".to_owned(),
        FrameKind::Erased => "erased".to_owned(),
        FrameKind::Lost => "lost".to_owned(),
        FrameKind::Unknown(code) => format!("unknown {code}"),
    }
}

/// Bytes of the body of a record, if it stands in a file of its own.
fn outside(frame: &InspectedFrame) -> Option<u64> {
    if frame.kind != FrameKind::Record || frame.payload.len() != frame.payload_len as usize {
        return None;
    }
    let header = decode_header(&frame.payload, &Limits::default()).ok()?;
    match header.body {
        StoredBody::Outside(outside) => Some(outside.length),
        StoredBody::Inside(_) => None,
    }
}

/// As much of the payload as was asked for.
fn shown(frame: &InspectedFrame, payload: usize) -> Option<&[u8]> {
    let shown = frame.payload.get(..payload).unwrap_or(&frame.payload);
    (!shown.is_empty()).then_some(shown)
}

impl Frame {
    fn of(frame: &InspectedFrame, payload: usize) -> Frame {
        let payload = shown(frame, payload).map(hex);
        Frame {
            part: "frame",
            offset: frame.offset,
            bytes: frame.bytes,
            kind: kind(frame.kind),
            lsn: frame.lsn.get(),
            seq: frame.seq.get(),
            session: (!frame.session.is_nil()).then(|| frame.session.to_string()),
            previous: frame.previous.get(),
            epoch: frame.epoch,
            watermark: frame.watermark.get(),
            batch: frame.batch,
            payload_len: frame.payload_len,
            payload_intact: frame.intact,
            outside: outside(frame),
            follows: frame.follows,
            payload,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Printable ASCII as it is, everything else escaped.
fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn object(part: &Part, payload: usize) -> Result<Value, serde_json::Error> {
    Ok(match part {
        Part::Frame(frame) => serde_json::to_value(Frame::of(frame, payload))?,
        Part::Manifest {
            number,
            epoch,
            owner,
            max_payload,
            segments,
        } => json!({
            "part": "manifest", "number": number, "epoch": epoch,
            "owner": (!owner.is_nil()).then(|| owner.to_string()), "max_payload": max_payload,
            "segments": segments.iter().map(|(name, end)| json!({
                "name": name.to_string(),
                "end": end.map(|(offset, _)| offset), "last": end.map(|(_, last)| last.get()),
            })).collect::<Vec<_>>(),
        }),
        Part::Header { name, capacity } => {
            json!({"part": "header", "offset": 0, "name": name.to_string(), "capacity": capacity})
        }
        Part::Newer { version } => json!({"part": "newer", "version": version}),
        Part::Damaged { what, offset } => {
            json!({"part": "damaged", "what": what, "offset": offset})
        }
        Part::Slot {
            offset,
            watermark,
            tail,
            epoch,
            clean,
        } => json!({
            "part": "slot", "offset": offset, "watermark": watermark.get(), "tail": tail,
            "epoch": epoch, "clean": clean,
        }),
        Part::Blank { what, offset } => json!({"part": "blank", "what": what, "offset": offset}),
        Part::Seal {
            end,
            last,
            count,
            footer,
            epoch,
        } => json!({
            "part": "seal", "offset": 12288, "end": end, "last": last.get(), "count": count,
            "footer": footer.map(|(offset, _)| offset), "epoch": epoch,
        }),
        Part::Unknown {
            offset,
            bytes,
            zeros,
        } => json!({"part": "unknown", "offset": offset, "bytes": bytes, "zeros": zeros}),
        Part::Footer {
            offset,
            base,
            last,
            sessions,
            index,
            carry,
        } => json!({
            "part": "footer", "offset": offset, "base": base.get(), "last": last.get(),
            "sessions": sessions.iter().map(|(session, first, last)| json!({
                "session": session.to_string(), "first_seq": first.get(), "last_seq": last.get(),
            })).collect::<Vec<_>>(),
            "index": index, "carry": carry,
        }),
        Part::Unreadable(block) => {
            json!({"part": "unreadable", "offset": block.offset, "bytes": block.bytes})
        }
        _ => json!({"part": "other"}),
    })
}

/// Lines for a person.
fn lines(part: &Part, payload: usize) -> Vec<String> {
    match part {
        Part::Manifest {
            number,
            epoch,
            owner,
            max_payload,
            segments,
        } => {
            let mut lines = vec![format!(
                "manifest {number}, epoch {epoch}, session {owner}, records up to {max_payload} bytes"
            )];
            lines.extend(segments.iter().map(|(name, end)| match end {
                Some((offset, last)) => format!("  {name}  ends at {offset}, last Lsn {last}"),
                None => format!("  {name}  no end is named"),
            }));
            lines
        }
        Part::Header { name, capacity } => {
            vec![format!(
                "{:>10}  segment {name}, {capacity} bytes for frames",
                0
            )]
        }
        Part::Newer { version } => vec![format!("format version {version}: use a newer build")],
        Part::Damaged { what, offset } => vec![format!("{offset:>10}  {what}: DAMAGED")],
        Part::Slot {
            offset,
            watermark,
            tail,
            epoch,
            clean,
        } => vec![format!(
            "{offset:>10}  witness slot: durable up to Lsn {watermark}, tail {tail}, epoch {epoch}{}",
            if *clean { ", closed cleanly" } else { "" }
        )],
        Part::Blank { what, offset } => vec![format!("{offset:>10}  {what}: never written")],
        Part::Seal {
            end,
            last,
            count: frames,
            footer,
            epoch,
        } => vec![format!(
            "{:>10}  seal: {} up to {end}, last Lsn {last}, epoch {epoch}{}",
            12288,
            count(*frames, "frame", "frames"),
            footer.map_or(String::new(), |(offset, _)| format!(", footer at {offset}"))
        )],
        Part::Frame(frame) => frame_lines(frame, payload),
        Part::Unknown {
            offset,
            bytes,
            zeros,
        } => vec![match zeros {
            true => format!("{offset:>10}  {}", count(*bytes, "zero", "zeros")),
            false => format!(
                "{offset:>10}  {} in which no header is intact",
                count(*bytes, "byte", "bytes")
            ),
        }],
        Part::Footer {
            offset,
            base,
            last,
            sessions,
            index,
            carry,
        } => {
            let mut lines = vec![format!(
                "{offset:>10}  footer: Lsn {} to {last}, {index} index entries, carry record of {carry} bytes",
                base.next()
            )];
            lines.extend(sessions.iter().map(|(session, first, last)| {
                format!("            session {session}: records {first} to {last}")
            }));
            lines
        }
        Part::Unreadable(block) => vec![format!(
            "{:>10}  the disk does not give these {} bytes; they were read as zeros",
            block.offset, block.bytes
        )],
        _ => Vec::new(),
    }
}

fn frame_lines(frame: &InspectedFrame, payload: usize) -> Vec<String> {
    let gap = matches!(frame.kind, FrameKind::Lost | FrameKind::Erased);
    let mut line = format!(
        "{:>10}  Lsn {} {}",
        frame.offset,
        frame.lsn,
        kind(frame.kind)
    );
    let _ = match frame.kind {
        FrameKind::Record => write!(line, " {} of session {}", frame.seq, frame.session),
        _ if gap => write!(
            line,
            ", stands for {}",
            count(frame.seq.get(), "Lsn", "Lsns")
        ),
        _ => Ok(()),
    };
    let _ = write!(
        line,
        ", {} bytes, batch {} of {}, watermark {}, epoch {}",
        frame.payload_len,
        frame.batch.0.saturating_add(1),
        frame.batch.1,
        frame.watermark,
        frame.epoch
    );
    if !frame.follows {
        line.push_str("; DOES NOT FOLLOW the frame before it");
    }
    if !frame.intact {
        line.push_str("; payload DAMAGED");
    }
    if let Some(length) = outside(frame) {
        let _ = write!(line, "; outside: {length} bytes of body in a file");
    }
    let mut lines = vec![line];
    if let Some(payload) = shown(frame, payload) {
        lines.push(format!("            {}", escaped(payload)));
    }
    lines
}

pub(crate) fn run(args: &InspectArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let payload = args.payload.map_or(0, |bytes| bytes as usize);
    let mut failed = None;
    let show = |part: Part| {
        let shown = match args.json {
            true => object(&part, payload)
                .map_err(Failure::from)
                .and_then(|value| out.json(&value)),
            false => lines(&part, payload)
                .iter()
                .try_for_each(|line| out.line(line)),
        };
        match shown {
            Ok(()) if !out.is_closed() => ControlFlow::Continue(()),
            Ok(()) => ControlFlow::Break(()),
            Err(failure) => {
                failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    };
    inspect(
        Arc::new(RealVfs),
        &args.file,
        args.manifest.as_deref(),
        payload.max(HEAD),
        show,
    )?;
    failed.map_or(Ok(Verdict::Ok), Err)
}
