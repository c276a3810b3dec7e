//! A lock service for tests: it listens in this program, behind a proxy, and can be killed and restarted.

// Not each test uses all of it.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use fencepost_core::sync::Mutex;
use fencepost_core::{Client, Registry};
use fencepost_server::{Options, bind, router, serve};
use fencepost_testkit::faults::{Fault, Faults};
use fencepost_testkit::server::{Proxy, free_port};
use tokio::runtime::{Builder, Runtime};

/// A service and the network before it. Clones share it.
#[derive(Clone)]
pub(crate) struct Service(Arc<Mutex<Inner>>);

struct Inner {
    /// The engine outlives the service.
    locks: Client,
    options: Options,
    address: SocketAddr,
    /// `None`: it was killed.
    runs: Option<Runtime>,
    proxy: Proxy,
}

impl Service {
    /// Starts a service in front of this engine.
    pub(crate) fn start(registry: &Registry, engine: &str) -> Service {
        let (registry, engine) = (registry.clone(), engine.to_owned());
        // The caller may be on a runtime of its own.
        let connected = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(Client::builder().connect(&registry, &engine))
        });
        Service::in_front_of(connected.join().expect("no panic").expect("the engine is there"))
    }

    /// Starts a service in front of the engine of this client.
    pub(crate) fn in_front_of(locks: Client) -> Service {
        Service::with(locks, Options::default())
    }

    /// Starts a service with these options.
    pub(crate) fn with(locks: Client, options: Options) -> Service {
        // A port that the system gives to no connection while the service is down.
        let port = free_port().expect("a port");
        let (address, runs) = run(&locks, ([127, 0, 0, 1], port).into(), &options);
        let proxy = Proxy::start(address).expect("a proxy");
        Service(Arc::new(Mutex::new(Inner { locks, options, address, runs: Some(runs), proxy })))
    }

    /// Returns its own address, past the proxy.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.lock().address
    }

    /// Returns its URL through the proxy.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.lock().proxy.address())
    }
}

fn run(locks: &Client, address: SocketAddr, options: &Options) -> (SocketAddr, Runtime) {
    let options = options.clone();
    let listener = bind(address, &options).expect("the port is free");
    let address = listener.local_addr().expect("it is bound");
    let router = router(locks.clone(), &options).expect("the engine has detached leases");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.spawn(async move { serve(router, listener, &options).await });
    (address, runtime)
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.runs.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Faults for Service {
    fn is_server(&self) -> bool {
        true
    }

    /// Ends all of its tasks and connections. Its places in queues are left, as the engine sees that a process is dead.
    fn kill(&mut self) -> Result<(), Fault> {
        let runs = self.0.lock().runs.take();
        // The port is free when all tasks have ended. The caller may be on a runtime of its own.
        let ended = std::thread::spawn(move || {
            runs.into_iter().for_each(|runs| runs.shutdown_timeout(std::time::Duration::from_secs(10)));
        });
        ended.join().expect("no panic");
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Fault> {
        let mut inner = self.0.lock();
        let (_, runs) = run(&inner.locks, inner.address, &inner.options);
        inner.runs = Some(runs);
        Ok(())
    }

    fn cut(&mut self) -> Result<(), Fault> {
        self.0.lock().proxy.cut()
    }

    fn refuse(&mut self) -> Result<(), Fault> {
        self.0.lock().proxy.refuse()
    }

    fn silence(&mut self) -> Result<(), Fault> {
        self.0.lock().proxy.silence()
    }

    fn delay(&mut self, by: std::time::Duration) -> Result<(), Fault> {
        self.0.lock().proxy.delay(by)
    }

    fn mend(&mut self) -> Result<(), Fault> {
        self.0.lock().proxy.mend()
    }
}
