use super::*;

/// The server's reply.
fn said(line: &str) -> Value {
    redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("an error is a value")
}

fn answer(line: &str) -> Answer {
    Answer::of(Ok(said(line)), "server")
}

#[test]
fn a_master_that_becomes_a_replica_under_wait_has_not_refused() {
    let answer = answer(
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    );
    let Answer::Lost(failure) = answer else { panic!("what stood before WAIT may have taken effect") };
    assert!(failure.is_unreachable() && failure.is_transient());
}

#[test]
fn what_a_server_cannot_save_is_said_the_same_way_before_7_0() {
    for line in [
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "ERR Error running script (call to f_12): @user_script:1: @user_script: 1: -MISCONF Redis is configured to \
         save RDB snapshots, but it's currently unable to persist to disk.",
    ] {
        let Answer::Failed(failure) = answer(line) else { panic!("{line}") };
        let error = failure;
        assert!(error.is_configuration() && error.is_transient(), "{line}: {error}");
    }
}

#[test]
fn a_server_with_too_many_clients_may_have_fewer_soon() {
    for line in
        ["ERR max number of clients reached", "ERR max number of clients + cluster connections reached"]
    {
        let error = said(line).extract_error().expect_err("it is one");
        let failure = handshake(&error, "server");
        assert!(failure.is_transient() && failure.is_unreachable(), "{line}: {failure:?}");
    }
}
