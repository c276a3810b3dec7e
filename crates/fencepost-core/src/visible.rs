//! Text that others chose, as it is shown to people.

/// Returns `text` for people: control characters, and characters that are invisible or turn the direction of text, are escaped as in
/// `\u{202e}`. Two names that look alike can be told apart so.
pub fn visible(text: &str) -> String {
    let hides = |c| {
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || hides(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn what_hides_or_turns_text_is_escaped() {
        assert_eq!(visible("größe/1 कि 日本"), "größe/1 कि 日本");
        assert_eq!(visible("pay\u{200b}roll\u{202e}x"), "pay\\u{200b}roll\\u{202e}x");
        assert_eq!(visible("a\x1b[2J\n"), "a\\u{1b}[2J\\u{a}");
    }
}
