//! The requests of a connection that its task has not taken yet.

use std::task::{Context, Poll};
use std::thread;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// Takes the requests of a connection. When this is dropped, each request that was accepted is dropped as well, and later ones are refused.
///
/// `tokio::sync::mpsc` alone does not do that: it accepts a message while its receiver is being dropped, and then keeps the message as
/// long as there is a sender. Whoever sent such a request would wait for a reply although the connection has ended.
pub(crate) struct Requests<T>(UnboundedReceiver<T>);

/// Returns the sender of requests, and what takes them.
pub(crate) fn requests<T>() -> (UnboundedSender<T>, Requests<T>) {
    let (sender, received) = mpsc::unbounded_channel();
    (sender, Requests(received))
}

impl<T> Requests<T> {
    /// Takes the next request. `None`: there are no senders any more.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

impl<T> Drop for Requests<T> {
    fn drop(&mut self) {
        self.0.close();
        loop {
            match self.0.try_recv() {
                Ok(request) => drop(request),
                Err(TryRecvError::Disconnected) => return,
                // Another thread was counted before `close`, and has yet to put its request in.
                Err(TryRecvError::Empty) => thread::yield_now(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use tokio::sync::oneshot;
    use tokio::sync::oneshot::error::TryRecvError::Closed;

    use super::*;

    #[test]
    fn requests_that_are_sent_while_a_connection_ends_are_dropped() {
        // Without the loop in `drop`, one round in five loses a request.
        for _ in 0..200 {
            let (sender, requests) = requests();
            let send = || {
                let (reply, received) = oneshot::channel::<()>();
                sender.send(reply).is_ok().then_some(received)
            };
            let replies: Vec<_> = thread::scope(|scope| {
                let sending = scope.spawn(|| from_fn(send).collect());
                while requests.0.is_empty() {
                    thread::yield_now();
                }
                drop(requests);
                sending.join().expect("it does not panic")
            });
            assert!(!replies.is_empty());
            assert!(replies.into_iter().all(|mut reply| reply.try_recv() == Err(Closed)));
        }
    }
}
