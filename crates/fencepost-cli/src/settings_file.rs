//! One file of settings. No message repeats a value: it may be a URL with a password.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use toml::Value;

use crate::duration;
use crate::exit::{CONFIG, Failure};

/// The backend's name for the file of this machine.
pub(crate) const LOCAL: &str = "local";

/// The keys that a file may have.
const KEYS: &str = "backend, across_hosts, label, ttl and [backends]";

/// The settings of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) backend: Option<String>,
    pub(crate) backends: BTreeMap<String, String>,
    pub(crate) across_hosts: Option<bool>,
    pub(crate) label: Option<String>,
    pub(crate) ttl: Option<Duration>,
}

/// Reads a file. `None`: there is none.
///
/// # Errors
///
/// It cannot be read, or breaks a rule.
pub(crate) fn read(path: &Path) -> Result<Option<File>, Failure> {
    let wrong = |what: String| Failure::new(CONFIG, format!("{}: {what}", path.display()));
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).map(Some).map_err(wrong),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(wrong(format!("the settings file cannot be read: {error}"))),
    }
}

/// Whether this can be the name of a backend: a URL has a colon.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
}

fn parse(text: &str) -> Result<File, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
        format!("line {} is not TOML; write KEY = \"VALUE\"", before.matches('\n').count() + 1)
    })?;
    let mut file = File::default();
    for (key, value) in table {
        match &*key {
            "backend" => file.backend = Some(string("backend", value)?),
            "label" => file.label = Some(string("label", value)?),
            "across_hosts" => {
                let value = value.as_bool().ok_or("across_hosts must be true or false, without quotes")?;
                file.across_hosts = Some(value);
            }
            "ttl" => {
                let ttl = duration::parse(&string("ttl", value)?);
                file.ttl = Some(ttl.map_err(|rule| format!("ttl: {rule}"))?);
            }
            "backends" => {
                let Value::Table(table) = value else {
                    return Err("[backends] must have a line for each backend: NAME = \"URL\"".to_owned());
                };
                for (name, url) in table {
                    if !is_name(&name) || name == LOCAL {
                        return Err(format!(
                            "{name:?} is not a valid backend name; use letters, digits, - and _, and not '{LOCAL}'"
                        ));
                    }
                    let url = string(&name, url)?;
                    file.backends.insert(name, url);
                }
            }
            _ => return Err(format!("unknown setting {key:?}; the settings are {KEYS}")),
        }
    }
    Ok(file)
}

/// A text that is not empty: an empty one was most likely not filled in.
fn string(key: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::String(_) => Err(format!("{key} is empty; set a value, or leave it out")),
        _ => Err(format!("{key} must be a text: {key} = \"VALUE\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_settings_are_read() {
        let text = "backend = \"prod\"\nacross_hosts = true\nlabel = \"web\"\nttl = \"1m\"\n\
                    [backends]\nprod = \"redis://a\"\n";
        let expected = File {
            backend: Some("prod".to_owned()),
            backends: BTreeMap::from([("prod".to_owned(), "redis://a".to_owned())]),
            across_hosts: Some(true),
            label: Some("web".to_owned()),
            ttl: Some(Duration::from_secs(60)),
        };
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("# nothing\n"), Ok(File::default()));
    }

    #[test]
    fn rubbish_is_refused_and_no_value_is_repeated() {
        for (text, why) in [
            ("bakend = \"hunter2\"", "unknown setting \"bakend\""),
            ("backend = 3", "backend must be a text"),
            ("backend = \"\"", "backend is empty"),
            ("backend = [\"hunter2\"]", "backend must be a text"),
            ("across_hosts = \"hunter2\"", "true or false"),
            ("ttl = \"30\"", "no unit"),
            ("ttl = 30", "ttl must be a text"),
            ("backends = \"hunter2\"", "a line for each backend"),
            ("[backends]\nlocal = \"redis://a\"", "not a valid backend name"),
            ("[backends]\n\"a b\" = \"redis://a\"", "not a valid backend name"),
            ("[backends]\na = { url = \"hunter2\" }", "a must be a text"),
            ("ttl = \"1m\"\nbackend = redis://:hunter2@a", "line 2 is not TOML"),
            ("ttl = \"1m\"\n\nttl = \"2m\"", "line 3 is not TOML"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn names_of_backends_have_no_colon() {
        assert!(is_name("prod") && is_name("eu-west_1"));
        assert!(!is_name("") && !is_name("a:b") && !is_name("a.b") && !is_name("memory:"));
    }
}
