//! The machines that an engine's address reaches, and an address without its secrets.

use fencepost_core::BackendUrl;

/// The machines that can meet at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The engine's own: no other machine ever gets there.
    ThisMachine,
    /// A server, at addresses that mean this machine.
    LocalServer,
    /// A server that other machines can reach.
    ManyMachines,
}

/// Returns the reach of a URL. One that cannot be read is refused later, by its engine.
pub(crate) fn reach(url: &str) -> Reach {
    let Ok(url) = BackendUrl::parse(url) else { return Reach::ManyMachines };
    let scheme = &*url.scheme;
    if matches!(scheme, "sqlite" | "memory") {
        return Reach::ThisMachine;
    }
    let local = scheme.contains("unix") || (servers(&url.rest).all(is_local) && !url.rest.is_empty());
    if local { Reach::LocalServer } else { Reach::ManyMachines }
}

/// The servers of a list, each as `host:port`. Those of Redlock are URLs.
fn servers(rest: &str) -> impl Iterator<Item = &str> {
    rest.split(',').map(|server| {
        let server = server.split_once("//").map_or(server, |(_, server)| server);
        let server = server.rsplit_once('@').map_or(server, |(_, server)| server);
        server.split('/').next().unwrap_or_default()
    })
}

/// Whether this address means the machine that it is used on. Without a host, engines take `localhost` or refuse.
fn is_local(server: &str) -> bool {
    let Some((host, _)) = BackendUrl::server(server, 1) else { return false };
    let host = host.to_ascii_lowercase();
    let address = host.parse::<std::net::IpAddr>();
    host.is_empty()
        || host == "localhost"
        || host.ends_with(".localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// A URL without what may be secret: user and password, and options that are named like secrets.
pub(crate) fn redacted(url: &str) -> String {
    // From the last @ on: a password may hold any other sign.
    let url = match (url.find(':'), url.rfind('@')) {
        (Some(colon), Some(at)) if colon < at => {
            let after = &url[colon + 1..at];
            let slashes = if after.starts_with("//") { 2 } else { 0 };
            format!("{}***{}", &url[..colon + 1 + slashes], &url[at..])
        }
        _ => url.to_owned(),
    };
    let Some((address, options)) = url.split_once('?') else { return url };
    let options: Vec<String> = options.split('&').map(option).collect();
    format!("{address}?{}", options.join("&"))
}

/// An option of a URL, as it may be shown.
fn option(text: &str) -> String {
    let key = text.split('=').next().unwrap_or_default().to_ascii_lowercase();
    let named = ["pass", "secret", "token", "key", "user"].iter().any(|word| key.contains(word));
    let elsewhere = key.ends_with("_file") || key.ends_with("_env");
    if named && !elsewhere && text.contains('=') { format!("{key}=***") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_known() {
        for url in ["sqlite:/a.db", "SQLITE:a.db", "memory:"] {
            assert_eq!(reach(url), Reach::ThisMachine, "{url}");
        }
        for url in [
            "redis://127.0.0.1",
            "redis://LOCALHOST:6379/1",
            "redis://u:p%40@127.8.8.8:1?tls=no",
            "redis://[::1]:6379",
            "redis://[::ffff:127.0.0.1]",
            "redis+unix:/run/redis.sock",
            "etcd://localhost:2379,127.0.0.1:2380",
            "redlock:redis://127.0.0.1:1,redis://u:p@127.0.0.1:2",
            "zookeeper://my.localhost/chroot",
        ] {
            assert_eq!(reach(url), Reach::LocalServer, "{url}");
        }
        for url in [
            "redis://db",
            "redis://127.0.0.1@db",
            "redis://128.0.0.1",
            "etcd://localhost,b",
            "redlock:redis://127.0.0.1,redis://b",
            "redis://localhost.example.com",
            "nonsense",
        ] {
            assert_eq!(reach(url), Reach::ManyMachines, "{url}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for (url, shown) in [
            ("redis://ann:hunter2@db/1", "redis://***@db/1"),
            ("redis://:hun/ter@2@db", "redis://***@db"),
            ("redlock:redis://:hunter2@a,redis://:hunter2@b", "redlock:***@b"),
            ("redis://ann:hunter?2@db", "redis://***@db"),
            ("redis://db?password=hunter2&a=1", "redis://db?password=***&a=1"),
            ("redis://db?PASSWORD=hunter2", "redis://db?password=***"),
            ("redis://db?password_file=/run/pw", "redis://db?password_file=/run/pw"),
            ("sqlite:/a.db?durability=full", "sqlite:/a.db?durability=full"),
            ("etcd://a,b", "etcd://a,b"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}
