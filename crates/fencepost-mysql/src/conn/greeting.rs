//! The greeting of a connection: versions, TLS, the password.

use std::collections::HashMap;
use std::io;

use mysql_common::constants::{CapabilityFlags, UTF8MB4_GENERAL_CI};
use mysql_common::crypto;
use mysql_common::io::ParseBuf;
use mysql_common::packets::{
    AuthPlugin, AuthSwitchRequest, ErrPacket, HandshakePacket, HandshakeResponse, SslRequest,
};
use mysql_common::proto::MySerialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::Config;
use crate::conn::socket::{Security, Socket};

/// The longest packet of a greeting that is read.
const MAX_PACKET: usize = 64 * 1024;

/// The longest statement that this client sends.
const MAX_STATEMENT: u32 = 1 << 20;

/// The capabilities that this client uses. Without `CLIENT_DEPRECATE_EOF` both servers end rows alike.
const WANTED: CapabilityFlags = CapabilityFlags::CLIENT_PROTOCOL_41
    .union(CapabilityFlags::CLIENT_LONG_PASSWORD)
    .union(CapabilityFlags::CLIENT_TRANSACTIONS)
    .union(CapabilityFlags::CLIENT_SECURE_CONNECTION)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA)
    .union(CapabilityFlags::CLIENT_CONNECT_ATTRS)
    .union(CapabilityFlags::CLIENT_CONNECT_WITH_DB);

/// A connection that the server accepted.
pub(crate) struct Greeted {
    pub(crate) socket: Socket,
    pub(crate) capabilities: CapabilityFlags,
    /// The number of the session, as the server that greeted says. A pooler gives its own.
    pub(crate) id: u32,
    pub(crate) version: (u16, u16, u16),
    pub(crate) mariadb: bool,
}

/// Why a greeting failed.
pub(crate) enum Refused {
    /// The server said this.
    Server {
        code: u16,
        message: String,
    },
    /// The server asks for a way to prove the password that this client does not have.
    Method(String),
    /// The server has no TLS.
    NoTls,
    Io(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Io(error)
    }
}

/// Greets the server. `client` names the session for operators.
pub(crate) async fn greet(
    mut stream: TcpStream,
    host: &str,
    config: &Config,
    security: &Security,
    password: Option<&str>,
    client: &str,
) -> Result<Greeted, Refused> {
    let mut number = 0;
    let packet = receive(&mut stream, &mut number).await?;
    // Before the greeting is read, an error has no state.
    check(&packet, CapabilityFlags::empty())?;
    let greeting: HandshakePacket<'_> = ParseBuf(&packet).parse(())?;
    let mut nonce = greeting.scramble_1_ref().to_vec();
    nonce.extend_from_slice(greeting.scramble_2_ref().unwrap_or_default());
    nonce.resize(20, 0);
    let mut capabilities = greeting.capabilities() & WANTED;
    if security.is_tls() {
        if !greeting.capabilities().contains(CapabilityFlags::CLIENT_SSL) {
            return Err(Refused::NoTls);
        }
        capabilities.insert(CapabilityFlags::CLIENT_SSL);
    }
    let mariadb = greeting.maria_db_server_version_parsed();
    let version = mariadb.or_else(|| greeting.server_version_parsed()).unwrap_or((0, 0, 0));
    let plugin = match greeting.auth_plugin() {
        Some(AuthPlugin::CachingSha2Password) => AuthPlugin::CachingSha2Password,
        // The server asks for another one if the user has it.
        _ => AuthPlugin::MysqlNativePassword,
    };
    let id = greeting.connection_id();

    let mut payload = Vec::new();
    if security.is_tls() {
        SslRequest::new(capabilities, MAX_STATEMENT, UTF8MB4_GENERAL_CI as u8).serialize(&mut payload);
        send(&mut stream, &mut number, &payload).await?;
        payload.clear();
    }
    let mut socket = security.secure(stream, host).await?;
    let proof = plugin.gen_data(password, &nonce).map(|proof| bytes_of(&proof));
    let attributes = HashMap::from([("program_name".to_owned(), client.to_owned())]);
    HandshakeResponse::new(
        proof,
        version,
        Some(config.server.credentials.user.as_bytes()),
        Some(config.server.database.as_bytes()),
        Some(plugin.clone()),
        capabilities,
        Some(attributes),
        MAX_STATEMENT,
    )
    .serialize(&mut payload);
    send(&mut socket, &mut number, &payload).await?;
    let proving = Proving { password, secure: security.is_tls(), plugin: plugin.into_owned(), nonce };
    proving.finish(&mut socket, &mut number, capabilities).await?;
    Ok(Greeted { socket, capabilities, id, version, mariadb: mariadb.is_some() })
}

