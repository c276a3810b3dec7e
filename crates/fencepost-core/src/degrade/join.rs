//! Futures that run side by side.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

pub(super) type Job<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs all jobs, and returns what came of them in their order.
pub(super) async fn all<T>(mut jobs: Vec<Job<'_, T>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = jobs.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut done = true;
        for (job, answer) in jobs.iter_mut().zip(&mut answers) {
            if answer.is_none() {
                match job.as_mut().poll(cx) {
                    Poll::Ready(value) => *answer = Some(value),
                    Poll::Pending => done = false,
                }
            }
        }
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// Runs both futures, and returns what came of them.
pub(super) async fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut a, mut b) = (None, None);
    poll_fn(|cx| {
        if a.is_none()
            && let Poll::Ready(value) = first.as_mut().poll(cx)
        {
            a = Some(value);
        }
        if b.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(cx)
        {
            b = Some(value);
        }
        match (a.take(), b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (first, second) => {
                (a, b) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

/// Runs `work` until it is done, or `None` once `end` is. Work that is ready wins.
pub(super) async fn unless<T>(end: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    let (mut end, mut work) = (pin!(end), pin!(work));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}
