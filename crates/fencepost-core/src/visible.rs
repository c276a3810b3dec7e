//! Text that others chose, as it is shown to people.

/// Returns `text` for people: control characters, and characters that are invisible or turn the direction of text, are escaped as in
/// `\u{202e}`. Two names that look alike can be told apart so.
pub fn visible(text: &str) -> String {
    let hides = |c| {
        // Unicode's Default_Ignorable_Code_Point, and the separators, annotations and the blank of Braille.
        matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
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
        for hidden in "\u{34f}\u{1160}\u{115f}\u{3164}\u{ffa0}\u{2800}\u{fe0f}".chars() {
            assert_ne!(visible(&hidden.to_string()), hidden.to_string());
        }
    }
}
