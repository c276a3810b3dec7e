//! Counts the requests that docs/backends/object.md names as what the engine costs.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::sync::Mutex;
use fencepost_core::{Backend, BackendUrl, Client, ClientBuilder, Page, Registry, Reply, Result, Runtime};
use fencepost_testkit::wait::eventually;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as Answer,
};

use crate::backend::open_store;
use crate::client::ObjectClient;
use crate::conn::Store;
use crate::keys::Keys;

const SOON: Duration = Duration::from_secs(20);
/// A lease that is not renewed within the test.
const LONG: Duration = Duration::from_secs(600);

/// A store in memory that notes each request, as in `GET locks`.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) store: InMemory,
    requests: Arc<Mutex<Vec<String>>>,
    /// A write of this object has no answer.
    pub(crate) silent: Mutex<Option<Path>>,
    /// The next write of this object has no answer.
    pub(crate) silent_once: Mutex<Option<Path>>,
}

impl Counted {
    fn note(&self, method: &str, key: &Path) {
        note(&self.requests, method, key);
    }

    pub(crate) fn open(self: &Arc<Counted>, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
        let store =
            Store::new(Arc::<Counted>::clone(self), "counted".to_owned(), Duration::from_secs(5), runtime);
        let client = ObjectClient::new(store, Keys::new(Path::default()), Duration::from_secs(1));
        let place = format!("counted {:p}", Arc::as_ptr(self));
        Reply::coming(async move { open_store(client, &place, false).await })
    }

    /// Returns the requests since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock())
    }

    fn has(&self, request: &str) -> bool {
        self.requests.lock().iter().any(|noted| noted == request)
    }
}

fn note(requests: &Mutex<Vec<String>>, method: &str, key: &Path) {
    let kind = key.parts().next().map(|part| part.as_ref().to_owned()).unwrap_or_default();
    requests.lock().push(format!("{method} {kind}"));
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that counts")
    }
}

#[async_trait]
impl ObjectStore for Counted {
    async fn put_opts(&self, key: &Path, bytes: PutPayload, options: PutOptions) -> Answer<PutResult> {
        self.note("PUT", key);
        let is_silent = self.silent_once.lock().take_if(|silent| silent == key).is_some();
        if is_silent || self.silent.lock().as_ref() == Some(key) {
            return std::future::pending().await;
        }
        self.store.put_opts(key, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Answer<Box<dyn MultipartUpload>> {
        self.note("PUT", key);
        self.store.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Answer<GetResult> {
        self.note("GET", key);
        self.store.get_opts(key, options).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Answer<Path>>) -> BoxStream<'static, Answer<Path>> {
        let requests = Arc::clone(&self.requests);
        self.store.delete_stream(keys.inspect_ok(move |key| note(&requests, "DELETE", key)).boxed())
    }

    fn list(&self, below: Option<&Path>) -> BoxStream<'static, Answer<ObjectMeta>> {
        self.note("LIST", below.unwrap_or(&Path::default()));
        self.store.list(below)
    }

    async fn list_with_delimiter(&self, below: Option<&Path>) -> Answer<ListResult> {
        self.note("LIST", below.unwrap_or(&Path::default()));
        self.store.list_with_delimiter(below).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Answer<()> {
        self.note("PUT", to);
        self.store.copy_opts(from, to, options).await
    }
}

/// The store of the test: a registry takes plain functions only.
fn counted() -> &'static Arc<Counted> {
    static COUNTED: OnceLock<Arc<Counted>> = OnceLock::new();
    COUNTED.get_or_init(Arc::default)
}

fn open(_: BackendUrl, runtime: Runtime) -> Reply<'static, Result<Arc<dyn Backend>>> {
    counted().open(runtime)
}

async fn connect(builder: ClientBuilder) -> Client {
    builder.connect(&Registry::new().with("counted", open), "counted:").await.expect("it opens")
}

/// The table of the page.
struct Costs(String);

impl Costs {
    fn read() -> Costs {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/backends/object.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        let costs = page.split("\n## What it costs\n").nth(1).expect("it has costs");
        Costs(costs.split("\n## ").next().unwrap_or_default().to_owned())
    }

