//! The claims to wake after a change.

use std::task::Waker;

/// The wakers to call once the queue is unlocked: mostly one.
#[derive(Default)]
pub(super) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    pub(super) fn push(&mut self, waker: Option<Waker>) {
        match waker {
            Some(waker) if self.first.is_none() => self.first = Some(waker),
            Some(waker) => self.more.push(waker),
            None => {}
        }
    }

    pub(super) fn wake(self) {
        self.first.into_iter().chain(self.more).for_each(Waker::wake);
    }
}
