//! The file of tokens, while the service runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use fencepost_server::Tokens;
use nix::unistd::{Uid, setfsuid};
use serde_json::json;

use crate::kit::{answer, get, pause, post};
use crate::rights::{Guarded, add, with, write};

#[tokio::test]
async fn changes_of_the_file_count_without_a_restart() {
    let service = Guarded::start().await;
    let first = service.token(&["read:"]);
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    let second = service.token(&["read:"]);
    assert_eq!(service.ask(&second, get("/v1/locks")).await.0, StatusCode::OK);
    let text = fs::read_to_string(&service.file).unwrap();
    assert!(!text.contains(&first) && !text.contains(&first[5..]), "the file has hashes");
    // A file with a fault, or none, leaves the tokens as they are.
    fs::write(&service.file, format!("{text}nonsense\n")).unwrap();
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    assert!(Tokens::read(&service.file).unwrap_err().to_string().contains("line 3"));
    fs::remove_file(&service.file).unwrap();
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    write(&service.file, text.lines().nth(1).unwrap());
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(service.ask(&second, get("/v1/locks")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_changed_file_that_cannot_be_read_once_is_read_again() {
    let service = Guarded::start().await;
    let token = service.token(&["read:"]);
    assert_eq!(service.ask(&token, get("/v1/locks")).await.0, StatusCode::OK);
    let mode = |mode| fs::Permissions::from_mode(mode);
    fs::set_permissions(service.file.parent().unwrap(), mode(0o755)).unwrap();
    write(&service.file, "");
    fs::set_permissions(&service.file, mode(0o000)).unwrap();
    // This thread opens files as another user. It serves the requests, too.
    setfsuid(Uid::from_raw(65_534));
    let unread = service.ask(&token, get("/v1/locks")).await.0;
    setfsuid(Uid::current());
    fs::set_permissions(&service.file, mode(0o600)).unwrap();
    assert_eq!(unread, StatusCode::OK, "the tokens stay as they were");
    assert_eq!(service.ask(&token, get("/v1/locks")).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_file_that_is_being_written_revokes_nobody() {
    let service = Guarded::start().await;
    let token = service.token(&["read:"]);
    assert_eq!(service.ask(&token, get("/v1/locks")).await.0, StatusCode::OK);
    let text = fs::read_to_string(&service.file).unwrap();
    // An editor empties the file first. If the machine stalls for a second, the file is finished.
    let emptied = Instant::now();
    fs::write(&service.file, "").unwrap();
    let status = service.ask(&token, get("/v1/locks")).await.0;
    assert!(status == StatusCode::OK || emptied.elapsed() >= Duration::from_secs(1), "{status}");
    fs::write(&service.file, &text).unwrap();
    assert_eq!(service.ask(&token, get("/v1/locks")).await.0, StatusCode::OK);
    write(&service.file, "");
    assert_eq!(service.ask(&token, get("/v1/locks")).await.0, StatusCode::UNAUTHORIZED);
}

/// Replaces the file by a rename. The new file has a time of its own, as a program that copies files gives it.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    let time = SystemTime::now() - Duration::from_millis(100);
    fs::File::options().write(true).open(&new).unwrap().set_modified(time).unwrap();
    fs::rename(&new, file).unwrap();
}

#[tokio::test]
async fn a_file_that_takes_the_place_of_the_old_one_revokes_at_once() {
    let service = Guarded::start().await;
    let (first, second) = (service.token(&["read:"]), add(&service.file, "ops", &["read:"], None, None));
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    let text = fs::read_to_string(&service.file).unwrap();
    replace(&service.file, text.lines().nth(1).unwrap());
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(service.ask(&second, get("/v1/locks")).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_file_that_is_written_all_the_time_revokes_within_a_second() {
    let service = Guarded::start().await;
    let (first, second) = (service.token(&["read:"]), add(&service.file, "ops", &["read:"], None, None));
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    let text = fs::read_to_string(&service.file).unwrap();
    let removed = Instant::now();
    let refused = async {
        loop {
            fs::write(&service.file, text.lines().nth(1).unwrap()).unwrap();
            if service.ask(&first, get("/v1/locks")).await.0 == StatusCode::UNAUTHORIZED {
                return;
            }
            assert_eq!(service.ask(&second, get("/v1/locks")).await.0, StatusCode::OK);
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), refused).await.expect("the token is revoked");
    assert!(removed.elapsed() >= Duration::from_secs(1), "somebody may be writing the file");
}

#[tokio::test]
async fn a_change_counts_that_keeps_the_size_and_the_time_of_the_file() {
    let service = Guarded::start().await;
    let first = service.token(&["read:"]);
    let text = fs::read_to_string(&service.file).unwrap();
    fs::write(&service.file, "").unwrap();
    let second = service.token(&["read:"]);
    let other = fs::read_to_string(&service.file).unwrap();
    assert_eq!(text.len(), other.len());
    // A time in the past: the service is sure that nobody writes the file.
    write(&service.file, &text);
    let time = fs::metadata(&service.file).unwrap().modified().unwrap();
    assert_eq!(service.ask(&first, get("/v1/locks")).await.0, StatusCode::OK);
    for (text, valid, not) in [(&other, &second, &first), (&text, &first, &second)] {
        fs::write(&service.file, text).unwrap();
        fs::File::options().write(true).open(&service.file).unwrap().set_modified(time).unwrap();
        assert_eq!(service.ask(not, get("/v1/locks")).await.0, StatusCode::UNAUTHORIZED);
        assert_eq!(service.ask(valid, get("/v1/locks")).await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn tokens_are_added_and_removed_by_a_new_file() {
    let service = Guarded::start().await;
    let first = service.token(&["read:"]);
    let text = fs::read_to_string(&service.file).unwrap();
    // An editor may leave out the end of the last line.
    fs::write(&service.file, text.trim_end()).unwrap();
    let second = add(&service.file, "ops", &["read:"], None, None);
    for token in [&first, &second] {
        assert_eq!(service.ask(token, get("/v1/locks")).await.0, StatusCode::OK);
    }
    fs::set_permissions(&service.file, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(Tokens::remove(&service.file, "ci").unwrap(), 1);
    assert_eq!(fs::metadata(&service.file).unwrap().permissions().mode() & 0o777, 0o640);
    let removed = async {
        while service.ask(&first, get("/v1/locks")).await.0 != StatusCode::UNAUTHORIZED {
            pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), removed).await.expect("the token is revoked");
    assert_eq!(service.ask(&second, get("/v1/locks")).await.0, StatusCode::OK);
    assert!(Tokens::remove(&service.file, "ci").unwrap_err().is_invalid());
    fs::set_permissions(&service.file, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(Tokens::read(&service.file).unwrap_err().to_string().contains("chmod"));
    fs::set_permissions(&service.file, fs::Permissions::from_mode(0o600)).unwrap();
    // Two commands at the same time do not lose a line.
    fs::write(service.file.with_file_name("tokens.jsonl.new"), "").unwrap();
    let refused = Tokens::remove(&service.file, "ops").unwrap_err();
    assert!(refused.is_configuration() && refused.to_string().contains("tokens.jsonl.new"), "{refused}");
}

#[tokio::test]
async fn a_token_limits_its_waiting_requests() {
    let service = Guarded::start().await;
    let limited = add(&service.file, "ci", &["acquire:"], None, Some(1));
    let other = service.token(&["acquire:"]);
    let request = |wait: &str| post("/v1/acquire", &json!({ "name": "a", "wait": wait }));
    assert_eq!(service.ask(&other, request("0s")).await.0, StatusCode::OK);
    let first = with(&limited, request("30s"));
    let router = service.router.clone();
    let waits = tokio::spawn(async move { answer(&router, first).await });
    let queued = async {
        while service.locks.inspect("a").await.unwrap().waiters().count() != 1 {
            pause().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), queued).await.unwrap();
    // The count outlives a change of the file.
    service.token(&["read:"]);
    let (status, problem) = service.ask(&limited, request("30s")).await;
    assert_eq!(
        (status, problem["code"].as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, Some("too-many-waiting"))
    );
    assert_eq!(service.ask(&limited, request("0s")).await.0, StatusCode::CONFLICT);
    assert_eq!(service.ask(&other, request("10ms")).await.0, StatusCode::CONFLICT);
    waits.abort();
    assert!(waits.await.is_err());
    assert_eq!(service.ask(&limited, request("10ms")).await.0, StatusCode::CONFLICT);
}

/// A pipe would make the service wait for its writer, and what was read from it once is gone.
#[tokio::test]
async fn a_file_that_is_a_pipe_is_refused_and_stops_nobody() {
    let service = Guarded::start().await;
    let token = service.token(&["read:"]);
    assert_eq!(service.ask(&token, get("/v1/locks")).await.0, StatusCode::OK);
    fs::remove_file(&service.file).unwrap();
    nix::unistd::mkfifo(&service.file, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert!(Tokens::read(&service.file).unwrap_err().to_string().contains("is no regular file"));
    assert_eq!(service.ask(&token, get("/v1/locks")).await.0, StatusCode::OK, "the tokens stay as they were");
}
