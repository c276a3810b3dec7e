//! A lock's name as the name of a node.

/// Returns the name of the node of the lock `name`: one part of a path.
///
/// Characters with a meaning in paths, and those that ZooKeeper refuses, are percent-encoded as in a URL: `/` and `%`, a dot at the
/// beginning, control characters, private and special characters. `top`: the node is below ZooKeeper's root, where `zookeeper` is
/// ZooKeeper's own.
pub(crate) fn to_node(name: &str, top: bool) -> String {
    let mut node = String::with_capacity(name.len() + 8);
    let own = top && name == "zookeeper";
    for (at, c) in name.char_indices() {
        let first = at == 0 && (c == '.' || own);
        if first || matches!(c, '/' | '%') || is_forbidden(c) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                node.push_str(&format!("%{byte:02X}"));
            }
        } else {
            node.push(c);
        }
    }
    node
}

/// Returns the name of the lock that a node belongs to; `None`: it belongs to none, as one that begins with a dot.
pub(crate) fn from_node(node: &str, top: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(node.len());
    let mut rest = node.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    let name = String::from_utf8(bytes).ok()?;
    // One name has one node.
    (to_node(&name, top) == node).then_some(name)
}

/// Returns whether ZooKeeper refuses a character in a path (`PathUtils.validatePath`), or splits it: those beyond the first plane.
pub(crate) fn is_forbidden(c: char) -> bool {
    matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
        || c > '\u{ffff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_node() {
        for (name, node) in [
            ("stock", "stock"),
            ("stock/42", "stock%2F42"),
            ("100%", "100%25"),
            (".", "%2E"),
            ("..", "%2E."),
            (".fencepost", "%2Efencepost"),
            ("a.b", "a.b"),
            ("größe", "größe"),
            ("🦀", "%F0%9F%A6%80"),
            ("\u{e000}", "%EE%80%80"),
            ("a b", "a b"),
        ] {
            assert_eq!(to_node(name, false), node);
            assert_eq!(from_node(node, false).as_deref(), Some(name));
        }
        assert_eq!(to_node("zookeeper", true), "%7Aookeeper");
        assert_eq!(from_node("%7Aookeeper", true).as_deref(), Some("zookeeper"));
        assert_eq!(to_node("zookeeper", false), "zookeeper");
    }

    #[test]
    fn a_node_of_somebody_else_may_stand_for_no_lock() {
        for node in [".fencepost", "%2f", "%zz", "%", "%ff", "%41"] {
            assert_eq!(from_node(node, false), None, "{node}");
        }
        assert_eq!(from_node("zookeeper", true), None);
    }
}
