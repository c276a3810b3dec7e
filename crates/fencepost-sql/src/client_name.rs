//! The names of a client's connections.

use fencepost_core::Runtime;

/// PostgreSQL shows this much of a name.
const MAX_BYTES: usize = 63;

/// Returns the name that tells a client from others: `fencepost_` and its number.
pub fn client_name(runtime: &Runtime) -> String {
    format!("fencepost_{:016x}", runtime.client())
}

/// Returns the name of a client's connections, for administrators of the server: that of [`client_name`], a space, and the client's
/// label. Only the end of a long label is in it, because `user@host/program` ends with the program. PostgreSQL shows ASCII alone.
pub fn connection_name(runtime: &Runtime) -> String {
    let name = client_name(runtime);
    let printed = runtime.label().chars().filter(|char| !char.is_control());
    let label: Vec<char> = printed.map(|char| if char.is_ascii() { char } else { '?' }).collect();
    let end = label.len().saturating_sub(MAX_BYTES - name.len() - 1);
    format!("{name} {}", label[end..].iter().collect::<String>())
}
