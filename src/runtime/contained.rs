//! Futures of what a host brings: their panics end a turn, never the task that owns a loop.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::contain::{Panicked, contained, dropped};

/// A future whose panic is its outcome. Each poll is contained by itself, and after a panic it is
/// dropped at once, by itself: a future that panics in its poll and in its drop must stand directly
/// in here, not in a frame around it.
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
            dropped(self.0.take());
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
        dropped(self.0.take());
    }
}
