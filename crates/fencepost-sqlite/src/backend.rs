//! The engine as core sees it.

use std::sync::Arc;

use fencepost_core::{
    Backend, BackendUrl, Capabilities, Claim, Entry, Eviction, Info, Listing, Name, Page, Reply, Report,
    Result, Runtime, Token,
};

use crate::config::Config;
use crate::entry::SqliteEntry;
use crate::error::{ENGINE, Trouble};
use crate::examine::examine;
use crate::session::SqliteSession;
use crate::shared::{PATIENCE, Shared};
use crate::{evict, listing};

/// Opens the database that a `sqlite:` URL names, making it if it is not there: register it as
/// `Registry::new().with("sqlite", fencepost_sqlite::open)`.
///
/// # Errors
/// [`is_invalid`](fencepost_core::Error::is_invalid) for a URL that breaks a rule;
/// [`is_configuration`](fencepost_core::Error::is_configuration) or [`is_denied`](fencepost_core::Error::is_denied) for a place
/// that cannot work, with what to do about it.
///
/// # Cancel safety
/// May be dropped; an empty database may stay.
pub fn open(address: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    match Config::parse(&address) {
        Ok(config) => Reply::coming(connect(config, runtime)),
        Err(error) => Reply::ready(Err(error)),
    }
}

async fn connect(config: Config, runtime: Runtime) -> Result<Arc<dyn Backend>> {
    // Many processes may make the file at once, and only one at a time can. Clients of a file that was removed go away.
    let clock = runtime.clock();
    let until = clock.now() + PATIENCE;
    let mut pause = std::time::Duration::from_millis(1);
    loop {
        match Shared::open(&config, &runtime) {
            Ok(shared) => {
                let shared = Arc::new(shared);
                let session = Arc::new(SqliteSession::new(Arc::clone(&shared)));
                return Ok(Arc::new(SqliteBackend { shared, session }));
            }
            Err(Trouble::Busy | Trouble::Strays(_)) if clock.now() < until => {
                clock.sleep_until(clock.now() + pause).await;
                pause = (pause * 2).min(std::time::Duration::from_millis(20));
            }
            Err(trouble) => return Err(trouble.at(&config.path)),
        }
    }
}

struct SqliteBackend {
    shared: Arc<Shared>,
    session: Arc<SqliteSession>,
}

impl Backend for SqliteBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities { replicas: false, ..Capabilities::full(ENGINE) }
    }

    fn enter(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(SqliteEntry::new(Arc::clone(&self.shared), Arc::clone(&self.session), claim, false))
    }

    fn attach(&self, claim: Arc<Claim>) -> Box<dyn Entry> {
        Box::new(SqliteEntry::new(Arc::clone(&self.shared), Arc::clone(&self.session), claim, true))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Result<Info>> {
        self.shared.patiently(PATIENCE, move || listing::inspect(&self.shared, name))
    }

    fn list<'a>(&'a self, prefix: &'a str, page: &'a Page) -> Reply<'a, Result<Listing>> {
        self.shared.patiently(PATIENCE, move || listing::list(&self.shared, prefix, page))
    }

    fn evict<'a>(&'a self, name: &'a Name, token: Token, how: &'a Eviction) -> Reply<'a, Result<()>> {
        let mut told = None;
        self.shared.patiently(PATIENCE, move || evict::evict(&self.shared, name, token, how, &mut told))
    }

    fn examine(&self) -> Reply<'_, Result<Report>> {
        self.shared.patiently(PATIENCE, move || examine(&self.shared.store))
    }

    fn close(&self) -> Reply<'_, ()> {
        self.shared.retire();
        Reply::ready(())
    }
}
