//! What of a loop's history stands: where its contexts begin, and what was rewound. Part of the fold
//! (P4), without a message in it, and bounded: a carry record holds it.

use std::collections::VecDeque;

use crate::event::Body;
use crate::journal::Seq;

/// Compactions, and stretches that were rewound, that are remembered of a loop. Before these the log
/// is asked.
const REMEMBERED: usize = 64;

/// The compaction that a loop's context begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// None: the context is the history.
    None,
    /// This one.
    At(Compaction),
    /// One of those that are not remembered, or none.
    Forgotten,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compaction {
    pub(super) seq: Seq,
    /// The first record whose messages stay in the context; 0: none.
    pub(super) keep_from: u64,
}

impl Compaction {
    /// The first record that the context needs.
    pub(super) fn needs(&self) -> Seq {
        match self.keep_from {
            0 => self.seq,
            kept => self.seq.min(Seq::new(kept)),
        }
    }
}

/// The records in `(to, at]` were rewound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rewind {
    pub(super) at: Seq,
    pub(super) to: Seq,
}

/// The marks of one loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marks {
    /// Those that are not rewound, oldest first.
    pub(super) compactions: VecDeque<Compaction>,
    /// Stretches without overlap, oldest first.
    pub(super) rewinds: VecDeque<Rewind>,
    /// The newest of each that was forgotten; zero: none was.
    pub(super) forgotten: (Seq, Seq),
    limit: usize,
}

impl Default for Marks {
    fn default() -> Self {
        Marks {
            compactions: VecDeque::new(),
            rewinds: VecDeque::new(),
            forgotten: (Seq::ZERO, Seq::ZERO),
            limit: REMEMBERED,
        }
    }
}

impl Marks {
    /// Marks that forget nothing: for who reads the log.
    pub(super) fn all() -> Marks {
        Marks {
            limit: usize::MAX,
            ..Marks::default()
        }
    }

    /// What a carry record says.
    pub(super) fn carried(
        compactions: impl Iterator<Item = Compaction>,
        rewinds: impl Iterator<Item = Rewind>,
        forgotten: (Seq, Seq),
    ) -> Marks {
        Marks {
            compactions: compactions.collect(),
            rewinds: rewinds.collect(),
            forgotten,
            limit: REMEMBERED,
        }
    }

    pub(super) fn fold(&mut self, body: &Body, seq: Seq) {
        match body {
            Body::ContextCompacted(compacted) => {
                self.compactions.push_back(Compaction {
                    seq,
                    keep_from: compacted.keep_from,
                });
                if self.compactions.len() > self.limit
                    && let Some(oldest) = self.compactions.pop_front()
                {
                    self.forgotten.0 = oldest.seq;
                }
            }
            Body::Rewound(rewound) => self.rewind(seq, Seq::new(rewound.to)),
            _ => {}
        }
    }

    fn rewind(&mut self, at: Seq, to: Seq) {
        if to >= at {
            return;
        }
        while self.compactions.back().is_some_and(|last| last.seq > to) {
            self.compactions.pop_back();
        }
        let mut merged = Rewind { at, to };
        while let Some(last) = self.rewinds.back()
            && last.at >= merged.to
        {
            merged.to = merged.to.min(last.to);
            self.rewinds.pop_back();
        }
        self.rewinds.push_back(merged);
        if self.rewinds.len() > self.limit
            && let Some(oldest) = self.rewinds.pop_front()
        {
            self.forgotten.1 = oldest.at;
        }
    }

    pub(super) fn standing(&self) -> Standing {
        match self.compactions.back() {
            Some(last) => Standing::At(*last),
            None if self.forgotten.0 > Seq::ZERO => Standing::Forgotten,
            None => Standing::None,
        }
    }

    /// Whether the log has to be asked what was rewound.
    pub(super) fn is_partial(&self) -> bool {
        self.forgotten.1 > Seq::ZERO
    }

    /// Whether a record was rewound, among those that are remembered.
    pub(super) fn is_rewound(&self, seq: Seq) -> bool {
        let after = self.rewinds.partition_point(|rewind| rewind.at < seq);
        self.rewinds
            .get(after)
            .is_some_and(|rewind| rewind.to < seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ContextCompacted, Rewound};

    fn rewind(marks: &mut Marks, at: u64, to: u64) {
        let rewound = Rewound {
            to,
            ..Rewound::default()
        };
        marks.fold(&rewound.into(), Seq::new(at));
    }

    fn compact(marks: &mut Marks, at: u64) {
        let compacted = ContextCompacted {
            summary: "all of it".into(),
            keep_from: 0,
            reason: String::new(),
        };
        marks.fold(&compacted.into(), Seq::new(at));
    }

    /// Against taking away, record by record, what each rewinding takes.
    #[test]
    fn stretches_that_were_rewound_are_what_each_rewinding_took() {
        let cases: [&[(u64, u64)]; 6] = [
            &[(10, 5)],
            &[(10, 5), (20, 10)],
            &[(10, 5), (20, 7), (30, 25)],
            &[(10, 5), (20, 15), (30, 3)],
            &[(10, 10), (12, 0), (20, 19)],
            &[(10, 5), (20, 11), (30, 20), (40, 12)],
        ];
        for rewinds in cases {
            let mut marks = Marks::default();
            let mut stays: Vec<u64> = (1..=50).collect();
            for (at, to) in rewinds {
                rewind(&mut marks, *at, *to);
                stays.retain(|seq| seq <= to || seq > at);
            }
            for seq in 1..=50 {
                let rewound = marks.is_rewound(Seq::new(seq));
                assert_eq!(rewound, !stays.contains(&seq), "{seq} of {rewinds:?}");
            }
        }
    }

    #[test]
    fn marks_are_bounded_and_say_what_they_forgot() {
        let mut marks = Marks::default();
        for number in 1..=200 {
            compact(&mut marks, number * 10);
            rewind(&mut marks, number * 10 + 5, number * 10 + 3);
        }
        assert_eq!(marks.compactions.len(), REMEMBERED);
        assert_eq!(marks.rewinds.len(), REMEMBERED);
        assert!(marks.is_partial());
        assert!(matches!(marks.standing(), Standing::At(last) if last.seq == Seq::new(2000)));
        rewind(&mut marks, 3000, 15);
        assert_eq!(marks.standing(), Standing::Forgotten);
        compact(&mut marks, 3001);
        assert!(matches!(marks.standing(), Standing::At(_)));
    }
}
