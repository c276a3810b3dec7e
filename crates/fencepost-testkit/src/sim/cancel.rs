//! Futures dropped in the middle.

use fencepost_core::{Clock, Moment};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// When a future is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// Never.
    Never,
    /// Before its poll number `n`; polls that nobody woke it for are made up for.
    Polls(u32),
    /// At the moment.
    At(Moment),
}

/// Runs `work` to its end, or drops it unfinished when it is given up: then the answer is `None`.
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
