//! The fold of an opening: from the newest carry record that says what lies before it, over the
//! records behind it. However long the log, that is the active segment and few others.

use super::ReplayError;
use super::carry::CarryRecord;
use super::committed::Committed;
use super::options::StoreOptions;
use super::replay::{Decoder, Order, Recorded};
use super::state::SessionState;
use crate::journal::{Entry, FrameKind, Lsn, ReadError, Seq};

/// Where a fold begins.
pub(super) struct Start {
    /// The last record that the state knows of already.
    pub(super) last: Lsn,
    pub(super) state: SessionState,
}

impl Start {
    /// From a carry record, or else from the beginning of the log.
    pub(super) fn at(carried: Option<(Lsn, SessionState)>, options: &StoreOptions) -> Start {
        let (last, state) = carried.unwrap_or_else(|| (Lsn::ZERO, SessionState::new(options)));
        Start { last, state }
    }
}

/// The state that a log's records fold to.
pub(super) struct Folded {
    pub(super) state: SessionState,
    /// The records above the watermark.
    pub(super) recovered: Vec<Committed>,
    /// Why the first of those that are not in `recovered` is not: its body cannot be read.
    pub(super) lost_body: Option<ReplayError>,
    pub(super) proven: Seq,
    pub(super) unreadable: Option<ReplayError>,
    /// The carry record of the segments that are finished, if they have none.
    pub(super) carry: Option<Vec<u8>>,
}

/// What a fold has to know of the log.
pub(super) struct Bounds {
    pub(super) watermark: Lsn,
    /// The last Lsn of the finished segments.
    pub(super) finished: Lsn,
    /// Whether the records above the watermark are to be published.
    pub(super) publishes: bool,
}

/// Folds what lies behind the start.
pub(super) fn fold(
    decoder: &Decoder,
    start: Start,
    entries: impl Iterator<Item = Result<Entry, ReadError>>,
    bounds: &Bounds,
) -> Folded {
    let finished = bounds.finished;
    let mut order = Order::from(start.state.last.next());
    let mut folded = Folded {
        proven: start.state.last,
        state: start.state,
        recovered: Vec::new(),
        lost_body: None,
        unreadable: None,
        carry: None,
    };
    let mut lacks = start.last < finished;
    for entry in entries {
        if lacks && entry.as_ref().is_ok_and(|entry| entry.lsn > finished) {
            folded.carry = Some(CarryRecord::bytes_of(&folded.state));
            lacks = false;
        }
        let taken = entry
            .map_err(ReplayError::from)
            .and_then(|entry| folded.take(decoder, &entry, &mut order, bounds));
        if let Err(error) = taken {
            // Behind a damaged header the frames are checked one by one, so the fold goes on; at any
            // other damage it ends, since a gap is never joined in silence.
            let goes_on = matches!(error, ReplayError::Journal(ReadError::Header { .. }));
            folded.unreadable.get_or_insert(error);
            if !goes_on {
                return folded;
            }
        }
    }
    if lacks {
        folded.carry = Some(CarryRecord::bytes_of(&folded.state));
    }
    folded
}

impl Folded {
    fn take(
        &mut self,
        decoder: &Decoder,
        entry: &Entry,
        order: &mut Order,
        bounds: &Bounds,
    ) -> Result<(), ReplayError> {
        if entry.kind != FrameKind::Record {
            return Ok(());
        }
        order.take(entry.seq)?;
        let is_proven = entry.lsn <= bounds.watermark;
        if is_proven {
            self.proven = entry.seq;
        }
        let is_recovered = !is_proven && bounds.publishes;
        match decoder.look(entry)? {
            Recorded::Event(committed, key) => {
                self.state
                    .apply(&committed, key.as_ref(), Some(entry.position));
                if is_recovered {
                    self.recovered.push(committed);
                }
            }
            // The state needs nothing of it, so an opening reads no bodies (P13).
            Recorded::Outside(record) => {
                self.state.apply_outside(entry.seq, &record, entry.position);
                if is_recovered {
                    match decoder.fetch(entry, &record) {
                        Ok(committed) => self.recovered.push(committed),
                        Err(error) => drop(self.lost_body.get_or_insert(error)),
                    }
                }
            }
            Recorded::Skipped => self.state.last = entry.seq,
        }
        Ok(())
    }
}
