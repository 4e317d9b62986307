//! Sequences of events behind lines that were passed over.

use std::collections::VecDeque;

/// The new numbers of sequences, where lines were passed over.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The last old sequence.
    pub(super) old: u64,
    /// The last new one.
    pub(super) new: u64,
    /// From an old sequence on, how much lower the new ones are.
    steps: VecDeque<(u64, u64)>,
    /// Old sequences below this are not known any more.
    known_from: u64,
}

/// How many steps are remembered.
const STEPS: usize = 65_536;

impl Numbers {
    /// Takes a line in, with the sequence that it says it had, if it does. `None`: not in order.
    pub(super) fn line(&mut self, seq: Option<u64>) -> Option<()> {
        let old = match seq {
            Some(seq) if seq <= self.old => return None,
            Some(seq) => seq,
            None => self.old.checked_add(1)?,
        };
        self.old = old;
        Some(())
    }

    /// The line is an event that is kept.
    pub(super) fn keep(&mut self) {
        self.new += 1;
        let lower = self.old.saturating_sub(self.new);
        if self.steps.back().map_or(0, |(_, lower)| *lower) != lower {
            self.steps.push_back((self.old, lower));
            if self.steps.len() > STEPS {
                self.steps.pop_front();
                self.known_from = self.steps.front().map_or(0, |(from, _)| *from);
            }
        }
    }

    /// How many kept events have an old sequence up to this one; `None` if that is not known.
    pub(super) fn up_to(&self, old: u64) -> Option<u64> {
        if old >= self.old {
            // What lies ahead has no number yet; it stays as far ahead as it was.
            return Some(self.new.saturating_add(1).saturating_add(old - self.old));
        }
        if old < self.known_from {
            return None;
        }
        let after = self.steps.partition_point(|(from, _)| *from <= old);
        let lower = |index: usize| self.steps.get(index).map_or(0, |(_, lower)| *lower);
        let below = match after.checked_sub(1) {
            Some(index) => old - lower(index),
            None => old,
        };
        let below = below.min(self.new);
        // In a run of lines that were passed over: the last event before it counts.
        let next = self.steps.get(after).map(|(from, lower)| from - lower - 1);
        Some(next.map_or(below, |most| below.min(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of all that was kept, with runs of any length passed over, also at both ends.
    #[test]
    fn numbers_follow_what_was_kept() {
        for pattern in 0_u32..1 << 12 {
            let mut numbers = Numbers::default();
            let mut kept: Vec<u64> = Vec::new();
            for old in 1..=12_u64 {
                numbers.line(None).unwrap();
                for to in 0..old {
                    let count = kept.iter().filter(|kept| **kept <= to).count() as u64;
                    assert_eq!(numbers.up_to(to), Some(count), "{pattern:b}: {to} at {old}");
                }
                // It may refer to itself.
                assert_eq!(numbers.up_to(old), Some(kept.len() as u64 + 1));
                if pattern >> (old - 1) & 1 == 1 {
                    numbers.keep();
                    kept.push(old);
                }
            }
        }
    }

    #[test]
    fn what_is_too_far_back_is_not_guessed() {
        let mut numbers = Numbers::default();
        for _ in 0..STEPS + 10 {
            numbers.line(None).unwrap();
            numbers.line(None).unwrap();
            numbers.keep();
        }
        numbers.line(None).unwrap();
        assert_eq!(numbers.up_to(3), None);
        assert_eq!(numbers.up_to(1000), Some(500));
        assert!(numbers.steps.len() <= STEPS);
        // Not in order.
        assert_eq!(numbers.line(Some(7)), None);
    }
}
