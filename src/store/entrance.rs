//! Entering the commit boundary: one thread at a time, and none from within itself. What the boundary
//! tells (an observer, a collector of metrics) runs while it is held, so that a commit from there
//! would wait for itself: it is refused instead.

use std::cell::RefCell;
use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::sync::Weak;

use super::boundary::{Boundary, Observer, SessionCore, lock};
use super::{Refusal, SessionCloseError};
use crate::sync::MutexGuard;
use crate::wake::Behind;

/// An operation was called by something that is told under the locks that it needs.
pub(super) struct Reentrant;

impl From<Reentrant> for Refusal {
    fn from(_: Reentrant) -> Self {
        Refusal::Reentrant
    }
}

impl From<Reentrant> for SessionCloseError {
    fn from(_: Reentrant) -> Self {
        SessionCloseError::Reentrant
    }
}

/// A boundary that a thread holds, by the address of its session, and who wants to be told of its
/// commits since.
struct Held {
    session: usize,
    joining: Vec<Weak<dyn Observer>>,
}

crate::sync::thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

/// Does something with what this thread holds of a boundary; `None` if it does not hold it.
fn held<T>(session: usize, with: impl FnOnce(&mut Held) -> T) -> Option<T> {
    let found = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        let found = held.iter_mut().rev().find(|it| it.session == session);
        found.map(with)
    });
    found.ok().flatten()
}

/// The boundary, held. Wakers wait until it is given back.
pub(super) struct Entered<'a> {
    session: usize,
    boundary: MutexGuard<'a, Boundary>,
    _behind: Behind,
}

impl SessionCore {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Enters, for an operation that can be refused.
    pub(super) fn enter(&self) -> Result<Entered<'_>, Reentrant> {
        if crate::metrics::is_recording() || held(self.address(), |_| ()).is_some() {
            return Err(Reentrant);
        }
        Ok(self.entered())
    }

    /// Enters, for what is never called from within.
    pub(super) fn entered(&self) -> Entered<'_> {
        let behind = Behind::locks();
        let boundary = lock(&self.boundary);
        let session = self.address();
        let _ = HELD.try_with(|held| {
            held.borrow_mut().push(Held {
                session,
                joining: Vec::new(),
            });
        });
        Entered {
            session,
            boundary,
            _behind: behind,
        }
    }

    /// Has an observer told of what comes behind that which is being told. False if nothing is.
    pub(super) fn join_from_within(&self, observer: Weak<dyn Observer>) -> bool {
        held(self.address(), |held| held.joining.push(observer)).is_some()
    }
}

impl Deref for Entered<'_> {
    type Target = Boundary;

    fn deref(&self) -> &Boundary {
        &self.boundary
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut Boundary {
        &mut self.boundary
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Who joins is told at once that nothing will come, if so, and may have others join then.
        while let Some(joining) = held(self.session, |held| take(&mut held.joining))
            && !joining.is_empty()
        {
            for observer in joining {
                self.boundary.join(observer);
            }
        }
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let at = held.iter().rposition(|it| it.session == self.session);
            at.map(|at| held.remove(at))
        });
    }
}
