//! The reply of an engine.

use std::pin::Pin;
use std::task::{Context, Poll};

/// A reply of an engine: ready, or a future. A ready reply costs no allocation.
pub enum Reply<'a, T> {
    /// Ready; `None` once taken.
    Ready(Option<T>),
    /// A future.
    Coming(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> Reply<'a, T> {
    /// Makes a reply that is ready.
    pub fn ready(value: T) -> Reply<'a, T> {
        Reply::Ready(Some(value))
    }

    /// Makes a reply of a future.
    pub fn coming(future: impl Future<Output = T> + Send + 'a) -> Reply<'a, T> {
        Reply::Coming(Box::pin(future))
    }
}

impl<T: Unpin> Future for Reply<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Reply::Ready(value) => {
                Poll::Ready(value.take().expect("a reply is polled no more once it was ready"))
            }
            Reply::Coming(future) => future.as_mut().poll(cx),
        }
    }
}
