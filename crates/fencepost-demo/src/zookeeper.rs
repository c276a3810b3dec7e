//! A private ZooKeeper for the demo `herd`, and the waiters that all watch one node.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::{try_join, try_join_all};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::PART;
use crate::crowd::{Counted, Crowd, LIMIT, WORK};
use crate::server::SERVER;
use crate::stage::{Failure, Stage};

/// The server of Debian's package `libzookeeper-java`. Its manifest names most of what it needs.
const JARS: [&str; 6] =
    ["zookeeper", "slf4j-simple", "snappy-java", "netty-all", "netty-codec", "metrics-core"];
/// How many clients the waiters share.
const CLIENTS: usize = 10;
/// The node that stands for the lock.
const NODE: &str = "/fencepost-demo";

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(format!("the demo's own ZooKeeper: {error}"))
    }
}

/// A server. It is killed when this is dropped, and when the demo is killed.
pub(crate) struct ZooKeeper {
    child: Child,
    port: u16,
}

impl ZooKeeper {
    /// Starts a server on a free port of the loopback address. `None`: Java or its jars are not installed.
    pub(crate) async fn start(stage: &Stage) -> Result<Option<ZooKeeper>, Failure> {
        let jars = JARS.map(|name| format!("/usr/share/java/{name}.jar"));
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let java =
            std::env::split_paths(&folders).map(|folder| folder.join("java")).find(|path| path.is_file());
        let Some(java) = java.filter(|_| Path::new(&jars[0]).exists()) else { return Ok(None) };
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let (file, data) = (stage.folder().join("zoo.cfg"), stage.folder().join("zookeeper"));
        let settings = format!(
            "tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             maxClientCnxns=0\n4lw.commands.whitelist=mntr\n",
            data.display()
        );
        std::fs::write(&file, settings)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args([PART, SERVER]).arg(java).args(["-Xmx256m", "-XX:+UseSerialGC"]);
        // The data of the demo need not survive the machine.
        command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-Dzookeeper.forceSync=no"]);
        command.args(["-Dzookeeper.extendedTypesEnabled=true", "-cp", &jars.join(":")]);
        command.arg("org.apache.zookeeper.server.ZooKeeperServerMain").arg(file);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut server = ZooKeeper { child, port };
        let until = Instant::now() + LIMIT;
        while server.packets().await.is_err() {
            if server.child.try_wait()?.is_some() || Instant::now() >= until {
                return Err(Failure::new("the demo's own ZooKeeper does not start"));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(Some(server))
    }

    pub(crate) fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port)
    }

    /// The requests that the server has received.
    async fn packets(&self) -> Result<u64, Failure> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
        stream.write_all(b"mntr").await?;
        let mut text = String::new();
        // A server that starts accepts connections and is silent.
        let read = timeout(Duration::from_secs(5), stream.read_to_string(&mut text)).await;
        read.map_err(|_| Failure::new("the demo's own ZooKeeper is silent"))??;
        let line = text.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
        let count = line.and_then(|count| count.trim().parse().ok());
        count.ok_or_else(|| Failure::new("the demo's own ZooKeeper counts no packets"))
    }
}

impl Counted for ZooKeeper {
    async fn commands(&self) -> Result<u64, Failure> {
        self.packets().await
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Crowd {
    /// All waiters watch the node of the holder.
    pub(crate) async fn watch(&self, server: &ZooKeeper, waiters: usize) -> Result<(u64, Duration), Failure> {
        let address = format!("127.0.0.1:{}", server.port);
        let clients = try_join_all((0..CLIENTS).map(|_| Client::connect(&address))).await?;
        let first = &clients[0];
        if !create(first).await? {
            return Err(Failure::new("the demo's own ZooKeeper has the node already"));
        }
        let crowd = (0..waiters).map(|waiter| self.wait_for_node(&clients[waiter % CLIENTS]));
        let direction = async {
            self.until_all_wait(waiters).await?;
            self.measure(server, async { Ok(first.delete(NODE, None).await?) }).await
        };
        Ok(try_join(try_join_all(crowd), direction).await?.1)
    }

    async fn wait_for_node(&self, client: &Client) -> Result<(), Failure> {
        let mut was_refused = false;
        while self.goes_on() {
            self.tried();
            if create(client).await? {
                sleep(WORK).await;
                self.handed_over();
                client.delete(NODE, None).await?;
                continue;
            }
            let (node, watcher) = client.check_and_watch_stat(NODE).await?;
            if !was_refused {
                was_refused = true;
                self.refused();
            }
            if node.is_some() {
                // The last release of the round wakes all.
                let _ = timeout(LIMIT, watcher.changed()).await;
            }
        }
        Ok(())
    }
}

/// Makes the node, if there is none.
async fn create(client: &Client) -> Result<bool, Failure> {
    let mode = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    match client.create(NODE, b"", &mode).await {
        Ok(_) => Ok(true),
        Err(Error::NodeExists) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
