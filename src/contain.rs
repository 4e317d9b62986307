//! What a host brings may panic when it is called, and again when it is dropped. Each is contained by
//! itself: a second panic while the first one unwinds would end the process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a panic said, for the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Panicked(pub(crate) String);

const DETAIL: usize = 1024;

impl Panicked {
    /// Takes what a panic threw. Dropping that may panic again, and what that throws, too.
    fn new(payload: Box<dyn Any + Send>) -> Panicked {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("a panic without words");
        let mut end = DETAIL.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = text.get(..end).unwrap_or_default().to_owned();
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
        Panicked(text)
    }
}

/// Calls something of a host. What the call itself holds is the host's; what is ours must not be
/// harmed when the call is left in its middle.
pub(crate) fn contained<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(Panicked::new)
}

/// Drops something of a host.
pub(crate) fn dropped<T>(value: T) {
    if let Err(Panicked(detail)) = contained(|| drop(value)) {
        tracing::error!(
            detail,
            "something that the host brought panicked in its drop"
        );
    }
}

/// Something of a host, which is dropped by itself wherever it is: in the middle of a panic, or
/// beside others of its kind.
#[derive(Clone)]
pub(crate) struct Held<T>(Option<T>);

impl<T> Held<T> {
    pub(crate) fn new(value: T) -> Held<T> {
        Held(Some(value))
    }

    /// There until it is dropped.
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    #[cfg(feature = "runtime")]
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }

    #[cfg(feature = "runtime")]
    pub(crate) fn into_inner(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            dropped(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the bomb");
        }
    }

    #[test]
    fn many_may_panic_at_once() {
        let thrown = contained(|| {
            let _one = Held::new(Bomb);
            let _others = [Held::new(Bomb), Held::new(Bomb)];
            std::panic::panic_any(Bomb);
        });
        assert_eq!(thrown, Err(Panicked("a panic without words".into())));
    }

    #[test]
    fn what_a_panic_said_is_kept_up_to_a_limit() {
        let said = contained(|| panic!("{}", "ä".repeat(1000)));
        assert_eq!(said, Err::<(), _>(Panicked("ä".repeat(512))));
        assert_eq!(
            contained(|| panic!("no")),
            Err::<(), _>(Panicked("no".into()))
        );
    }
}
