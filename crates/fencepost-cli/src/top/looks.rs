//! The looks at the engine, by the requests of `ls` and `show`.

use std::time::{Duration, Instant};

use fencepost_core::{Client, Error, Info, Name};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::connect::{self, CLEANUP, Options, close, connect_to, missing_file};
use crate::exit::{Failure, UNREACHABLE};
use crate::settings::Settings;
use crate::verbs::ls;
use crate::verbs::watch::{Claims, claims, new_grants};

/// How long a look may take.
const LOOK: Duration = Duration::from_secs(10);

/// One look at the engine.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// The engine's name. `None`: its file does not exist yet.
    pub(crate) engine: Option<&'static str>,
    pub(crate) locks: Vec<Info>,
    /// The prefixes that the listing covers, if it does not cover all names.
    pub(crate) covers: Option<Vec<String>>,
    /// The lock that is shown alone.
    pub(crate) opened: Option<Opened>,
    /// How many grants are new since the look before, and the time between the two. `None`: it was the first.
    pub(crate) grants: Option<(usize, Duration)>,
}

/// One lock, as `show` has it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) info: Info,
    /// Why the engine keeps no runs.
    pub(crate) not_kept: Option<String>,
}

/// Why there was no look.
pub(crate) enum Missed {
    /// The engine is away, for this reason. The next look may succeed.
    Away(String),
    Failed(Failure),
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Missed {
        if failure.code == UNREACHABLE { Missed::Away(failure.message) } else { Missed::Failed(failure) }
    }
}

impl From<Error> for Missed {
    fn from(error: Error) -> Missed {
        if error.is_transient() || error.is_unreachable() {
            Missed::Away(error.to_string())
        } else {
            Missed::Failed(error.into())
        }
    }
}

/// The engine, which is connected to as soon as it can be reached.
pub(crate) struct Engine<'a> {
    settings: &'a Settings,
    prefix: String,
    /// `None`: its file does not exist yet, and to open it would make it.
    url: Option<String>,
    client: Option<Client>,
    before: Option<(Claims, Instant)>,
}

impl<'a> Engine<'a> {
    /// Connects to the engine of the settings. An engine that is away is none the less a valid one.
    ///
    /// # Errors
    ///
    /// The settings are wrong, or the engine refuses this client.
    pub(crate) async fn open(settings: &'a Settings, prefix: String) -> Result<Engine<'a>, Failure> {
        let mut engine = Engine { settings, prefix, url: None, client: None, before: None };
        match timeout(LOOK, engine.client()).await {
            Ok(Err(Missed::Failed(failure))) => Err(failure),
            // The view says that it is away.
            Err(_) | Ok(Err(Missed::Away(_)) | Ok(_)) => Ok(engine),
        }
    }

    async fn client(&mut self) -> Result<Option<&Client>, Missed> {
        if self.url.is_none() && missing_file(self.settings)?.is_none() {
            self.url = Some(connect::url(self.settings)?);
        }
        if let (None, Some(url)) = (&self.client, &self.url) {
            self.client = Some(connect_to(url, Options::default()).await?);
        }
        Ok(self.client.as_ref())
    }

    async fn look(&mut self, open: Option<&Name>) -> Result<Look, Missed> {
        let (prefix, started) = (self.prefix.clone(), Instant::now());
        let Some(locks) = self.client().await? else { return Ok(Look::default()) };
        let listing = ls::all(locks, &prefix).await?;
        let opened = match open {
            Some(name) => {
                let not_kept = fencepost_check::not_kept(locks.capabilities());
                Some(Opened { info: locks.inspect(name.as_str()).await?, not_kept })
            }
            None => None,
        };
        let engine = Some(locks.capabilities().engine);
        let now = claims(&listing.resources);
        let before = self.before.as_ref();
        let grants = before.map(|(before, at)| (new_grants(before, &now), started.duration_since(*at)));
        self.before = Some((now, started));
        Ok(Look { engine, locks: listing.resources, covers: listing.covers, opened, grants })
    }

    /// Looks at the engine until something fails for good, and says what it has found, or why the engine is away. `open` is the lock that
    /// is shown alone; each value that is sent there asks for a look at once.
    pub(crate) async fn looks(
        &mut self,
        mut open: watch::Receiver<Option<Name>>,
        tell: mpsc::Sender<Result<Look, String>>,
        every: Duration,
    ) -> Failure {
        loop {
            let name = open.borrow_and_update().clone();
            let found = match timeout(LOOK, self.look(name.as_ref())).await {
                Ok(Ok(look)) => Ok(look),
                Ok(Err(Missed::Away(cause))) => Err(cause),
                Ok(Err(Missed::Failed(failure))) => return failure,
                Err(_) => Err(format!("no reply within {} s", LOOK.as_secs())),
            };
            // Neither channel closes before this future is dropped.
            let _ = tell.send(found).await;
            let _ = timeout(every, open.changed()).await;
        }
    }

    /// Ends the client.
    pub(crate) async fn close(self) {
        if let Some(client) = &self.client {
            close(client, CLEANUP).await;
        }
    }
}
