//! The command on etcd.

use fencepost_testkit::etcd::{Cluster, Config, Etcd};

use crate::kit::Place;
use crate::redis::verbs::{evicting, running, waiting, watching};

#[test]
fn every_verb() {
    let server = Etcd::start(&Config::new()).unwrap();
    let place = Place::at(&server.url());
    running(&place);
    waiting(&place);
    evicting(&place);
    watching(&place);
    place.output(["doctor"]).expect(0);
}

#[test]
fn a_lease_goes_from_process_to_process() {
    let cluster = Cluster::start(&Config::new()).unwrap();
    let place = Place::at(&cluster.url());
    let lease = place.output(["acquire", "--ttl", "20s", "--reason", "deploy", "site"]).expect(0).out.clone();
    let lease = lease.trim();
    place.output(["run", "-n", "site", "--", "true"]).expect(75).complains(&["deploy", "by a lease"]);
    place.output(["extend", "--ttl", "50s", lease]).expect(0);
    place.output(["release", lease]).expect(0);
    place.output(["release", lease]).expect(76);
    place.output(["run", "-n", "site", "--", "true"]).expect(0);
    // etcd's leases are whole seconds long.
    place.output(["acquire", "--ttl", "500ms", "site"]).expect(64).complains(&["2s"]);
    let short = place.output(["acquire", "--ttl", "2s", "site"]).expect(0).out.clone();
    place.output(["run", "-w", "20s", "site", "--", "true"]).expect(0);
    place.output(["extend", short.trim()]).expect(76).complains(&["site"]);
    assert!(cluster.look().keys("").is_empty());
}
