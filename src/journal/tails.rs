//! The last record of each session, which the next one names.

use std::collections::HashMap;

use super::directory::Directory;
use super::error::OpenError;
use super::evidence::absent;
use super::footer::{self, Footer};
use super::manifest::End;
use super::recovery::scan_finished;
use super::scan::Found;
use super::spans::Span;
use super::{FrameKind, Lsn, Seq};
use crate::identity::SessionId;
use crate::vfs::Access;

/// The last record of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tail {
    pub(crate) seq: Seq,
    pub(crate) lsn: Lsn,
}

/// By session.
pub(crate) type Tails = HashMap<SessionId, Tail>;

/// The last record of the session that owns the journal: from the active frames, or else from the footers
/// of the finished segments, newest first. In a journal of many sessions only those in the active frames:
/// the others are looked up when they are asked for (P13).
pub(super) fn load(
    directory: &Directory,
    spans: &[Span],
    active: &[Found],
    owner: Option<SessionId>,
) -> Result<Tails, OpenError> {
    let mut tails = Tails::new();
    for frame in active {
        if frame.header.kind == FrameKind::Record {
            tails.insert(
                frame.header.session,
                Tail {
                    seq: frame.header.seq,
                    lsn: frame.header.lsn,
                },
            );
        }
    }
    let Some(owner) = owner else {
        return Ok(tails);
    };
    let finished = spans.split_last().map_or(&[][..], |(_, rest)| rest);
    for span in finished.iter().rev() {
        if tails.contains_key(&owner) {
            break;
        }
        let end = End {
            offset: span.end,
            last: span.last,
        };
        let footer =
            footer::load(directory, &span.entry, end, span.base).map_err(OpenError::Disk)?;
        let footer = match footer {
            Some(footer) => footer,
            None => {
                let file = directory
                    .open_segment(&span.entry.name, Access::Read)
                    .and_then(|file| file.ok_or_else(|| absent(directory, &span.entry.name)))
                    .map_err(OpenError::Disk)?;
                let frames = scan_finished(directory, &file, &span.entry, span.base, end)?;
                Footer::of(span.base, &frames, false)
            }
        };
        for (session, range) in footer.sessions {
            tails.entry(span.entry.session_of(session)).or_insert(Tail {
                seq: range.last_seq,
                lsn: range.last,
            });
        }
    }
    Ok(tails)
}
