//! The errors of this engine, and the advice that each of them gives.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind};
use redis::{RedisError, ServerError, ServerErrorKind, Value};

/// The engine's name in errors.
pub(crate) const ENGINE: &str = "redis";

/// Makes an error of this engine.
pub(crate) fn redis_error(kind: ErrorKind, message: impl Into<String>) -> Error {
    Error::new(kind, message).on(ENGINE)
}

/// The outcome of a request.
pub(crate) enum Answer {
    /// A value that is no error.
    Value(Value),
    /// The server does not know the script (any more).
    NoScript,
    /// The server cannot now; it should be asked again soon.
    Later(Error),
    /// The server is a replica, or has become one.
    ReadOnly,
    /// The slot is at another node for good, or for this request.
    Elsewhere { to: String, once: bool },
    /// The keys of a slot are on two nodes while it moves.
    Divided,
    /// The connection is of no use any more, before an answer came.
    Lost(Error),
    /// The value at the key is not a hash, so it is not a lock.
    Foreign(Error),
    /// Refused.
    Failed(Error),
}

impl Answer {
    /// Reads what came back from the server at `address`.
    pub(crate) fn of(result: redis::RedisResult<Value>, address: &str) -> Answer {
        match result {
            Ok(Value::ServerError(error)) => Answer::refusal(&error, address),
            Ok(value) => Answer::Value(value),
            // Whatever else fails is the connection.
            Err(error) if error.kind() == redis::ErrorKind::Parse => Answer::Lost(strange(address)),
            Err(_) => Answer::Lost(broken(address)),
        }
    }

    fn refusal(error: &ServerError, address: &str) -> Answer {
        let detail = error.details().unwrap_or_default();
        let to = || detail.split_ascii_whitespace().nth(1).unwrap_or_default().to_owned();
        match error.kind() {
            Some(ServerErrorKind::NoScript) => Answer::NoScript,
            Some(ServerErrorKind::ReadOnly) => Answer::ReadOnly,
            Some(ServerErrorKind::Moved) => Answer::Elsewhere { to: to(), once: false },
            Some(ServerErrorKind::Ask) => Answer::Elsewhere { to: to(), once: true },
            Some(ServerErrorKind::TryAgain) => Answer::Divided,
            Some(
                ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown,
            ) => Answer::Later(refused(error.code(), detail, address)),
            // Before 7.0 a script reports the errors of its commands as text.
            Some(ServerErrorKind::ResponseError) if detail.contains("-READONLY ") => Answer::ReadOnly,
            // It stopped being a master while WAIT waited: what stands before that took effect there.
            _ if error.code() == "UNBLOCKED" => Answer::Lost(refused(error.code(), detail, address)),
            _ if matches!(error.code(), "BUSY" | "NOREPLICAS") => {
                Answer::Later(refused(error.code(), detail, address))
            }
            _ if error.code() == "WRONGTYPE" || detail.contains("WRONGTYPE") => {
                Answer::Foreign(refused(error.code(), detail, address))
            }
            _ => Answer::Failed(refused(error.code(), detail, address)),
        }
    }
}

