//! The conformance suite on Azurite, a server with the protocol and the conditions of Azure Blob Storage.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fencepost_core::sync::Mutex;
use fencepost_core::{Backend, BackendUrl, Registry, Result, Runtime};
use fencepost_testkit::conformance::{Elsewhere, Fixture, Fut, Holder, Namespace, hold_elsewhere as hold};
use fencepost_testkit::faults::{Fault, Faults};
use fencepost_testkit::needs::{AZURITE, Program};
use fencepost_testkit::server::{Plan, Proxied, Server, Standalone};
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpRequest, HttpRequestBody};

/// The account and the key that each Azurite has. They are no secret.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running Azurite with the container `locks`.
struct Azurite(Server);

impl Standalone for Azurite {
    type Config = ();

    fn start((): &()) -> io::Result<Azurite> {
        let mut plan = Plan::new("azurite", |port, dir| {
            let mut command = Command::new(AZURITE.program("azurite-blob"));
            command.arg("--blobHost").arg("127.0.0.1").arg("--blobPort").arg(port.to_string());
            command.arg("--location").arg(dir).args([
                "--silent",
                "--skipApiVersionCheck",
                "--disableTelemetry",
            ]);
            command
        });
        plan.ready = Box::new(|port, dir| {
            // Written before its first client, which reads it.
            std::fs::write(secret(dir), KEY).is_ok() && make_container(port).unwrap_or(false)
        });
        // A program in JavaScript takes seconds to start, and a minute while others are compiled.
        plan.patience = Duration::from_secs(180);
        Ok(Azurite(Server::start(plan)?))
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn url_at(&self, address: SocketAddr) -> String {
        let secret = secret(self.0.dir());
        format!(
            "az://locks?account={ACCOUNT}&endpoint=http://{address}/{ACCOUNT}&secret_file={}",
            secret.display()
        )
    }
}

fn secret(dir: &Path) -> PathBuf {
    dir.join("account-key")
}

/// Makes the container, if it is not there.
fn make_container(port: u16) -> io::Result<bool> {
    let address = format!("127.0.0.1:{port}");
    let mut stream = TcpStream::connect(&address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let path = format!("/{ACCOUNT}/locks?restype=container");
    let request = http::Request::put(format!("http://{address}{path}")).header("content-length", "0");
    let mut request: HttpRequest = request.body(HttpRequestBody::empty()).map_err(io::Error::other)?;
    let key = AzureAccessKey::try_new(KEY).map_err(io::Error::other)?;
    AzureAuthorizer::new(&AzureCredential::AccessKey(key), ACCOUNT)
        .try_authorize(&mut request)
        .map_err(io::Error::other)?;
    let mut text = format!("PUT {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\r\n", value.to_str().map_err(io::Error::other)?);
    }
    stream.write_all(format!("{text}\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    // Made now, or made before a restart.
    Ok(answer.starts_with("HTTP/1.1 201") || answer.starts_with("HTTP/1.1 409"))
}

impl Faults for Azurite {
    fn is_server(&self) -> bool {
        true
    }

    fn kill(&mut self) -> Result<(), Fault> {
        // It writes its tables each 5 s, and a SIGKILL loses what it has answered since then: an object, or where the bytes of one are. A
        // store in production loses nothing of that, so both tables are waited for. The holders' renewals change them.
        let began = SystemTime::now();
        let tables = ["__azurite_db_blob__.json", "__azurite_db_blob_extent__.json"];
        let tables = tables.map(|table| self.0.dir().join(table));
        let is_new = |table: &PathBuf| {
            table.metadata().and_then(|file| file.modified()).is_ok_and(|written| written > began)
        };
        let written = || tables.iter().all(is_new);
        let limit = Instant::now() + Duration::from_secs(15);
        while !written() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.kill()
    }

    fn restart(&mut self) -> Result<(), Fault> {
        self.0.restart()
    }

    fn stop(&mut self) -> Result<(), Fault> {
        self.0.stop()
    }

    fn cont(&mut self) -> Result<(), Fault> {
        self.0.cont()
    }
}

/// The keys of one case. A server that a passed case has not disturbed serves the next one, which spares a start.
struct Place {
    server: Proxied<Azurite>,
    prefix: String,
    passed: AtomicBool,
    disturbed: AtomicBool,
}

static SPARES: Mutex<Vec<Proxied<Azurite>>> = Mutex::new(Vec::new());

impl Place {
    fn next() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let spare = SPARES.lock().pop();
        let server = spare.unwrap_or_else(|| Proxied::start(&()).expect("a server starts"));
        let prefix = format!("case{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Place { server, prefix, passed: AtomicBool::default(), disturbed: AtomicBool::default() }
    }

    fn url(&self, whole: &str) -> String {
        whole.replacen("az://locks?", &format!("az://locks/{}?", self.prefix), 1)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.passed.load(Ordering::Relaxed) && !self.disturbed.load(Ordering::Relaxed) {
            SPARES.lock().push(self.server.clone());
        }
    }
}

struct OnAzurite;

impl Fixture for OnAzurite {
    fn needs(&self) -> &'static [Program] {
        &[AZURITE]
    }

    fn page_row(&self) -> Option<&'static str> {
        Some("object stores")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        Box::pin(async { Box::new(Place::next()) as Box<dyn Namespace> })
    }
}

fn registry() -> Registry {
    fencepost_object::register(Registry::new())
}

impl Namespace for Place {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let address = BackendUrl::parse(&self.url(&self.server.url())).expect("the URL is sound");
        Box::pin(fencepost_object::open(address, runtime))
    }

