//! Small records beside the locks. An engine without them, or without this kind of them, says so.

use crate::conformance::Stage;
use crate::conformance::stage::SOON;
use fencepost_core::{Client, Name, Record, RecordKind, Records, Result, StoredRecord};
use std::time::{Duration, Instant};

const KIND: RecordKind = RecordKind::Request;
const MINUTE: Duration = Duration::from_secs(60);

/// For how long an expired record may stay, on a busy machine.
const STAYS: Duration = Duration::from_secs(40);

/// Returns the records. `None`: the engine keeps none.
async fn records_of(client: &Client) -> Option<Records> {
    let read = async {
        let records = client.records()?;
        records.read(KIND, &name()).await.map(|_| records)
    };
    match read.await {
        Ok(records) => Some(records),
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            None
        }
    }
}

fn name() -> Name {
    Name::new("stock/42#1 ü%").expect("a good name")
}

fn numbered(number: u64, keep: Duration) -> Record {
    Record::new(serde_json::json!({ "number": number }), keep)
}

fn number_of(stored: &StoredRecord) -> Option<u64> {
    let object = stored.record.as_ref()?.object().expect("a record of this format");
    object["number"].as_u64()
}

async fn read(records: &Records) -> StoredRecord {
    records.read(KIND, &name()).await.expect("the engine answers")
}