/// Words for a server's refusal.
fn refused(code: &str, detail: &str, address: &str) -> Error {
    // It repeats what it did not understand: a password, where that is the command of a login.
    let detail = detail.split(", with args").next().unwrap_or_default();
    let failure = match code {
        "OOM" => full(address),
        "ERR" if detail.contains("OOM command not allowed") => full(address),
        _ if is_of_others(code, detail) => {
            redis_error(ErrorKind::Configuration, format!("{address} {NO_LOCK}"))
        }
        "ERR" if detail.starts_with("unknown command") => unknown(detail, address),
        // Redis 7.0 and newer report a denied command of a script this way; older versions report NOPERM.
        "ERR" if detail.contains("can't run this command") || detail.contains("NOPERM") => denied(address),
        "NOAUTH" => redis_error(
            ErrorKind::Denied,
            format!(
                "{address} wants a password; write :password@host, or password_file=/path or password_env=NAME"
            ),
        ),
        "WRONGPASS" => {
            redis_error(ErrorKind::Denied, format!("{address} does not know this user and password"))
        }
        "NOPERM" => denied(address),
        "LOADING" => {
            redis_error(ErrorKind::Unreachable, format!("{address} is still loading its data; try again"))
        }
        "BUSY" => redis_error(
            ErrorKind::Unreachable,
            format!(
                "{address} has been busy with somebody's script for long; try again, or end it by SCRIPT KILL"
            ),
        ),
        "CLUSTERDOWN" => redis_error(
            ErrorKind::Unreachable,
            format!("{address} says that the cluster is down; look at CLUSTER INFO"),
        ),
        "MASTERDOWN" => redis_error(
            ErrorKind::Unreachable,
            format!("{address} is a replica that has lost its master; try again"),
        ),
        "NOREPLICAS" => redis_error(
            ErrorKind::Unreachable,
            format!("{address} takes no writes while it has fewer good replicas than min-replicas-to-write"),
        ),
        "MISCONF" => unsaved(address),
        // Before 7.0 a script says it in its own words.
        "ERR" if detail.contains("-MISCONF ") => unsaved(address),
        "ERR" if detail.contains("max number of clients") => redis_error(
            ErrorKind::Unreachable,
            format!("{address} has as many clients as its maxclients lets in"),
        ),
        "UNBLOCKED" => redis_error(
            ErrorKind::Unreachable,
            format!("{address} stopped waiting for its replicas; it may have become one; try again"),
        ),
        _ => redis_error(ErrorKind::Internal, format!("{address} refused a request")),
    };
    failure.because(format!("{code} {detail}"))
}

/// Said of a key at which something else stands than a lock.
const NO_LOCK: &str = "has something else at the key of this lock, or a lock of another version; let nobody else use keys of \
                       this prefix, or choose one by prefix=";

/// Does a script stumble over what it finds at its key?
fn is_of_others(code: &str, detail: &str) -> bool {
    code == "WRONGTYPE"
        || code == "ERR"
            && (detail.contains("WRONGTYPE")
                || detail.contains("FENCEPOST layout")
                || detail.contains("bad argument") && detail.contains("unpack"))
}

/// Reports that the value at a lock's key is not a lock.
pub(crate) fn foreign(error: &ServerError) -> Error {
    redis_error(ErrorKind::Configuration, format!("the server {NO_LOCK}")).because(format!(
        "{} {}",
        error.code(),
        error.details().unwrap_or_default()
    ))
}

/// It is a hash, and not of a lock.
pub(crate) fn unreadable() -> Error {
    redis_error(ErrorKind::Configuration, format!("the server {NO_LOCK}"))
}

fn denied(address: &str) -> Error {
    redis_error(
        ErrorKind::Denied,
        format!(
            "{address} does not let this user do that; he needs the keys and channels of the prefix and the commands \
             of docs/backends/redis.md"
        ),
    )
}

/// The server does not know a command.
fn unknown(detail: &str, address: &str) -> Error {
    if detail.contains("HELLO") {
        return old(address);
    }
    let what = if detail.contains("SENTINEL") {
        "is no sentinel; a single server is redis:"
    } else {
        "does not know a command that locks need; is it Redis, and not a sentinel, and is none renamed?"
    };
    redis_error(ErrorKind::Configuration, format!("{address} {what}"))
}

/// It has no place to write its data down.
fn unsaved(address: &str) -> Error {
    redis_error(
        ErrorKind::Configuration,
        format!("{address} takes no writes because it cannot save its data; look at its log and its disk"),
    )
    .transient(true)
}

fn full(address: &str) -> Error {
    redis_error(
        ErrorKind::Configuration,
        format!("{address} has no memory left for new locks; raise its maxmemory, or remove other data"),
    )
    .transient(true)
}

