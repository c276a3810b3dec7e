//! Runs on each engine that keeps them: a job that several hosts start, a check, and a job that is stopped.

use fencepost_testkit::etcd::{Config as EtcdConfig, Etcd};
use fencepost_testkit::needs;
use fencepost_testkit::sql::{MariaDb, Postgres};
use fencepost_testkit::zookeeper::{Config as ZooConfig, ZooKeeper};

use crate::kit::{Kid, Place};

const HOSTS: usize = 8;

/// Eight hosts start a job: one runs it. The check sees that, and a later run that is stopped.
fn runs_are_kept(url: &str) {
    let place = Place::patient(url);
    let start = || {
        let job = ["run", "-q", "--once-per", "1h", "-w", "20s", "job", "--", "echo", "ran"];
        Kid::of(&mut place.fencepost(job))
    };
    let hosts: Vec<_> = (0..HOSTS).map(|_| start()).collect();
    let said: String = hosts.into_iter().map(|host| host.said().expect(0).out.clone()).collect();
    assert_eq!(said, "ran\n", "{url}");
    let check = place.output(["check", "job", "--max-age", "1h"]);
    assert!(check.expect(0).out.starts_with("OK: job succeeded "), "{url}: {check:?}");
    let script = "trap 'exit 0' TERM; sleep 1000 & wait";
    place.output(["run", "-q", "--max-hold", "300ms", "job", "--", "sh", "-c", script]).expect(124);
    let check = place.output(["check", "job", "--max-age", "1h"]);
    let failed = "the last run failed: exit code 124, stopped by --max-hold";
    assert!(check.expect(2).out.contains(failed), "{url}: {check:?}");
    place.output(["run", "--once-per", "1h", "--retry", "fails", "--", "false"]).expect(1);
    let again = place.output(["run", "-q", "--once-per", "1h", "--retry", "fails", "--", "echo", "again"]);
    assert_eq!(again.expect(0).out, "again\n", "{url}");
}

#[test]
fn etcd_keeps_runs() {
    needs!(ETCD);
    runs_are_kept(&Etcd::start(&EtcdConfig::new()).unwrap().url());
}

#[test]
fn zookeeper_keeps_runs() {
    needs!(ZOOKEEPER);
    runs_are_kept(&ZooKeeper::start(&ZooConfig::new()).unwrap().url());
}

#[test]
fn postgres_keeps_runs_in_all_modes() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    for options in ["", "?mode=table"] {
        let url = format!("{}{options}", server.url());
        Place::at(&url).output(["schema", "--apply"]).expect(0);
        runs_are_kept(&url);
    }
}

#[test]
fn mariadb_keeps_runs_in_all_modes() {
    needs!(MARIADB);
    let server = MariaDb::start().unwrap();
    runs_are_kept(&server.url());
    let url = format!("{}?mode=table", server.url());
    Place::at(&url).output(["schema", "--apply"]).expect(0);
    runs_are_kept(&url);
}

/// Advisory locks work without a schema. A command that needs a run says what to do, and others say nothing.
#[test]
fn without_the_schema_a_firing_says_how_to_make_it() {
    needs!(POSTGRES);
    let server = Postgres::start().unwrap();
    let place = Place::at(&server.url());
    let said = place.output(["run", "job", "--", "echo", "ran"]);
    assert_eq!((&*said.expect(0).out, &*said.err), ("ran\n", ""));
    let advice = &["the table fencepost.record is missing", "run fencepost schema --apply as the owner"];
    place.output(["run", "--once-per", "1h", "job", "--", "echo", "ran"]).expect(78).complains(advice);
    let check = place.output(["check", "job", "--max-age", "1h"]);
    assert!(check.expect(3).out.contains("run fencepost schema --apply"), "{check:?}");
    let shown = place.output(["show", "job"]);
    assert!(shown.expect(0).out.contains("run fencepost schema --apply"), "{shown:?}");
}
