//! Opaque JSON: kept as the bytes it came in, never interpreted (P11).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::scan::{self, JsonError};

/// One JSON value as text, kept byte for byte.
///
/// Key order, number text (`1e400`, `-0.0`, integers above 2^53), escapes (also lone surrogates such
/// as `\ud83d`), inner white space and duplicate keys stay as they are. Only white space around the
/// value is cut. Two values are equal when their bytes are. A clone shares the text.
#[derive(Clone)]
pub struct RawJson(Arc<RawValue>);

impl RawJson {
    /// How deep arrays and objects may nest in one value. Checking and copying use no recursion, so
    /// the limit guards those who will parse the value.
    pub const MAX_DEPTH: usize = 10_000;

    /// Checks that `bytes` are one JSON value and keeps them.
    ///
    /// # Errors
    /// [`JsonError`] when they are not JSON, not UTF-8, or nest deeper than [`Self::MAX_DEPTH`].
    pub fn parse(bytes: impl AsRef<[u8]>) -> Result<Self, JsonError> {
        let text = scan::check_opaque(bytes.as_ref())?;
        // The scan has accepted the text, so this repeats its verdict; the error is never seen.
        let raw = RawValue::from_string(text.to_owned()).map_err(|_| JsonError::rejected())?;
        Ok(Self(Arc::from(raw)))
    }

    /// The value's text.
    #[must_use]
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// `{}`.
    #[must_use]
    pub fn empty_object() -> Self {
        Self::fixed("{}")
    }

    /// `null`.
    #[must_use]
    pub fn null() -> Self {
        Self(Arc::from(RawValue::NULL.to_owned()))
    }

    /// The JSON form of a value.
    ///
    /// # Errors
    /// [`JsonError`] when the value has no JSON form (a map with keys that are no strings) or nests
    /// deeper than [`Self::MAX_DEPTH`].
    pub fn from_serialize(value: &impl Serialize) -> Result<Self, JsonError> {
        let bytes = serde_json::to_vec(value).map_err(|_| JsonError::rejected())?;
        Self::parse(bytes)
    }

    /// Whether the value is a JSON object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.get().starts_with('{')
    }

    fn fixed(text: &'static str) -> Self {
        serde_json::from_str::<Box<RawValue>>(text)
            .map_or_else(|_| Self::null(), |raw| Self(Arc::from(raw)))
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for RawJson {}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawJson").field(&self.get()).finish()
    }
}

impl fmt::Display for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Works inside `serde_json` only (as its own `RawValue` does), and keeps any depth: the codecs
/// check depth before they come here.
impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(Arc::from(raw)))
    }
}

/// For optional fields: a present `null` is the value `null`, not an absent value.
pub(crate) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RawJson>, D::Error> {
    RawJson::deserialize(deserializer).map(Some)
}