/// Reads until there is nothing, also nothing that has expired.
async fn deleted(records: &Records) {
    let began = Instant::now();
    while read(records).await.version != 0 {
        assert!(began.elapsed() < STAYS, "the record stays: {:?}", read(records).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) async fn a_record_is_written_by_its_version(stage: Stage) {
    let (one, other) = (stage.client().await, stage.client().await);
    let Some((one, other)) = records_of(&one).await.zip(records_of(&other).await) else { return };
    assert_eq!((read(&one).await.record, read(&one).await.version), (None, 0));
    let write = async |records: &Records, number, version| {
        let record = numbered(number, MINUTE);
        records.write(KIND, &name(), Some(&record), version).await.expect("the engine answers")
    };
    let first = write(&one, 1, 0).await.expect("nothing was there");
    assert_eq!(write(&other, 2, 0).await, None, "a record is there");
    let seen = read(&other).await;
    assert_eq!((number_of(&seen), seen.version), (Some(1), first));
    let keep = seen.record.expect("it was read above").keep;
    assert!(keep <= MINUTE && keep > MINUTE / 2, "{keep:?}");
    let second = write(&other, 2, first).await.expect("it has this version");
    assert_eq!(write(&one, 3, first).await, None, "it has a later version");
    // Each kind has names of its own.
    let apart = one.read(RecordKind::Eviction, &name()).await.expect("the engine answers");
    assert_eq!((apart.record, apart.version), (None, 0));
    assert_eq!(one.write(KIND, &name(), None, first).await.expect("the engine answers"), None);
    assert_eq!(number_of(&read(&one).await), Some(2));
    assert_eq!(one.write(KIND, &name(), None, second).await.expect("the engine answers"), Some(0));
    assert_eq!((read(&other).await.record, read(&other).await.version), (None, 0));
    let third = write(&one, 4, 0).await.expect("it was deleted");
    assert_eq!(one.write(KIND, &name(), None, third).await.expect("the engine answers"), Some(0));
}

/// Adds one to this writer's number beside those of the others, so often. A write without an answer may have taken effect: the next look
/// tells, because nobody else changes the number.
async fn count(records: Records, writer: &str, times: u64) -> Result<()> {
    for next in 1..=times {
        loop {
            let stored = records.read(KIND, &name()).await?;
            let object =
                stored.record.as_ref().map(|record| record.object().expect("a record of this format"));
            let mut object = object.unwrap_or_else(|| serde_json::json!({}));
            let known = object[writer].as_u64().unwrap_or_default();
            assert!(known == next || known == next - 1, "a write was lost or is doubled: {object} at {next}");
            if known == next {
                break;
            }
            object[writer] = next.into();
            let record = Record::new(object, MINUTE);
            match records.write(KIND, &name(), Some(&record), stored.version).await {
                Ok(Some(_)) => break,
                Ok(None) => tokio::task::yield_now().await,
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

pub(super) async fn writers_of_a_record_overwrite_no_other(stage: Stage) {
    const WRITERS: [&str; 3] = ["first", "second", "third"];
    let mut tasks = Vec::new();
    for writer in WRITERS {
        let client = stage.client().await;
        let Some(records) = records_of(&client).await else { return };
        tasks.push(tokio::spawn(count(records, writer, 10)));
    }
    for task in tasks {
        task.await.expect("a writer does not panic").expect("the engine answers");
    }
    let client = stage.client().await;
    let records = records_of(&client).await.expect("it had them above");
    let seen = read(&records).await;
    let object = seen.record.as_ref().expect("it was written").object().expect("a record of this format");
    for writer in WRITERS {
        assert_eq!(object[writer].as_u64(), Some(10), "{object}");
    }
    records.write(KIND, &name(), None, seen.version).await.expect("the engine answers");
}

/// A write whose sender was dropped has taken effect or not, and a later one is not lost by that.
pub(super) async fn a_write_of_a_record_may_be_dropped(stage: Stage) {
    let client = stage.client().await;
    let Some(records) = records_of(&client).await else { return };
    let mut known = 0;
    for number in (2..40).step_by(2) {
        let stored = read(&records).await;
        assert!(number_of(&stored).is_none_or(|number| number >= known), "{stored:?} after {known}");
        let dropped = numbered(number - 1, MINUTE);
        let patience = Duration::from_micros(number * 50);
        let name = name();
        let write = records.write(KIND, &name, Some(&dropped), stored.version);
        let _ = tokio::time::timeout(patience, write).await;
        let began = Instant::now();
        loop {
            let stored = read(&records).await;
            let wanted = numbered(number, MINUTE);
            let written = records.write(KIND, &name, Some(&wanted), stored.version).await;
            if written.expect("the engine answers").is_some() {
                break;
            }
            assert!(began.elapsed() < SOON, "no write takes effect");
        }
        known = number;
        assert_eq!(number_of(&read(&records).await), Some(known));
    }
    let seen = read(&records).await;
    records.write(KIND, &name(), None, seen.version).await.expect("the engine answers");
}

pub(super) async fn a_record_is_kept_for_its_time_and_deleted(stage: Stage) {
    let (client, other) = (stage.client().await, stage.client().await);
    let Some((records, other)) = records_of(&client).await.zip(records_of(&other).await) else { return };
    let keep = Duration::from_secs(2);
    let began = Instant::now();
    records.write(KIND, &name(), Some(&numbered(1, keep)), 0).await.expect("the engine answers");
    // Claims of the name do not change it.
    let lock = client.mutex(name().as_str()).expect("a good name");
    lock.lock().await.expect("it is free").release().await.expect("it was held");
    loop {
        let stored = read(&other).await;
        // The answer is of a time before this one.
        match (stored.record, began.elapsed()) {
            (Some(_), passed) if passed < keep + STAYS => {}
            (Some(_), passed) => panic!("it is still there after {passed:?}"),
            (None, passed) => {
                // An engine counts from the arrival of the write, by a clock of its own.
                assert!(passed + Duration::from_millis(20) >= keep, "it is gone after {passed:?}");
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    deleted(&other).await;
    // An expired record is no obstacle, deleted or not.
    let stored = read(&other).await;
    let written = other.write(KIND, &name(), Some(&numbered(2, MINUTE)), stored.version).await;
    let version = written.expect("the engine answers").expect("nobody else writes");
    other.write(KIND, &name(), None, version).await.expect("the engine answers");
}
