//! Names that some engine might confuse, cut or refuse.

use crate::conformance::Stage;
use crate::conformance::stage::lock;
use crate::history::Mode;

pub(super) async fn odd_names(stage: Stage) {
    let client = stage.client().await;
    let long: String = "long/".repeat(51);
    let long_too = format!("{}x", &long[..254]);
    let umlauts = "ü".repeat(127);
    let names = [
        // One is a prefix of the other, or its parent folder.
        "a",
        "a/b",
        "a/b/c",
        "a/",
        "/a",
        "//",
        "a//b",
        // Special folders and files.
        ".",
        "..",
        "../a",
        "a/..",
        "con",
        "~",
        // Case, composed and decomposed accents, width.
        "A",
        "ä",
        "Ä",
        "a\u{308}",
        "ａ",
        "ss",
        "ß",
        // Hash tags, patterns, quotes, escapes, comments.
        "{a}",
        "{a}b",
        "a{}",
        "*",
        "?",
        "[a]",
        "%",
        "_",
        "a%",
        "a_",
        "'",
        "\"",
        "`",
        "\\",
        "a'; drop table locks; --",
        "$1",
        ":a",
        "@",
        "#",
        "a b",
        "a:b",
        "a.b",
        "a=b&c",
        "http://example.org/a?b#c",
        // Characters of several bytes, and characters outside the basic plane.
        "日本語",
        "🦀",
        "🦀/🦀",
        "עברית",
        // The longest names, which differ in their last byte alone.
        &long,
        &long_too,
        &umlauts,
        // Numbers that look alike.
        "1",
        "01",
        "1.0",
        "-1",
        "0x1",
        "null",
        "NULL",
        "true",
    ];
    let mut guards = Vec::new();
    for name in names {
        // All of them at once: two names that the engine confuses would block each other.
        let mutex = client.mutex(name).expect("a good name");
        let guard = mutex.try_lock().await.expect("a good name");
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is mixed up with another name")));
    }
    let other = stage.client().await;
    for name in names {
        let mutex = other.mutex(name).expect("a good name");
        assert!(mutex.try_lock().await.expect("a good name").is_none(), "{name:?} was granted twice");
        if other.capabilities().inspect {
            let info = other.inspect(name).await.expect("the engine can look");
            assert_eq!((info.name.as_str(), info.holders().count()), (name, 1), "{info:?}");
        }
    }
    for guard in guards {
        guard.release().await.expect("it was held");
    }
}

pub(super) async fn bad_names(stage: Stage) {
    let client = stage.client().await;
    for name in ["", " ", " a", "a ", "a\n", "a\0b", "\u{7f}", "a\u{a0}", &"x".repeat(256), &"ü".repeat(128)]
    {
        let error = client.mutex(name).expect_err("a bad name");
        assert!(error.is_invalid(), "{name:?}: {error}");
    }
    // The engine must not refuse a name that the rules allow.
    lock(&client, &"x".repeat(255), Mode::Exclusive)
        .await
        .expect("a good name")
        .release()
        .await
        .expect("it was held");
}