    /// Compares the first number of each cell with what was requested since the last look.
    fn check(&self, action: &str) {
        let requests = counted().take();
        self.check_of(action, &requests);
    }

    fn check_of(&self, action: &str, requests: &[String]) {
        let start = format!("| {action} |");
        let row = self.0.lines().find_map(|line| line.strip_prefix(&start));
        let row = row.unwrap_or_else(|| panic!("the page has no line for `{action}`: {requests:?}"));
        let digits = |cell: &str| cell.trim().chars().take_while(char::is_ascii_digit).collect::<String>();
        let said: Vec<usize> = row.split('|').take(4).map(|cell| digits(cell).parse().unwrap_or(0)).collect();
        let count = |method: &str| requests.iter().filter(|noted| noted.starts_with(method)).count();
        let counted = ["GET", "PUT", "LIST", "DELETE"].map(count);
        assert_eq!(said, counted, "{action}: GET, PUT, LIST, DELETE; requested were {requests:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_says_what_the_engine_costs() {
    let (costs, store) = (Costs::read(), counted());
    let one = connect(Client::builder().ttl(LONG)).await;
    costs.check("connect, as the first client of a prefix");
    let two = connect(Client::builder().ttl(LONG)).await;
    costs.check("connect");

    let guard = one.mutex("lock").unwrap().lock().await.unwrap();
    costs.check("lock a free name");
    assert!(two.mutex("lock").unwrap().try_lock().await.unwrap().is_none());
    costs.check("try a lock that is held");
    assert_eq!(one.inspect("lock").await.unwrap().holders().count(), 1);
    costs.check("`fencepost show` of a name");
    assert_eq!(one.list("", &Page::default()).await.unwrap().resources.len(), 1);
    costs.check("`fencepost ls`");

    // A claim that waits, and gives up.
    let mutex = two.mutex("lock").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    let polls = || store.requests.lock().iter().filter(|noted| *noted == "GET locks").count() >= 3;
    eventually(SOON, "it looks again", || async { polls() }).await;
    let (begin, looks): (Vec<_>, Vec<_>) = {
        let noted = store.requests.lock();
        (noted[..2].to_vec(), noted[2..].to_vec())
    };
    assert_eq!(begin, ["GET locks", "PUT waiting"]);
    costs.check_of("begin to wait", &begin);
    assert!(looks.iter().all(|look| look == "GET locks"), "{looks:?}");
    costs.check_of("wait, for each pause", &looks[..1]);
    waiting.abort();
    eventually(SOON, "it leaves", || async { store.has("DELETE waiting") }).await;
    let ended: Vec<_> = store.take().into_iter().filter(|noted| noted != "GET locks").collect();
    costs.check_of("end a wait", &ended[1..]);

    guard.release().await.unwrap();
    costs.check("release");

    // A renewal. On a machine that stalls another one may have followed.
    let brief = connect(Client::builder().ttl(Duration::from_secs(3))).await;
    let guard = brief.mutex("brief").unwrap().lock().await.unwrap();
    store.take();
    eventually(SOON, "it is renewed", || async { !store.requests.lock().is_empty() }).await;
    costs.check_of("hold, for each third of the `ttl`", &store.take()[..1]);
    // On a machine that stalls it may be lost.
    drop(guard.release().await);

    // A lease that is not renewed.
    let guard = brief.mutex("fixed").unwrap().lock().no_renewal().await.unwrap();
    store.take();
    eventually(SOON, "it is read", || async { !store.requests.lock().is_empty() }).await;
    costs.check_of("hold a fixed lease, for each third of the `ttl`", &store.take()[..1]);
    drop(guard.release().await);
    store.take();

    // A run that is kept.
    let keeper = connect(Client::builder().ttl(LONG).history(LONG)).await;
    store.take();
    let guard = keeper.mutex("run").unwrap().lock().await.unwrap();
    costs.check("lock a free name, and keep its first run");
    guard.report(0);
    guard.release().await.unwrap();
    costs.check("release, and note how the run ended");
    for client in [one, two, brief, keeper] {
        client.close().await;
    }
}
