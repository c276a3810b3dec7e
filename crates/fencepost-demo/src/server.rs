//! Private servers of Redis for the demos that need one. A demo never touches a server that it did not start.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisError, RedisResult};

use crate::PART;
use crate::clock::Clock;
use crate::stage::{Failure, Stage};

/// The programs that can be the server.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];
/// The name of the part that becomes a server.
pub(crate) const SERVER: &str = "server";
/// How long a server may take to start or to answer.
const LIMIT: Duration = Duration::from_secs(30);
/// How often a start is tried again, because another program has taken the port.
const TRIES: usize = 5;

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        Failure::new(format!("the demo's own Redis: {error}"))
    }
}

/// A server with no data on disk. It is killed when this is dropped, and when the demo is killed.
pub(crate) struct Server {
    child: Child,
    port: u16,
    program: PathBuf,
    folder: PathBuf,
    has_replica: bool,
}

impl Server {
    /// Starts a server on a free port of the loopback address.
    pub(crate) async fn start(stage: &Stage, options: &[&str]) -> Result<Server, Failure> {
        Server::start_with(stage, options, None).await
    }

    /// Starts a server that sees this clock.
    pub(crate) async fn start_with(
        stage: &Stage,
        options: &[&str],
        clock: Option<&Clock>,
    ) -> Result<Server, Failure> {
        let program = find()?;
        let folder = stage.folder().to_owned();
        let mut tries = 0;
        loop {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let child = spawn(&program, &folder, port, options, clock)?;
            let mut server =
                Server { child, port, program: program.clone(), folder: folder.clone(), has_replica: false };
            tries += 1;
            match server.await_answer().await {
                Ok(()) => return Ok(server),
                Err(failure) if tries == TRIES => return Err(failure),
                Err(_) => {}
            }
        }
    }

    /// Starts a replica of this server, and waits until it follows.
    pub(crate) async fn replica(&mut self, stage: &Stage) -> Result<Server, Failure> {
        let replica = Server::start(stage, &["--replicaof", &format!("127.0.0.1 {}", self.port)]).await?;
        let until = Instant::now() + LIMIT;
        while !replica.ask::<String>(&["INFO", "replication"]).await?.contains("master_link_status:up") {
            if Instant::now() >= until {
                return Err(Failure::new("the demo's own replica does not follow its master"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.has_replica = true;
        Ok(replica)
    }

    pub(crate) fn has_replica(&self) -> bool {
        self.has_replica
    }

    /// Cuts the replica off from its master: it follows a port where nobody answers. It keeps its data.
    pub(crate) async fn cut_off(&self) -> Result<(), Failure> {
        self.ask::<String>(&["REPLICAOF", "127.0.0.1", "1"]).await.map(drop)
    }

    /// Makes a master of the replica.
    pub(crate) async fn promote(&self) -> Result<(), Failure> {
        self.ask::<String>(&["REPLICAOF", "NO", "ONE"]).await.map(drop)
    }

    /// Kills the server and starts an empty one on the same port.
    pub(crate) async fn restart_empty(&mut self) -> Result<(), Failure> {
        self.kill();
        self.child = spawn(&self.program, &self.folder, self.port, &[], None)?;
        self.await_answer().await
    }

    /// Ends the server at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The server's URL.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::open(self.url())?)
    }

    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        connect(&self.client()?).await
    }

    /// Asks one command.
    pub(crate) async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, Failure> {
        Ok(command(words).query_async(&mut self.connect().await?).await?)
    }

    /// Counts the commands that the server has run, also those of scripts. Those that look and connect do not count.
    pub(crate) async fn commands(&self) -> Result<u64, Failure> {
        let text: String = self.ask(&["INFO", "commandstats"]).await?;
        let calls = text.lines().filter_map(|line| {
            let (name, values) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let ours =
                ["info", "ping", "hello", "client|setinfo", "client|setname", "select"].contains(&name);
            values.split(',').next()?.parse::<u64>().ok().filter(|_| !ours)
        });
        Ok(calls.sum())
    }

    async fn await_answer(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + LIMIT;
        loop {
            if self.child.try_wait()?.is_some() {
                return Err(Failure::new("the demo's own Redis ended at its start"));
            }
            // Another program may have taken the port: the server that answers must be ours.
            let ours = format!("process_id:{}\r\n", self.child.id());
            match self.ask::<String>(&["INFO", "server"]).await {
                Ok(info) if info.contains(&ours) => return Ok(()),
                _ if Instant::now() >= until => {
                    return Err(Failure::new("the demo's own Redis did not start in time"));
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Connects, and leaves a busy machine more time than the driver does.
pub(crate) async fn connect(client: &Client) -> Result<MultiplexedConnection, Failure> {
    let config = AsyncConnectionConfig::new();
    let config = config.set_connection_timeout(Some(LIMIT)).set_response_timeout(Some(LIMIT));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Makes a command.
pub(crate) fn command(words: &[&str]) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

/// Runs a script with one key.
pub(crate) async fn script<T: FromRedisValue>(
    connection: &MultiplexedConnection,
    text: &str,
    key: &str,
    arguments: &[&str],
) -> RedisResult<T> {
    let words = [&["EVAL", text, "1", key], arguments].concat();
    command(&words).query_async(&mut connection.clone()).await
}

/// Runs work that blocks beside the other work of this thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Failure::new(error.to_string()))?
}

/// Says that the servers of a `redlock:` URL have lost nothing, as an operator does: `fencepost doctor --init`.
pub(crate) async fn vouch(url: &str) -> Result<(), Failure> {
    let mut doctor = Command::new(std::env::current_exe()?);
    doctor.args(["doctor", "--init", "--yes"]).env("FENCEPOST_BACKEND", url);
    let said = blocking(move || Ok(doctor.stdin(Stdio::null()).output()?)).await?;
    // It also warns of servers without a password.
    if said.status.code().is_none_or(|code| code > 1) {
        let said = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        return Err(Failure::new(format!("the demo's own Redlock was not initialised: {said}")));
    }
    Ok(())
}

/// Finds the server's program.
fn find() -> Result<PathBuf, Failure> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&folders).flat_map(|folder| PROGRAMS.map(|name| folder.join(name)));
    found.find(|path| path.is_file()).ok_or_else(|| {
        Failure::new(
            "this demo starts a Redis of its own, and neither redis-server nor valkey-server is installed; install one, for example by \
             'apt-get install redis-server'",
        )
    })
}

/// Starts a part of the demo, which becomes the server. The kernel kills it with the demo, as every part.
fn spawn(
    program: &Path,
    folder: &Path,
    port: u16,
    options: &[&str],
    clock: Option<&Clock>,
) -> Result<Child, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(clock) = clock {
        clock.show_to(&mut command);
    }
    command.args([PART, SERVER]).arg(program).args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args([
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--repl-diskless-sync-delay",
        "0",
    ]);
    command.arg("--dir").arg(folder).args(options);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

/// Becomes the server.
pub(crate) fn part(arguments: &[String]) -> Result<(), Failure> {
    let (program, arguments) =
        arguments.split_first().ok_or_else(|| Failure::usage("a program is missing"))?;
    Err(Command::new(program).args(arguments).exec().into())
}