/// The server stayed a replica.
pub(crate) fn read_only(address: &str) -> Error {
    redis_error(
        ErrorKind::Configuration,
        format!("{address} is a replica and takes no writes; name the master, or use redis+sentinel:"),
    )
    .transient(true)
}

/// The sentinels name a server that is a replica.
pub(crate) fn demoted(server: &str, master: &str) -> Error {
    redis_error(
        ErrorKind::Configuration,
        format!(
            "the sentinels name {server} as {master}, but it is a replica and takes no writes; if another server was promoted by \
             hand, undo that and use SENTINEL FAILOVER, so that the sentinels know of it"
        ),
    )
    .transient(true)
}

/// The server is a node of a cluster.
pub(crate) fn elsewhere(address: &str) -> Error {
    redis_error(ErrorKind::Configuration, format!("{address} is a node of a cluster; use redis+cluster:"))
}

/// Too few replicas had what was written in time.
pub(crate) fn too_few(copies: u32, replicas: u32, time: Duration) -> Error {
    redis_error(
        ErrorKind::Unreachable,
        format!(
            "only {copies} of the {replicas} replicas that were asked for had it within {time:?}; look at INFO replication of \
             the master, or ask for fewer"
        ),
    )
}

/// No answer within the time that a call has.
pub(crate) fn silent(address: &str) -> Error {
    redis_error(ErrorKind::Unreachable, format!("{address} did not answer in time; try again"))
}

/// Too many wait for replicas.
pub(crate) fn crowded(address: &str) -> Error {
    redis_error(
        ErrorKind::Unreachable,
        format!("too many requests wait for the replicas of {address}; look at INFO replication there"),
    )
}

/// The keys of a slot are on two nodes.
pub(crate) fn moving() -> Error {
    redis_error(ErrorKind::Unreachable, "a slot of the cluster is moving to another node; try again")
}

/// The connection broke under a request.
pub(crate) fn broken(address: &str) -> Error {
    redis_error(ErrorKind::Unreachable, format!("the connection to {address} broke; try again"))
}

/// The reply cannot be read. The driver cannot read an error that repeats our binary arguments, as that for an unknown command.
fn strange(address: &str) -> Error {
    redis_error(
        ErrorKind::Configuration,
        format!("{address} does not answer as Redis does; is it a sentinel, a proxy, or was EVALSHA renamed there?"),
    )
    .transient(true)
}

/// The client was closed.
pub(crate) fn closed() -> Error {
    redis_error(ErrorKind::Closed, Error::CLOSED)
}

/// Words for what happened while the connection was made.
pub(crate) fn handshake(error: &RedisError, address: &str) -> Error {
    let code = error.code().unwrap_or_default();
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        redis::ErrorKind::RESP3NotSupported => old(address),
        redis::ErrorKind::Server(ServerErrorKind::ResponseError) if detail.contains("DB index") => {
            redis_error(ErrorKind::Configuration, format!("{address} has no database of this number"))
        }
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension if code == "NOPROTO" => old(address),
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => refused(code, detail, address),
        redis::ErrorKind::AuthenticationFailed => refused("WRONGPASS", detail, address),
        redis::ErrorKind::Parse => redis_error(
            ErrorKind::Configuration,
            format!(
                "{address} does not speak as Redis does; look at the port, and whether it wants TLS (rediss:)"
            ),
        )
        .because(error.to_string()),
        _ => redis_error(
            ErrorKind::Unreachable,
            format!("{address} closed the connection; try again, and look whether it wants TLS (rediss:)"),
        )
        .because(error.to_string()),
    }
}

fn old(address: &str) -> Error {
    redis_error(
        ErrorKind::Configuration,
        format!("{address} is too old: Redis 6.0 or newer is needed, for its protocol RESP3"),
    )
}

#[cfg(test)]
mod tests;