/// How the password is proved.
struct Proving<'a> {
    password: Option<&'a str>,
    secure: bool,
    plugin: AuthPlugin<'static>,
    nonce: Vec<u8>,
}

impl Proving<'_> {
    /// Answers the server's questions until it accepts the user.
    async fn finish(
        mut self,
        socket: &mut Socket,
        number: &mut u8,
        capabilities: CapabilityFlags,
    ) -> Result<(), Refused> {
        let mut switched = false;
        loop {
            let packet = receive(socket, number).await?;
            check(&packet, capabilities)?;
            match *packet {
                [0x00, ..] => return Ok(()),
                [0xfe, _, ..] if !switched => {
                    switched = true;
                    let asked: AuthSwitchRequest<'_> = ParseBuf(&packet).parse(())?;
                    self.nonce = asked.plugin_data().to_vec();
                    self.plugin = asked.auth_plugin().into_owned();
                    let proof = match &self.plugin {
                        AuthPlugin::CachingSha2Password
                        | AuthPlugin::MysqlNativePassword
                        | AuthPlugin::Ed25519 => self.plugin.gen_data(self.password, &self.nonce),
                        // The others send the password in clear, or hash it in a way that is broken.
                        other => {
                            return Err(Refused::Method(
                                String::from_utf8_lossy(other.as_bytes()).into_owned(),
                            ));
                        }
                    };
                    let proof = proof.map(|proof| bytes_of(&proof)).unwrap_or_default();
                    send(socket, number, &proof).await?;
                }
                // The server knows the password already.
                [0x01, 0x03, ..] => {}
                // The server wants the password itself.
                [0x01, 0x04, ..] if self.plugin == AuthPlugin::CachingSha2Password => {
                    let mut password = self.password.unwrap_or_default().as_bytes().to_vec();
                    password.push(0);
                    if !self.secure {
                        password = self.encrypted(socket, number, password, capabilities).await?;
                    }
                    send(socket, number, &password).await?;
                }
                _ => return Err(unexpected().into()),
            }
        }
    }

    /// Encrypts the password with the server's key, as the protocol asks for without TLS.
    async fn encrypted(
        &self,
        socket: &mut Socket,
        number: &mut u8,
        mut password: Vec<u8>,
        capabilities: CapabilityFlags,
    ) -> Result<Vec<u8>, Refused> {
        send(socket, number, &[0x02]).await?;
        let packet = receive(socket, number).await?;
        check(&packet, capabilities)?;
        let [0x01, key @ ..] = &*packet else { return Err(unexpected().into()) };
        // The library panics at another text.
        if !key.starts_with(b"-----BEGIN PUBLIC KEY-----") || self.nonce.is_empty() {
            return Err(unexpected().into());
        }
        for (byte, mask) in password.iter_mut().zip(self.nonce.iter().cycle()) {
            *byte ^= mask;
        }
        Ok(crypto::encrypt(&password, key))
    }
}

fn bytes_of(part: &impl MySerialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    part.serialize(&mut bytes);
    bytes
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an unexpected packet")
}

/// Fails if the packet is an error.
fn check(packet: &[u8], capabilities: CapabilityFlags) -> Result<(), Refused> {
    if packet.first() != Some(&0xff) {
        return Ok(());
    }
    match ParseBuf(packet).parse::<ErrPacket<'_>>(capabilities)? {
        ErrPacket::Error(error) => {
            Err(Refused::Server { code: error.error_code(), message: error.message_str().into_owned() })
        }
        ErrPacket::Progress(_) => Err(unexpected().into()),
    }
}

async fn receive(stream: &mut (impl AsyncRead + Unpin), number: &mut u8) -> io::Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let length = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
    if length > MAX_PACKET || head[3] != *number {
        return Err(unexpected());
    }
    *number = number.wrapping_add(1);
    let mut packet = vec![0; length];
    stream.read_exact(&mut packet).await?;
    Ok(packet)
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), number: &mut u8, payload: &[u8]) -> io::Result<()> {
    let mut packet = u32::try_from(payload.len()).map_err(io::Error::other)?.to_le_bytes().to_vec();
    packet[3] = *number;
    *number = number.wrapping_add(1);
    packet.extend_from_slice(payload);
    stream.write_all(&packet).await?;
    stream.flush().await
}
