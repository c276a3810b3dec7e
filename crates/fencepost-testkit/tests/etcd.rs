//! The deployments of etcd start, work, and end.

use std::net::{SocketAddr, TcpStream};

use fencepost_testkit::etcd::{Cluster, Config, Etcd, Proxied};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;

#[test]
fn a_server_keeps_what_it_has() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Etcd::start(&Config::new()).unwrap();
    let look = etcd.look();
    look.run(&["put", "key", "1"]);
    etcd.kill().unwrap();
    assert!(look.try_run(&["--command-timeout=200ms", "get", "key"]).is_err());
    etcd.restart().unwrap();
    assert_eq!(look.keys("k"), ["key"]);
    assert!(look.leases().is_empty());
}

#[test]
fn a_server_speaks_tls() {
    needs!(ETCD, ETCDCTL, OPENSSL);
    let etcd = Etcd::start(&Config::new().tls()).unwrap();
    assert!(etcd.url().starts_with("etcds://"));
    etcd.look().run(&["put", "key", "1"]);
    assert!(etcd.certificate().exists());
}

#[test]
fn a_network_is_cut_and_mended() {
    needs!(ETCD, ETCDCTL);
    let mut etcd = Proxied::start(&Config::new()).unwrap();
    assert_ne!(etcd.url(), etcd.direct_url());
    etcd.cut().unwrap();
    etcd.look().run(&["put", "key", "1"]);
    etcd.mend().unwrap();
}

#[test]
fn three_members_lose_their_leader_and_find_another() {
    needs!(ETCD, ETCDCTL);
    let mut cluster = Cluster::start(&Config::new()).unwrap();
    let look = cluster.look();
    look.run(&["put", "key", "1"]);
    cluster.kill().unwrap();
    // A busy machine may have had another leader just before.
    let is_down = |address: &SocketAddr| TcpStream::connect(address).is_err();
    let first = cluster.addresses().iter().position(is_down).expect("one is killed");
    let second = cluster.leader().unwrap();
    assert_ne!(first, second);
    cluster.restart().unwrap();
    assert_eq!(look.keys(""), ["key"]);
    cluster.trouble(second, |server, _| server.kill()).unwrap();
    cluster.settle().unwrap();
    assert_eq!(look.keys(""), ["key"]);
}
