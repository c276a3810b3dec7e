//! ZooKeeper of the testkit: servers start, have faults, and recover.

use std::net::{SocketAddr, TcpStream};

use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::zookeeper::{Config, Ensemble, Proxied, ephemerals, word};

#[test]
fn one_server_comes_back_after_a_kill() {
    needs!(ZOOKEEPER);
    let mut server = Proxied::start(&Config::new()).expect("a server starts");
    let address = server.address();
    assert!(word(address, "srvr").expect("it answers").contains("Mode: standalone"));
    assert_eq!(ephemerals(address).expect("it answers"), Vec::<String>::new());
    server.kill().expect("it can be killed");
    assert!(word(address, "srvr").is_err(), "a killed server answers");
    server.restart().expect("it comes back");
    assert!(word(address, "srvr").expect("it answers").contains("Mode: standalone"));
}

#[test]
fn an_ensemble_elects_another_leader() {
    needs!(ZOOKEEPER);
    let mut ensemble = Ensemble::start(&Config::new()).expect("an ensemble starts");
    ensemble.kill().expect("the leader can be killed");
    // A busy machine may have had another leader just before.
    let is_down = |address: &SocketAddr| TcpStream::connect(address).is_err();
    let before = ensemble.addresses().iter().position(is_down).expect("one is killed");
    let after = ensemble.leader().expect("it has another leader");
    assert_ne!(before, after);
    ensemble.restart().expect("the killed one comes back");
    assert_eq!(ensemble.addresses().len(), 3);
}
