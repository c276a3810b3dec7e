//! The findings of `doctor` on servers with a good set-up, a bad one, and with failures.

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Cluster, Config, Masters, Redis, Sentinel};
use fencepost_testkit::sql::{MariaDb, Postgres};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::kit::{Kid, LONG, Place, Said, eventually};

/// Returns the findings about a subject, as severity and sentence.
fn found(said: &Said, subject: &str) -> Vec<(String, String)> {
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"));
    let findings = report["findings"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let about = findings.filter(|finding| finding["subject"] == subject);
    about.map(|finding| (text(&finding["severity"]), text(&finding["says"]))).collect()
}

/// The only finding of a subject has this severity and holds these words.
#[track_caller]
fn judged(said: &Said, subject: &str, severity: &str, words: &str) {
    let found = found(said, subject);
    let [(found, says)] = &*found else { panic!("{subject}: {said:?}") };
    assert!(found == severity && says.contains(words), "{subject} is {found}: {says}");
}

fn doctor(url: &str) -> Said {
    Place::at(url).output(["doctor", "--json"])
}

#[test]
fn engines_of_one_machine() {
    let said = doctor("memory:");
    judged(said.expect(0), "reach", "note", "visible in this process only");
    judged(&said, "cycle", "ok", "taken and released");
    judged(&said, "handoff", "ok", "passed to a waiter");
    judged(&said, "runs", "ok", "was kept");
    let place = Place::new();
    let said = place.output(["doctor", "--json"]);
    judged(said.expect(0), "journal", "ok", "wal");
    judged(&said, "file", "ok", place.database().to_str().unwrap());
    judged(&said, "durability", "ok", "normal");
    assert_eq!(found(&said, "filesystem").len(), 1);
    let said = place.output(["doctor", "-b", "sqlite:full.db?durability=full", "--json"]);
    judged(said.expect(0), "durability", "ok", "full");
    place.output(["doctor", "-b", "sqlite:nowhere/a.db"]).expect(78);
    place.output(["doctor", "--init", "--yes"]).expect(64).complains(&["redlock:"]);
    place.output(["doctor", "--yes"]).expect(64);
}

/// `run --once-per` needs a table, and rights on it. The examination reports what lacks, and the exit code tells which of both.
#[test]
fn runs_that_a_database_does_not_keep() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    server.run("CREATE ROLE app LOGIN").unwrap();
    let tables = "fencepost_lock, fencepost_lock_queue, fencepost_lock_session, fencepost_lock_view";
    for (mode, run, others) in [
        ("?mode=table", "fencepost_lock_record", &*format!("SELECT, INSERT, UPDATE, DELETE ON {tables}")),
        // Afterwards the owner has a schema of the owner's name, where the tables of the other mode would be.
        ("", "fencepost.record", "USAGE ON SCHEMA fencepost TO app; GRANT USAGE ON SEQUENCE fencepost.token"),
    ] {
        let place = Place::at(&format!("postgres://app@{}/postgres{mode}", server.address()));
        let missing = |what: &str| {
            let said = place.output(["doctor", "--json"]);
            judged(said.expect(0), "runs", "warning", "--once-per and check --max-age are refused");
            judged(&said, "runs", "warning", what);
        };
        let once = || place.output(["run", "--once-per", "1h", "job", "--", "true"]);
        let owner = Place::at(&format!("{}{mode}", server.url()));
        if mode.is_empty() {
            missing("fencepost.record is missing");
            once().expect(78).complains(&["fencepost.record is missing", "schema --apply"]);
        }
        place.output(["schema", "--apply"]).expect(77).complains(&["the right CREATE"]);
        owner.output(["schema", "--apply"]).expect(0);
        server.run(&format!("GRANT {others} TO app")).unwrap();
        missing(run);
        once().expect(77).complains(&["this user may not", run]);
        server.run(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {run} TO app")).unwrap();
        judged(place.output(["doctor", "--json"]).expect(0), "runs", "ok", "was kept");
        once().expect(0);
        if mode.is_empty() {
            server.run("REVOKE DELETE ON fencepost.record FROM app").unwrap();
            missing("may not write the table fencepost.record");
        } else {
            server.run("DROP TABLE fencepost_lock_record").unwrap();
            missing("is missing");
            once().expect(78).complains(&["fencepost_lock_record", "is missing"]);
        }
    }
    server.run("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC").unwrap();
    let place = Place::at(&format!("postgres://app@{}/postgres", server.address()));
    place
        .output(["run", "a", "--", "true"])
        .expect(77)
        .complains(&["grant the user CONNECT on the database"]);
}

#[test]
fn runs_that_mariadb_does_not_keep() {
    needs!(MARIADB);
    let server = MariaDb::start().unwrap();
    Place::at(&server.url()).output(["doctor"]).expect(0);
    server.run("CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE ON fencepost_token TO app").unwrap();
    let place = Place::at(&format!("mysql://app@{}/fencepost", server.address()));
    judged(
        place.output(["doctor", "--json"]).expect(0),
        "runs",
        "warning",
        "may not write the table fencepost_record",
    );
    let once = || place.output(["run", "--once-per", "1h", "job", "--", "true"]);
    once().expect(77).complains(&["this user may not write the table fencepost_record"]);
    server.run("GRANT SELECT, INSERT, UPDATE, DELETE ON fencepost_record TO app").unwrap();
    judged(place.output(["doctor", "--json"]).expect(0), "runs", "ok", "was kept");
    once().expect(0);
}

#[test]
fn a_server_that_keeps_its_data_is_well() {
    needs!(REDIS);
    let server = Redis::start(&Config::new().durable()).unwrap();
    let said = doctor(&server.url());
    let subjects = ["server", "eviction", "persistence", "replication", "clock", "events", "rights"];
    for subject in subjects.into_iter().chain(["cycle", "handoff", "runs"]) {
        judged(said.expect(0), subject, "ok", "");
    }
    judged(&said, "clock", "ok", "this machine's");
    judged(&said, "tokens", "note", "grow");
    let text = Place::at(&server.url()).output(["doctor"]);
    let line = text.expect(0).out.lines().find(|line| line.contains("persistence")).unwrap();
    assert!(line.starts_with("ok ") && line.contains(&server.address().to_string()), "{line}");
    let mut keys = server.look().keys("fencepost:*");
    keys.sort_unstable();
    assert_eq!(keys, ["fencepost:\u{1}run:fencepost/doctor", "fencepost:fencepost/doctor"]);
    for key in keys {
        assert!(server.look().ask::<i64>(&["PTTL", &key]) > 0, "{key:?} expires");
    }
}

#[test]
fn a_server_that_evicts_is_a_problem() {
    needs!(REDIS);
    let server = Redis::start(&Config::new().memory(50_000_000, "allkeys-lru")).unwrap();
    let said = doctor(&server.url());
    judged(
        said.expect(78),
        "eviction",
        "problem",
        "the server deletes held locks, so two clients may hold one",
    );
    judged(&said, "persistence", "warning", "forgets every lock");
    let text = Place::at(&server.url()).output(["doctor"]);
    assert!(text.expect(78).out.contains("set maxmemory-policy noeviction"), "{text:?}");
    // Locks expire in the end, so the policies that spare what does not expire spare no lock.
    server.look().ask::<String>(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    judged(doctor(&server.url()).expect(78), "eviction", "problem", "volatile-lru");
    server.look().ask::<String>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    judged(doctor(&server.url()).expect(0), "eviction", "ok", "new locks are refused");
}

/// Each finding says which engine it is of, and the last one whether they fit together.
#[test]
fn a_fallback_is_examined_beside_its_primary() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    let doctor = |fallback: &str| place.output(["doctor", "--json", "--degrade", fallback]);
    let said = doctor("sqlite:second.db");
    let report: Value = serde_json::from_str(&said.expect(0).out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let places = |subject: &str| -> Vec<&str> {
        let about = findings.iter().filter(|finding| finding["subject"] == subject);
        about.map(|finding| finding["place"].as_str().unwrap()).collect()
    };
    assert_eq!(places("cycle"), ["primary", "fallback"]);
    assert_eq!(places("persistence"), [format!("primary {}", server.address())]);
    assert_eq!(places("journal"), ["fallback"]);
    judged(&said, "fallback", "ok", "tokens can be compared");
    judged(doctor("memory:").expect(78), "fallback", "problem", "not made of its clock");
    let named = place.output(["doctor", "--json", "--degrade", "local"]);
    assert!(found(named.expect(0), "fallback").is_empty(), "there is nothing to examine");
    place.output(["doctor", "--degrade", "sqlit"]).expect(64).complains(&["--degrade must be"]);
    let variable = Kid::of(place.fencepost(["doctor"]).env("FENCEPOST_DEGRADE", "sqlite:second.db")).said();
    assert!(variable.expect(0).out.contains("fallback"), "{variable:?}");
    server.kill().unwrap();
    let said = doctor("sqlite:second.db");
    assert_eq!(said.expect(69).err, "", "the problem is in the findings");
    judged(&said, "server", "problem", "cannot connect to Redis at");
    assert!(said.out.contains("fallback") && !found(&said, "journal").is_empty(), "{said:?}");
    assert!(found(&said, "fallback").is_empty(), "it was not tried");
}

#[test]
fn a_full_server_grants_nothing() {
    needs!(REDIS);
    let server = Redis::start(&Config::new()).unwrap();
    server.look().ask::<String>(&["CONFIG", "SET", "maxmemory", "1000"]);
    let said = doctor(&server.url());
    judged(said.expect(78), "cycle", "problem", "no memory left");
}

#[test]
fn clocks_apart_are_told_with_their_error_bar() {
    needs!(REDIS);
    let mut server = Redis::start(&Config::new().clock()).unwrap();
    server.jump(3_600).unwrap();
    judged(&doctor(&server.url()), "clock", "note", "ahead of");
    // A busy machine makes the error bar longer, and the difference is in the middle of it.
    eventually("the difference with a short error bar", LONG, || {
        let (_, says) = found(&doctor(&server.url()), "clock").remove(0);
        (says.starts_with("3600.0 s (±") || says.starts_with("3599.9 s (±")).then_some(())
    });
}

#[test]
fn what_a_user_may_not_do() {
    needs!(REDIS);
    let server = Redis::start(&Config::new().user("app", "hunter2")).unwrap();
    let said = doctor(&server.url());
    judged(said.expect(0), "rights", "ok", "app");
    let refuse = |commands: &[&str]| {
        server.look().ask::<String>(&[&["ACL", "SETUSER", "app", "+@all"], commands].concat());
        doctor(&server.url())
    };
    let rights = found(refuse(&["-scan", "-config", "-publish"]).expect(0), "rights");
    for (severity, command) in [("note", "CONFIG"), ("warning", "PUBLISH"), ("warning", "SCAN")] {
        let told = rights.iter().any(|(found, says)| found == severity && says.contains(command));
        assert!(told, "{command}: {rights:?}");
    }
    let said = refuse(&["-info"]);
    assert!(found(said.expect(0), "rights")[0].1.contains("may not read INFO"), "{said:?}");
    let said = refuse(&["-hset"]);
    judged(said.expect(78), "cycle", "problem", "does not let this user do that");
    judged(refuse(&["-hdel"]).expect(78), "cycle", "problem", "does not let this user do that");
    // The lock that could not be released is still there.
    server.look().ask::<String>(&["FLUSHALL"]);
    for command in ["hmget", "hscan"] {
        let said = refuse(&[&format!("-{command}")]);
        judged(said.expect(78), "rights", "problem", &command.to_uppercase());
    }
    assert!(!said.out.contains("hunter2") && !said.err.contains("hunter2"));
    let wrong = server.url().replace("hunter2", "hunter3");
    let said = doctor(&wrong);
    said.expect(77).complains(&["does not know this user and password"]);
    assert!(!said.err.contains("hunter"), "{said:?}");
}

#[test]
fn a_replica_that_lags_and_sentinels() {
    needs!(REDIS);
    let deployment = Sentinel::start(3, &Config::new()).unwrap();
    // A replica that is busy for seconds lags.
    let said = eventually("the replica is in sync", LONG, || {
        Some(doctor(&deployment.url()))
            .filter(|said| found(said, "replica").iter().any(|(found, _)| found == "ok"))
    });
    judged(said.expect(0), "replica", "ok", "in sync");
    let sentinels = found(&said, "sentinel");
    assert_eq!(sentinels.len(), 3);
    for (severity, says) in sentinels {
        assert!(severity == "ok" && says.contains("by 2 of 3 sentinels; 1 can replace it"), "{says}");
    }
    assert_eq!(found(&said, "replication")[0].0, "note");
    let replica = Pid::from_raw(deployment.replica().pid().unwrap().try_into().unwrap());
    kill(replica, Signal::SIGSTOP).unwrap();
    eventually("the lag is seen", LONG, || {
        let found = found(&doctor(&deployment.url()), "replica");
        found
            .iter()
            .any(|(severity, says)| severity == "warning" && says.contains("lags: silent"))
            .then_some(())
    });
    let sentinel = Pid::from_raw(deployment.sentinels()[2].pid().unwrap().try_into().unwrap());
    kill(sentinel, Signal::SIGKILL).unwrap();
    let sentinels = found(&doctor(&deployment.url()), "sentinel");
    assert!(sentinels[2].0 == "warning" && sentinels[2].1.contains("cannot be examined"), "{sentinels:?}");
}

#[test]
fn a_cluster_and_a_node_of_it_that_is_down() {
    needs!(REDIS);
    let mut cluster = Cluster::start(&Config::new()).unwrap();
    let said = doctor(&cluster.url());
    judged(said.expect(0), "cluster", "ok", "3 masters serve 16384 of 16384 slots");
    assert_eq!(found(&said, "server").len(), 3);
    cluster.node(5).kill().unwrap();
    eventually("the replica is missed", LONG, || {
        let found = found(&doctor(&cluster.url()), "cluster");
        found
            .iter()
            .any(|(severity, says)| severity == "warning" && says.contains("a node is down"))
            .then_some(())
    });
}

#[test]
fn nodes_of_a_quorum_are_vouched_for() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).unwrap();
    // Leases of 30 s, the default, are longer than this deployment has.
    let place = Place::at(&format!("{}?max_ttl=20&node_timeout=2s", masters.url()));
    let said = place.output(["doctor", "--json"]);
    judged(said.expect(78), "majority", "problem", "0 of 3 nodes can grant");
    assert!(
        found(&said, "marker")
            .iter()
            .all(|(severity, says)| severity == "problem" && says.contains("stays out"))
    );
    place
        .output(["doctor", "--init"])
        .expect(64)
        .complains(&["two programs may hold the same lock", "--yes"]);
    let said = place.output(["doctor", "--init", "--yes", "--json"]);
    judged(said.expect(0), "majority", "ok", "3 of 3");
    judged(&said, "cycle", "ok", "");
    judged(&said, "runs", "note", "none are kept");
    assert!(
        found(&said, "persistence")
            .iter()
            .all(|(severity, says)| severity == "ok" && says.contains("stays out"))
    );
    // One that is down is no problem of the others; one that has come back stays out.
    masters.node(1).kill().unwrap();
    let said = place.output(["doctor", "--json"]);
    judged(said.expect(0), "majority", "warning", "2 of 3");
    judged(&said, "cycle", "ok", "");
    let (severity, says) = found(&said, "server").remove(1);
    assert!(severity == "warning" && says.contains("cannot connect to Redis at 127.0.0.1:"), "{says}");
    masters.node(1).restart().unwrap();
    let said = place.output(["doctor", "--json"]);
    judged(said.expect(0), "majority", "warning", "2 of 3");
    let markers = found(&said, "marker");
    assert!(markers[1].0 == "warning" && markers[1].1.contains("stays out"), "{markers:?}");
}

