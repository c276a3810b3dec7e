//! Futures that are dropped before they are ready.

use fencepost_core::{Clock, Moment};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// The time at which a future is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// Never.
    Never,
    /// Before its poll number `n`. A poll is added where the future was not woken often enough.
    Polls(u32),
    /// At this moment.
    At(Moment),
}

/// Runs `work` to its end, or drops it at `give_up` and returns `None`.
pub async fn unless<F: Future>(give_up: GiveUp, clock: &Clock, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    match give_up {
        GiveUp::Never => Some(work.await),
        GiveUp::At(moment) => clock.within(moment, work).await,
        GiveUp::Polls(most) => {
            let mut polls = 0;
            poll_fn(|cx| {
                if polls == most {
                    return Poll::Ready(None);
                }
                polls += 1;
                match work.as_mut().poll(cx) {
                    Poll::Ready(answer) => Poll::Ready(Some(answer)),
                    Poll::Pending => {
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                }
            })
            .await
        }
    }
}
