//! Just enough of SPDX licence expressions to ask whether one of the ways to take a package is allowed.

/// Whether the expression can be satisfied with licences from `allowed` alone.
///
/// `AND` binds closer than `OR`; `/`, which old packages write, means `OR`; a licence `WITH` an exception is one name.
pub(crate) fn satisfied(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut tokens: Vec<String> = Vec::new();
    let mut words = spaced.split_whitespace();
    while let Some(word) = words.next() {
        match (word, tokens.last_mut()) {
            ("WITH", Some(licence)) => {
                licence.push_str(" WITH ");
                licence.push_str(words.next().unwrap_or_default());
            }
            _ => tokens.push(word.to_owned()),
        }
    }
    let mut rest = tokens.as_slice();
    let satisfied = any(&mut rest, allowed);
    satisfied && rest.is_empty()
}

fn any(tokens: &mut &[String], allowed: &[String]) -> bool {
    let mut result = all(tokens, allowed);
    while tokens.first().is_some_and(|token| token == "OR") {
        *tokens = &tokens[1..];
        result |= all(tokens, allowed);
    }
    result
}

fn all(tokens: &mut &[String], allowed: &[String]) -> bool {
    let mut result = one(tokens, allowed);
    while tokens.first().is_some_and(|token| token == "AND") {
        *tokens = &tokens[1..];
        result &= one(tokens, allowed);
    }
    result
}

fn one(tokens: &mut &[String], allowed: &[String]) -> bool {
    let Some((first, rest)) = tokens.split_first() else { return false };
    *tokens = rest;
    if first != "(" {
        return allowed.contains(first);
    }
    let result = any(tokens, allowed);
    let closed = tokens.first().is_some_and(|token| token == ")");
    if closed {
        *tokens = &tokens[1..];
    }
    result && closed
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        let allowed: Vec<String> =
            ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(String::from).to_vec();
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
            "GPL-2.0 AND BSD OR MIT",
        ] {
            assert!(satisfied(good, &allowed), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-3.0 OR MIT) AND BSD", "", "(MIT", "GPL-2.0 WITH MIT"]
        {
            assert!(!satisfied(bad, &allowed), "{bad}");
        }
    }
}
