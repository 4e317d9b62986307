//! Panics of what a host brings are contained: they end a turn, never the task that owns a loop.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::shape;

/// What a panic said, for the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Panicked(pub(super) String);

const DETAIL: usize = 1024;

impl Panicked {
    /// Takes what a panic threw. Dropping that may panic again, and what that throws, too.
    fn new(payload: Box<dyn Any + Send>) -> Panicked {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without words".to_owned());
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
        Panicked(shape::head(&text, DETAIL).to_owned())
    }
}

/// Calls something of a host.
pub(super) fn contained<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(Panicked::new)
}

/// A future whose panic is its outcome. After one it is dropped at once.
pub(super) struct Contained<'a, T>(Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>);

impl<'a, T> Contained<'a, T> {
    pub(super) fn new(future: impl Future<Output = T> + Send + 'a) -> Contained<'a, T> {
        Contained(Some(Box::pin(future)))
    }
}

impl<T> Future for Contained<'_, T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let polled = contained(|| future.as_mut().poll(context));
        if !matches!(polled, Ok(Poll::Pending)) {
            // The outcome is there; what the remains do in their drop changes nothing.
            let _ = contained(|| self.0 = None);
        }
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}

impl<T> Drop for Contained<'_, T> {
    fn drop(&mut self) {
        if self.0.is_some() {
            let _ = contained(|| self.0 = None);
        }
    }
}
