//! A listing as a stream, over the pages of the engine.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::client::Client;
use crate::error::Result;
use crate::operator::info::{Info, Listing, Page};

impl Client {
    /// Returns the resources whose names begin with `prefix` and that are held or waited for, sorted by name, as a stream. It
    /// reads page after page, each when it is needed.
    ///
    /// Each page is read at its own time. A resource that is free throughout is not listed, one that is in use throughout is
    /// listed once.
    ///
    /// # Errors
    /// Those of [`list`](Client::list), as the stream's last item.
    ///
    /// # Cancel safety
    /// The stream may be dropped at any time: it only reads.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let locks = fencepost_core::Client::builder().connect(&fencepost_core::Registry::new(), "memory:").await?;
    /// let guard = locks.mutex("stock/42")?.lock().await?;
    /// let mut listing = locks.list_all("stock/");
    /// while let Some(info) = listing.next().await {
    ///     let info = info?;
    ///     println!("{}: {} holders", info.name, info.holders().count());
    /// }
    /// # drop(guard);
    /// # Ok::<(), fencepost_core::Error>(()) }).unwrap();
    /// ```
    pub fn list_all(&self, prefix: &str) -> ListAll {
        self.list_by(prefix, Page::default())
    }

    fn list_by(&self, prefix: &str, page: Page) -> ListAll {
        let (client, prefix) = (self.clone(), prefix.to_owned());
        ListAll { client, prefix, next: Some(page), reading: None, ready: VecDeque::new() }
    }
}

/// A page that is being read, and the page that was asked for.
type Reading = Pin<Box<dyn Future<Output = (Page, Result<Listing>)> + Send>>;

/// The resources in use, as a stream: see [`Client::list_all`].
#[must_use = "a stream reads nothing until it is polled"]
pub struct ListAll {
    client: Client,
    prefix: String,
    /// The page to read next. `None`: it is being read, or there is none.
    next: Option<Page>,
    reading: Option<Reading>,
    ready: VecDeque<Info>,
}

impl ListAll {
    /// Returns the next resource, or `None` at the end.
    ///
    /// # Errors
    /// Those of [`list`](Client::list), as the last item.
    ///
    /// # Cancel safety
    /// Safe: no resource is skipped.
    pub async fn next(&mut self) -> Option<Result<Info>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for ListAll {
    type Item = Result<Info>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Info>>> {
        let this = self.get_mut();
        loop {
            if let Some(info) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(info)));
            }
            if let Some(page) = this.next.take() {
                let (client, prefix) = (this.client.clone(), this.prefix.clone());
                this.reading = Some(Box::pin(async move {
                    let listing = client.list(&prefix, &page).await;
                    (page, listing)
                }));
            }
            let Some(reading) = &mut this.reading else { return Poll::Ready(None) };
            let (page, listing) = ready!(reading.as_mut().poll(cx));
            this.reading = None;
            match listing {
                Ok(Listing { resources, next, .. }) => {
                    this.ready = resources.into();
                    this.next = next.map(|name| Page { after: Some(name), ..page });
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

impl fmt::Debug for ListAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListAll").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[tokio::test]
    async fn a_stream_goes_over_all_pages() {
        let locks = Client::builder().open(|_| Ok(Memory::new())).unwrap();
        let mut guards = Vec::new();
        for name in ["b/1", "a/3", "a/1", "a/2"] {
            guards.push(locks.mutex(name).unwrap().lock().await.unwrap());
        }
        for limit in [1, 2, 3, 4] {
            let mut listing = locks.list_by("a/", Page::of(limit));
            let mut names = Vec::new();
            while let Some(info) = listing.next().await {
                names.push(info.unwrap().name.to_string());
            }
            assert_eq!(names, ["a/1", "a/2", "a/3"]);
            assert!(listing.next().await.is_none(), "it stays at its end");
        }
        assert!(locks.list_all("c/").next().await.is_none());
    }

    #[tokio::test]
    async fn an_error_is_the_last_item() {
        let locks = Client::builder().open(|_| Ok(Memory::new())).unwrap();
        let mut listing = locks.list_all("");
        listing.next = None;
        let failed = async { (Page::default(), Err(crate::Error::invalid("it fails"))) };
        listing.reading = Some(Box::pin(failed));
        assert!(listing.next().await.unwrap().is_err());
        assert!(listing.next().await.is_none());
    }
}
