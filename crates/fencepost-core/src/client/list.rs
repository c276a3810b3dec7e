//! A listing as a stream, over the pages of the engine.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::stream::{self, StreamExt};

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
        ListAll::over(page, move |page| {
            let (client, prefix) = (client.clone(), prefix.clone());
            async move { (client.list(&prefix, &page).await, page) }
        })
    }
}

/// The resources in use, as a stream: see [`Client::list_all`].
#[must_use = "a stream reads nothing until it is polled"]
pub struct ListAll(Pin<Box<dyn Stream<Item = Result<Info>> + Send>>);

impl ListAll {
    fn over<R>(first: Page, read: impl Fn(Page) -> R + Send + 'static) -> ListAll
    where
        R: Future<Output = (Result<Listing>, Page)> + Send + 'static,
    {
        let pages = stream::unfold(Some(first), move |page| {
            let reading = page.map(&read);
            async move {
                let (resources, next) = match reading?.await {
                    (Ok(Listing { resources, next, .. }), page) => {
                        let next = next.map(|name| Page { after: Some(name), ..page });
                        (resources.into_iter().map(Ok).collect(), next)
                    }
                    (Err(error), _) => (vec![Err(error)], None),
                };
                Some((stream::iter(resources), next))
            }
        });
        ListAll(Box::pin(pages.flatten().fuse()))
    }

    /// Returns the next resource, or `None` at the end.
    ///
    /// # Errors
    /// Those of [`list`](Client::list), as the last item.
    ///
    /// # Cancel safety
    /// Safe: no resource is skipped.
    pub async fn next(&mut self) -> Option<Result<Info>> {
        self.0.next().await
    }
}

impl Stream for ListAll {
    type Item = Result<Info>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Info>>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for ListAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListAll").finish_non_exhaustive()
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
        let fails = |page| async { (Err(crate::Error::invalid("it fails")), page) };
        let mut listing = ListAll::over(Page::default(), fails);
        assert!(listing.next().await.unwrap().is_err());
        assert!(listing.next().await.is_none());
    }
}
