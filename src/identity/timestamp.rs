//! A moment in UTC with nanoseconds, as RFC 3339 text.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// 0000-01-01T00:00:00Z in seconds of the Unix epoch.
const FIRST_SECOND: i64 = -62_167_219_200;
/// 9999-12-31T23:59:59Z in seconds of the Unix epoch.
const LAST_SECOND: i64 = 253_402_300_799;
const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// Why something is no [`Timestamp`]. The caller's input is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TimestampError {
    /// The moment lies outside the years 0000 to 9999 in UTC.
    #[error("a time must lie in the years 0000 to 9999 (UTC)")]
    OutOfRange,
    /// The nanoseconds are 1,000,000,000 or more.
    #[error("nanoseconds must be below 1,000,000,000")]
    Nanoseconds,
    /// The text is not RFC 3339.
    #[error("a time must be RFC 3339 text such as 2026-11-30T10:00:00.000000001Z")]
    Syntax,
}

/// A moment in UTC between the years 0000 and 9999, to the nanosecond.
///
/// It tells when an event was made, and is never used to order events. Text with another offset is
/// read and kept as the same moment in UTC; fractions finer than a nanosecond are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    secs: i64,
    nanos: u32,
}

impl Timestamp {
    /// The moment `secs` seconds after the Unix epoch (negative: before) plus `nanos` nanoseconds.
    ///
    /// # Errors
    /// [`TimestampError`] outside the years 0000 to 9999, or for a second's worth of nanoseconds.
    pub const fn new(secs: i64, nanos: u32) -> Result<Self, TimestampError> {
        if nanos >= NANOS_PER_SECOND {
            return Err(TimestampError::Nanoseconds);
        }
        if secs < FIRST_SECOND || secs > LAST_SECOND {
            return Err(TimestampError::OutOfRange);
        }
        Ok(Self { secs, nanos })
    }

    /// The system's clock, pressed into the years 0000 to 9999.
    #[must_use]
    pub fn now() -> Self {
        let (secs, nanos) = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => (
                i64::try_from(since.as_secs()).unwrap_or(LAST_SECOND),
                since.subsec_nanos(),
            ),
            // A clock before 1970 is wrong anyway: the epoch is as good as any guess.
            Err(_) => (0, 0),
        };
        Self {
            secs: secs.min(LAST_SECOND),
            nanos,
        }
    }

    /// Whole seconds since the Unix epoch.
    #[must_use]
    pub const fn secs(self) -> i64 {
        self.secs
    }

    /// Nanoseconds within the second.
    #[must_use]
    pub const fn nanos(self) -> u32 {
        self.nanos
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = i128::from(self.secs) * i128::from(NANOS_PER_SECOND) + i128::from(self.nanos);
        let moment = OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(|_| fmt::Error)?;
        f.write_str(&moment.format(&Rfc3339).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let moment = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| TimestampError::Syntax)?;
        Self::new(moment.unix_timestamp(), moment.nanosecond())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Timestamp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("RFC 3339 text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Timestamp, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}
