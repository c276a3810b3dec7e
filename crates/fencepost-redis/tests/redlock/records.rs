//! Records beside the locks, at nodes that lose their data.

use std::time::Duration;

use fencepost_core::{Client, Name, Record, RecordKind, Records, StoredRecord};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::needs;
use fencepost_testkit::redis::{Config, Masters};
use fencepost_testkit::wait::eventually;

use super::{WAIT, brief_client, lose, vouch};

const KIND: RecordKind = RecordKind::Request;
/// It is longer than a test.
const KEEP: Duration = Duration::from_secs(60);

fn name() -> Name {
    Name::new("lock#record").expect("a good name")
}

fn records(client: &Client) -> Records {
    client.records().expect("a quorum keeps records")
}

fn numbered(number: u64, keep: Duration) -> Record {
    Record { text: format!("{{\"number\":{number}}}"), keep }
}

fn number(stored: &StoredRecord) -> Option<u64> {
    stored.record.as_ref()?.object().expect("a record of this format")["number"].as_u64()
}

/// Of three nodes, the third one misses a record, and the second one forgets it.
async fn forgotten(flushed: bool) {
    let mut masters = Masters::start(3, &Config::new()).expect("servers start");
    let url = format!("{}?max_ttl=60", masters.url());
    vouch(&url).await;
    let client = brief_client(&url).await;
    let records = records(&client);
    masters.node(2).stop().expect("it can be stopped");
    let record = numbered(1, KEEP);
    let version = records.write(KIND, &name(), Some(&record), 0).await.expect("a majority is there");
    assert!(version.is_some());
    masters.node(2).cont().expect("it goes on");
    lose(masters.node(1), flushed);
    masters.node(0).stop().expect("it can be stopped");
    // Those two do not have it.
    let read = records.read(KIND, &name()).await;
    assert!(read.as_ref().is_err_and(|error| error.is_transient()), "{read:?}");
    let other = numbered(2, KEEP);
    let written = records.write(KIND, &name(), Some(&other), 0).await;
    assert!(written.is_err(), "a record is forgotten: {written:?}");
    masters.node(0).cont().expect("it goes on");
    eventually(WAIT, "the first and the third node answer", async || {
        records.read(KIND, &name()).await.is_ok_and(|stored| number(&stored) == Some(1))
    })
    .await;
    assert_eq!(records.write(KIND, &name(), Some(&other), 0).await.expect("a majority is there"), None);
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_flushed_has_no_say_about_records() {
    needs!(REDIS);
    forgotten(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_restarted_empty_has_no_say_about_records() {
    needs!(REDIS);
    forgotten(false).await;
}

/// When a node may vote again, each record that it has forgotten has expired. So no record lives longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_outlives_the_longest_lease_is_refused() {
    needs!(REDIS);
    let masters = Masters::start(3, &Config::new()).expect("servers start");
    let url = format!("{}?max_ttl=2", masters.url());
    vouch(&url).await;
    let client = brief_client(&url).await;
    let records = records(&client);
    let write = async |keep| {
        let record = numbered(1, Duration::from_secs(keep));
        let stored = records.read(KIND, &name()).await.expect("a majority is there");
        records.write(KIND, &name(), Some(&record), stored.version).await
    };
    assert!(write(12).await.expect("a majority is there").is_some());
    let error = write(13).await.expect_err("it would be longer than nodes stay out");
    assert!(error.is_configuration() && error.to_string().contains("max_ttl"), "{error}");
    client.close().await;
}
