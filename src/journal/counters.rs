//! The two counters of a journal, each with a type of its own.

use std::fmt;

/// A journal sequence: orders the records of a journal, 1-based, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

/// A session sequence: orders the records of a session, 1-based, without gaps. This is what users
/// see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(u64);

/// Counters on disk stay below this: no log gets there, and nothing overflows near it (P14). What
/// names more was not written by us.
pub(super) const MAX_COUNTER: u64 = 1 << 62;

macro_rules! counter {
    ($name:ident) => {
        impl $name {
            /// Before the first.
            pub const ZERO: $name = $name(0);

            /// The counter with this number.
            pub const fn new(number: u64) -> $name {
                $name(number)
            }

            /// Its number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The one after it.
            #[must_use]
            pub const fn next(self) -> $name {
                $name(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}
counter!(Lsn);
counter!(Seq);
