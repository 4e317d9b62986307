//! One thing of the floor above that lives as long as its session. The store does not know what it
//! is; the runtime keeps its hub there, so that all its loops share one.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use super::Session;
use crate::metrics::Meter;

#[derive(Default)]
pub(super) struct Companion(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Session {
    /// Where the measurements of its store go.
    pub(crate) fn meter(&self) -> &Meter {
        &self.core.meter
    }

    /// The session's companion, made by the first that asks. It must not hold the session, which
    /// holds it. `None` if it is of another type.
    pub(crate) fn companion<T: Any + Send + Sync>(
        &self,
        make: impl FnOnce(&Session) -> Arc<T>,
    ) -> Option<Arc<T>> {
        let kept = self.core.companion.0.get_or_init(|| make(self));
        kept.clone().downcast().ok()
    }
}
