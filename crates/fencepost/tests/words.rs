//! The names of other locks lead somewhere.

const PAGE: &str = include_str!("../../../docs/coming-from.md");
const README: &str = include_str!("../../../README.md");

#[test]
fn the_words_that_newcomers_look_for_are_headings() {
    let headings: Vec<_> = PAGE.lines().filter(|line| line.starts_with("## ")).collect();
    for word in [
        "flock",
        "watchdog",
        "SETNX",
        "tryLock",
        "ShedLock",
        "RLock",
        "RSemaphore",
        "InterProcessMutex",
        "kazoo",
        "consul lock",
        "etcdctl lock",
        "Redlock",
        "GET_LOCK",
        "systemd",
        "cron",
        "axum",
    ] {
        assert!(headings.iter().any(|heading| heading.contains(word)), "no heading has {word}");
    }
    let row = PAGE.lines().find(|line| line.contains("tryLock(3, 10, SECONDS)"));
    assert!(row.is_some_and(|row| row.contains("`try_lock().wait(3s).ttl(10s).no_renewal()`")), "{row:?}");
}

#[test]
fn the_first_screen_of_the_readme_leads_there_and_to_the_recipes() {
    let first: Vec<_> = README.lines().take(30).collect();
    for page in ["coming-from", "cron", "axum"] {
        let link = format!("(docs/{page}.md)");
        assert!(first.iter().any(|line| line.contains(&link)), "{link}: {first:#?}");
    }
}
