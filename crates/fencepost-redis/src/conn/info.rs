//! The answer of INFO.

use std::collections::HashMap;

/// `name:value`, a line each.
pub(crate) fn fields(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}
