//! What was exercised, so that a run that exercises nothing is seen.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Debug, Clone, Default)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Counts) {
        for (what, count) in &other.0 {
            self.add(what, *count);
        }
    }

    /// Fails if one of these never happened.
    pub fn assert_exercised(&self, what: &[&str]) {
        let missing: Vec<_> = what.iter().filter(|what| self.get(what) == 0).collect();
        assert!(missing.is_empty(), "never exercised: {missing:?}");
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{count:>10}  {what}")?;
        }
        Ok(())
    }
}