    fn faults(&self) -> Option<Box<dyn Faults>> {
        self.disturbed.store(true, Ordering::Relaxed);
        Some(Box::new(self.server.clone()))
    }

    fn passed(&self) {
        self.passed.store(true, Ordering::Relaxed);
    }

    fn elsewhere(&self, name: &str, ttl: Duration) -> Option<Box<dyn Elsewhere>> {
        Some(Box::new(Holder::start(&self.url(&self.server.direct_url()), name, ttl)))
    }

    fn crash_bound(&self, ttl: Duration) -> Duration {
        // The one who waits begins to count when it first sees the last renewal, and adds a margin.
        2 * ttl + Duration::from_secs(2)
    }
}

/// The part of the other process. In this process it does nothing.
#[test]
fn hold_elsewhere() {
    hold(&registry());
}

// There are exclusive locks alone, in no order. The server's clock ends no lease, and it is never full.
fencepost_testkit::conformance!(OnAzurite, excused: [
    an_unfair_reader_passes_a_writer,
    an_unfair_claim_for_few_permits_passes_one_for_many,
    an_unfair_claim_that_does_not_fit_waits_in_order,
    no_unfair_claim_passes_an_upgrade,
    a_stored_limit_counts_for_all_clients,
    a_greater_limit_admits_waiters_at_once,
    a_smaller_limit_takes_no_permits_away,
    a_claim_over_the_limit_is_refused_and_blocks_nobody,
    limits_change_under_load,
    a_reader_upgrades,
    an_upgrade_goes_before_all_that_wait,
    a_second_upgrade_is_refused,
    an_upgrade_given_up_leaves_a_reader,
    an_upgrader_that_is_gone_frees,
    a_downgrade_lets_readers_in,
    upgrades_on_a_bad_network,
    a_permit_in_line_is_not_overtaken,
    a_small_claim_waits_behind_a_large_one,
    a_waiting_writer_is_not_overtaken,
    a_reader_that_waits_cannot_be_taken_up,
    a_latch_opens_with_its_last_count,
    a_count_under_way_opens_nothing,
    members_enter_and_leave_together,
    a_dead_member_holds_nobody_up,
    first_come_first_served,
    mixed_modes,
    a_clock_set_back_keeps_no_dead_holder,
    permits,
    readers_go_together,
    shared,
]);
