//! Work that is not given up midway.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::runtime::Runtime;

/// A future that goes on where the client's tasks run if it is dropped midway. Of a statement it frees the connection for the next one.
///
/// The work needs a time limit of its own. Dropped before its first poll, it does nothing.
pub struct Finish<T: 'static> {
    /// `None`: it is done.
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    begun: bool,
    runtime: Runtime,
}

impl<T: 'static> Finish<T> {
    /// Wraps the work.
    pub fn new(runtime: Runtime, work: impl Future<Output = T> + Send + 'static) -> Finish<T> {
        Finish { work: Some(Box::pin(work)), begun: false, runtime }
    }
}

impl<T: 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let Some(work) = &mut self.work else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl<T: 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take_if(|_| self.begun) {
            self.runtime.spawn(async move { drop(work.await) });
        }
    }
}
