//! The texts of messages between clients. `NOTIFY` limits their length.

use std::fmt::Write;

use serde_json::{Value, json};

/// The longest content of a message, without the fields around it. The server's limit is 8,000 bytes.
const MAX_TEXT: usize = 7_500;

/// Returns a value as JSON in ASCII: a database in another encoding than UTF-8 refuses characters that it lacks.
pub(crate) fn text_of(value: &Value) -> String {
    let mut text = String::new();
    for char in value.to_string().chars() {
        if char.is_ascii() {
            text.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

/// Divides claims into contents of messages: whole claims, or a piece of a claim that is too long for one message.
pub(crate) fn divide(claims: Vec<Value>) -> Vec<Value> {
    let (mut parts, mut whole, mut length) = (Vec::new(), Vec::new(), 0);
    for claim in claims {
        let text = text_of(&claim);
        if length + text.len() >= MAX_TEXT && !whole.is_empty() {
            parts.push(json!({ "claims": std::mem::take(&mut whole) }));
            length = 0;
        }
        if text.len() < MAX_TEXT {
            length += text.len() + 1;
            whole.push(claim);
        } else {
            let pieces = pieces(&text);
            let last = pieces.len() - 1;
            let piece = |(at, piece)| json!({ "piece": piece, "end": at == last });
            parts.extend(pieces.into_iter().enumerate().map(piece));
        }
    }
    if !whole.is_empty() || parts.is_empty() {
        parts.push(json!({ "claims": whole }));
    }
    parts
}

/// Cuts JSON in ASCII into pieces, each of which fits into a message as a JSON string.
fn pieces(text: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut length) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        let encoded = if matches!(byte, b'"' | b'\\') { 2 } else { 1 };
        if length + encoded > MAX_TEXT {
            pieces.push(&text[start..at]);
            (start, length) = (at, 0);
        }
        length += encoded;
    }
    pieces.push(&text[start..]);
    pieces
}

/// Returns the claims in the parts of replies, which are in the order in which their clients sent them.
pub(crate) fn join(parts: &[Value]) -> Vec<Value> {
    let (mut claims, mut open) = (Vec::new(), String::new());
    let mut expected = None;
    for part in parts {
        let place = |next: u64| Some((part["client"].as_str()?, part["part"].as_u64()? + next));
        if let Some(piece) = part["piece"].as_str() {
            // Without the pieces before it, it is no claim.
            if expected != place(0) {
                open.clear();
            }
            open.push_str(piece);
            expected = place(1);
            if part["end"] == true {
                claims.extend(serde_json::from_str::<Value>(&open));
                open.clear();
            }
        }
        claims.extend(part["claims"].as_array().into_iter().flatten().cloned());
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(client: &str, claims: Vec<Value>) -> Vec<Value> {
        let parts = divide(claims);
        let number = |(number, mut part): (usize, Value)| {
            (part["client"], part["part"]) = (client.into(), number.into());
            let text = text_of(&part);
            assert!(text.is_ascii() && text.len() < 7_900, "{} bytes", text.len());
            serde_json::from_str(&text).unwrap()
        };
        parts.into_iter().enumerate().map(number).collect()
    }

    #[test]
    fn every_message_fits_and_the_claims_are_read_whole() {
        assert_eq!(join(&sent("one", Vec::new())), Vec::<Value>::new());
        for odd in ["x", "\"", "\\", "\u{1}", "\u{7f}", "ü", "日", "🦀"] {
            let claims: Vec<_> = [1, 700, 7_000, 10, 30_000, 3, 7_500, 7_470, 20]
                .map(|length| json!({ "record": odd.repeat(length) }))
                .into();
            let mut parts = sent("one", claims.clone());
            parts.extend(sent("two", claims.clone()));
            assert_eq!(join(&parts), [claims.clone(), claims].concat(), "{odd:?}");
        }
    }

    #[test]
    fn a_claim_without_one_of_its_pieces_is_left_out() {
        let claims = |text: &str| vec![json!(text.repeat(20_000)), json!(text)];
        let lost = |at: usize| {
            let mut parts = sent("one", claims("a"));
            parts.remove(at);
            parts.extend(sent("two", claims("b")));
            join(&parts)
        };
        for at in 0..3 {
            assert_eq!(lost(at), [vec![json!("a")], claims("b")].concat(), "without part {at}");
        }
    }
}
