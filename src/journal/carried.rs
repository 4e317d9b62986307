//! Carry records found again: the newest one of the finished segments that the layer above can use, so
//! that an opening reads only what lies behind it; and its place in a segment that recovery closed.

use super::Seq;
use super::directory::Directory;
use super::footer;
use super::manifest::End;
use super::spans::Span;
use super::{Lsn, ReadError};

/// A carry record with what its footer says beside it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried<'a> {
    /// The last Lsn that it speaks of.
    pub(crate) last: Lsn,
    /// The highest Seq in its segment; `None` if there is no record in it.
    pub(crate) seq: Option<Seq>,
    pub(crate) bytes: &'a [u8],
}

/// The newest carry record of the segments before an Lsn that is accepted. A footer that cannot be
/// read is passed over: it costs reading more, and says nothing about the records (P6).
pub(crate) fn newest<T>(
    directory: &Directory,
    spans: &[Span],
    before: Lsn,
    accept: impl Fn(Carried<'_>) -> Option<T>,
) -> Option<(Lsn, T)> {
    let mut candidates = spans.iter().rev().filter(|span| span.last < before);
    candidates.find_map(|span| {
        let footer = footer::load(directory, &span.entry, end(span), span.base);
        let footer = footer.ok().flatten()?;
        let ranges = footer.sessions.values();
        let accepted = accept(Carried {
            last: footer.last,
            seq: ranges.map(|range| range.last_seq).max(),
            bytes: (!footer.carry.is_empty()).then_some(&*footer.carry)?,
        });
        Some((footer.last, accepted?))
    })
}

fn end(span: &Span) -> End {
    End {
        offset: span.end,
        last: span.last,
    }
}

/// Puts a carry record into the footer of a segment that recovery closed, which has none: the file
/// beside it, made anew, since a fork may have linked the one that is there. If that is cut off, the
/// footer is absent or does not check, and is rebuilt by reading, as it would be without it; so
/// nothing waits for a sync of it, and nobody fails for it.
pub(crate) fn supply(directory: &Directory, span: &Span, carry: Vec<u8>) {
    let put = || {
        let Some(mut footer) = footer::load(directory, &span.entry, end(span), span.base)? else {
            return Ok(false);
        };
        let name = span.entry.name.footer();
        if !footer.carry.is_empty() || !directory.exists(&name)? {
            return Ok(false);
        }
        footer.carry = carry;
        directory.remove(&name)?;
        let file = directory.create_file(&name)?;
        // Of the directory nothing is owed for it.
        directory.rest();
        file.write_all(&footer.encode(&span.entry.place()), 0)?;
        Ok::<bool, super::DiskError>(true)
    };
    match put() {
        Ok(written) => {
            tracing::trace!(segment = %span.entry.name, written, "carry record supplied")
        }
        Err(error) => tracing::debug!(%error, "a carry record was not supplied"),
    }
}

/// The last segment that holds a record with a Seq below `before`, in a journal of one session.
/// `first` gives the first Seq of a segment, `None` if it has no record. Few segments are looked at.
pub(crate) fn segment_before(
    spans: &[Span],
    before: Seq,
    first: impl Fn(&Span) -> Result<Option<Seq>, ReadError>,
) -> Result<Option<Span>, ReadError> {
    // Segments without a record count as the ones behind them.
    let begins_below = |index: usize| {
        for span in spans.get(index..).unwrap_or_default() {
            if let Some(seq) = first(span)? {
                return Ok(seq < before);
            }
        }
        Ok(false)
    };
    let (mut low, mut high) = (0, spans.len());
    // The tail is asked for most often.
    if let Some(last) = high.checked_sub(1)
        && begins_below(last)?
    {
        low = high;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        match begins_below(middle)? {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Ok(low
        .checked_sub(1)
        .and_then(|index| spans.get(index))
        .copied())
}