#[test]
fn what_cannot_be_used_is_looked_at_all_the_same() {
    needs!(REDIS);
    let mut masters = Masters::start(3, &Config::new()).unwrap();
    let place = Place::at(&format!("{}?node_timeout=2s", masters.url()));
    place.output(["doctor", "--init", "--yes"]).expect(0);
    masters.node(0).kill().unwrap();
    masters.node(2).kill().unwrap();
    let said = place.output(["doctor", "--json"]);
    // The problem is not printed again.
    assert_eq!(said.expect(69).err, "");
    judged(&said, "majority", "problem", "1 of 3 nodes can grant, 2 are needed");
    let severities: Vec<_> = found(&said, "server").into_iter().map(|(severity, _)| severity).collect();
    assert_eq!(severities, ["problem", "ok", "problem"]);

    let deployment = Sentinel::start(1, &Config::new()).unwrap();
    for server in [deployment.master(), deployment.replica()] {
        kill(Pid::from_raw(server.pid().unwrap().try_into().unwrap()), Signal::SIGKILL).unwrap();
    }
    let said = doctor(&deployment.url());
    judged(said.expect(69), "server", "problem", "cannot be examined");
    assert_eq!(found(&said, "sentinel").len(), 1, "{said:?}");

    let mut server = Redis::start(&Config::new()).unwrap();
    server.kill().unwrap();
    let said = Place::at(&server.url()).output(["doctor"]);
    assert!(
        said.expect(69).out.starts_with("problem")
            && said.out.contains("cannot connect to Redis at")
            && said.err.is_empty(),
        "{said:?}"
    );
}
