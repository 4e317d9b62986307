//! The idempotency key of a host.

use std::fmt;

use thiserror::Error;

/// A host's idempotency key: text of 1 to 256 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Box<str>);

/// Why text is no [`Key`]. The host is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is empty.
    #[error("an idempotency key must not be empty")]
    Empty,
    /// The text has more than 256 bytes.
    #[error("an idempotency key has at most 256 bytes, this one has {got}: use a digest")]
    TooLong {
        /// Bytes of the text.
        got: usize,
    },
}

impl Key {
    /// Bytes of a key at most.
    pub const MAX_BYTES: usize = 256;

    /// A key.
    ///
    /// # Errors
    /// [`KeyError`] when the text is empty or longer than 256 bytes.
    pub fn new(text: impl Into<String>) -> Result<Self, KeyError> {
        let text = text.into();
        match text.len() {
            0 => Err(KeyError::Empty),
            got if got > Self::MAX_BYTES => Err(KeyError::TooLong { got }),
            _ => Ok(Self(text.into_boxed_str())),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
