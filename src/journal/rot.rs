//! The first damage that a reader of a journal met. It is told, and stops nobody: what was damaged is
//! in a segment that commits do not touch any more, or recovery will decide about it (P6).

use std::sync::{Arc, OnceLock};

use super::error::ReadError;

#[derive(Debug, Clone, Default)]
pub(crate) struct RotCell(Arc<OnceLock<ReadError>>);

impl RotCell {
    pub(crate) fn get(&self) -> Option<&ReadError> {
        self.0.get()
    }

    /// Keeps the error if it is damage, and the first.
    pub(crate) fn note(&self, error: &ReadError) {
        let damage = matches!(error, ReadError::Damaged { .. } | ReadError::Header { .. });
        if damage && self.0.set(error.clone()).is_ok() {
            tracing::error!(%error, "damage in a journal that is open");
        }
    }
}
