//! The first fault of a journal (P8, W10): set once, from the commit path or from work aside, and
//! seen by both before they write.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::error::{Fault, FaultCause};

#[derive(Debug, Clone, Default)]
pub(crate) struct FaultCell(Arc<OnceLock<Fault>>);

impl FaultCell {
    pub(crate) fn get(&self) -> Option<&Fault> {
        self.0.get()
    }

    /// Poisons: the first cause is kept, and nothing is written any more.
    pub(crate) fn poison(&self, journal: &Path, cause: FaultCause) -> Fault {
        let fault = self.0.get_or_init(|| Fault::new(cause)).clone();
        tracing::error!(journal = %journal.display(), %fault, "journal faulted");
        fault
    }
}
