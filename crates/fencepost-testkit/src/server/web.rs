//! Web servers as proxies, configured by the lines that a page shows.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{Plan, Server};

/// A web server that can stand before a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebServer {
    /// nginx.
    Nginx,
    /// Apache's httpd.
    Apache,
}

impl WebServer {
    /// Starts the server as a proxy. `page` has the lines in a code block of the server's language, for a service at 127.0.0.1:7070; the
    /// address of the service takes the place of that one.
    ///
    /// # Errors
    /// Returns an error if the page has no such block, or with the end of the log if the server does not start.
    pub fn before(self, service: SocketAddr, page: &str) -> io::Result<Server> {
        let (name, fence) = match self {
            WebServer::Nginx => ("nginx", "```nginx\n"),
            WebServer::Apache => ("apache", "```apache\n"),
        };
        let block = page.split_once(fence).and_then(|(_, rest)| rest.split_once("```"));
        let Some((lines, _)) = block else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("the page has no lines for {name}")));
        };
        let lines = lines.replace("127.0.0.1:7070", &service.to_string());
        Server::start(Plan::new(name, move |port, dir| {
            let path = dir.join("conf");
            // A server without its configuration ends, and its log says why.
            let _ = fs::write(&path, self.configuration(port, dir, &lines));
            let mut command = match self {
                WebServer::Nginx => Command::new("/usr/sbin/nginx"),
                WebServer::Apache => Command::new("/usr/sbin/apache2"),
            };
            match self {
                WebServer::Nginx => command.arg("-p").arg(dir).arg("-e").arg("stderr").arg("-c").arg(path),
                WebServer::Apache => command.arg("-f").arg(path).arg("-DFOREGROUND"),
            };
            command
        }))
    }

    /// Makes a configuration of a server in this folder, with the lines that belong into the block of a host.
    fn configuration(self, port: u16, dir: &Path, lines: &str) -> String {
        let dir = dir.display();
        match self {
            WebServer::Nginx => {
                let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                    .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"))
                    .concat();
                format!(
                    "daemon off;\npid {dir}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
                     server {{\nlisten 127.0.0.1:{port};\n{lines}}}\n}}\n"
                )
            }
            WebServer::Apache => {
                let modules = ["mpm_event", "authz_core", "proxy", "proxy_http"]
                    .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
                    .concat();
                format!(
                    "ServerRoot {dir}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {dir}/pid\nErrorLog /dev/stderr\n\
                     {modules}User nobody\nGroup nogroup\n{lines}"
                )
            }
        }
    }
}
