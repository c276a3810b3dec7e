//! Streams of events (server-sent events).

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderName;
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::sync::mpsc;
use utoipa::ToSchema;

/// Lets a proxy pass on each event at once. Without this header nginx keeps some kilobytes of events back.
const UNBUFFERED: [(HeaderName, &str); 1] = [(HeaderName::from_static("x-accel-buffering"), "no")];

/// How long a caller may leave an event unread. Then its stream ends.
pub(crate) const UNREAD: Duration = Duration::from_secs(10);

/// An event of a stream.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes the events that `stream` sends")]
pub(crate) struct SentEvent {
    event: String,
    /// A JSON object.
    data: String,
}

/// An event: its name and its data, which is JSON.
pub(crate) type Told<D = Value> = (&'static str, D);

/// The state of a stream.
pub(crate) trait Source: Send {
    /// The data of its events.
    type Data: ToString + Send + 'static;

    /// Returns the next event. `None`: the stream ends.
    fn next(&mut self) -> impl Future<Output = Option<Told<Self::Data>>> + Send;
}

/// The sending end of a stream.
pub(crate) struct Events<D = Value>(mpsc::Sender<Told<D>>);

/// Makes a stream and its sending end.
pub(crate) fn stream<D: ToString + Send + 'static>() -> (Events<D>, impl IntoResponse) {
    let (events, told) = mpsc::channel(1);
    let stream = unfold(told, |mut told: mpsc::Receiver<Told<D>>| async move {
        let (name, data) = told.recv().await?;
        Some((Ok::<_, Infallible>(Event::default().event(name).data(data.to_string())), told))
    });
    (Events(events), (UNBUFFERED, Sse::new(stream)))
}

impl<D: ToString + Send + 'static> Events<D> {
    /// Tells the events of the source, whether the caller reads them or not. It ends when the source does, when the caller's end is closed,
    /// and when an event is not read for [`UNREAD`]. Returns whether the source has ended.
    pub(crate) async fn tell(&self, source: &mut impl Source<Data = D>) -> bool {
        while let Ok(Ok(place)) = tokio::time::timeout(UNREAD, self.0.reserve()).await {
            tokio::select! {
                // First: a caller that has gone is granted nothing.
                biased;
                () = self.0.closed() => break,
                event = source.next() => match event {
                    Some(event) => place.send(event),
                    None => return true,
                },
            }
        }
        false
    }

    /// Returns whether the caller's end is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
