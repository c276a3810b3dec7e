//! An attempt to serve a request with an idempotency key, and what the engine keeps of it.

use std::time::Duration;

use fencepost_core::{Backoff, Error, ErrorKind, Guard, Moment, Record, RecordKind, Result, StoredRecord};
use serde_json::json;
use tokio::time::Instant;

use crate::problem::{Answer, Problem};
use crate::record::Key;
use crate::service::Service;

/// How long a record stays if the copy of the service that works on it is killed: then another copy may take it over. Also how much longer
/// than the lease of its grant a record stays.
pub(crate) const WORK: Duration = Duration::from_secs(10);

/// How often a record is read again whose write had no answer.
const TRIES: u32 = 8;

/// What a record says of a request.
pub(crate) struct Note {
    /// Tells the request from another one with the same key.
    pub(crate) request: String,
    /// The number of the attempt.
    pub(crate) attempt: u64,
    /// The request was granted. It stays so when the grant has ended.
    pub(crate) granted: bool,
    /// For how much longer the engine keeps the record.
    pub(crate) keep: Duration,
}

/// Reads the record of a key.
pub(crate) async fn read(service: &Service, key: &Key) -> Result<(Option<Note>, StoredRecord)> {
    let stored = service.records.read(RecordKind::Request, &key.record).await?;
    let note = match &stored.record {
        None => None,
        Some(record) => {
            let object = record.object()?;
            let text = |field: &str| object.get(field).and_then(|text| text.as_str()).unwrap_or_default();
            Some(Note {
                request: text("request").to_owned(),
                attempt: u64::from_str_radix(text("attempt"), 16).unwrap_or_default(),
                granted: object.get("granted").is_some_and(|granted| granted == true),
                keep: record.keep,
            })
        }
    };
    Ok((note, stored))
}

/// An attempt whose record says that this copy of the service works on the request. Dropped, it removes the record, and withdraws its grant
/// unless others may have found that: a firing that nobody has learned of has not run.
pub(crate) struct Attempt {
    service: Service,
    key: Key,
    pub(crate) number: u64,
    version: u64,
    /// The record is certain to be there until then.
    until: Instant,
    /// The record is not to be removed, or there is none.
    settled: bool,
    /// The grant, until a request has it.
    pub(crate) guard: Option<Guard>,
    /// The record may say that the request was granted. If it does, it has not expired by then.
    granted_until: Option<Moment>,
}

/// Returns a random number: that of a new attempt, or a half of the id of a new claim.
pub(crate) fn random() -> Answer<u64> {
    getrandom::u64().map_err(|_| {
        Problem::unavailable("unavailable", "the system's random numbers are not available; try again")
    })
}

impl Attempt {
    /// Makes an attempt that has no record yet.
    pub(crate) fn new(service: &Service, key: &Key) -> Answer<Attempt> {
        Ok(Attempt {
            service: service.clone(),
            key: key.clone(),
            number: random()?,
            version: 0,
            until: Instant::now(),
            settled: true,
            guard: None,
            granted_until: None,
        })
    }

    /// Writes the record, if it still has this version. Returns `false` if another copy has begun an attempt. After that and after an error
    /// the write may have taken effect all the same, and the next read shows that.
    pub(crate) async fn begin(&mut self, version: u64) -> Result<bool> {
        (self.version, self.settled) = (version, false);
        Ok(self.write(false, WORK).await?.is_some())
    }

    /// Whether the note is of this attempt's first record.
    pub(crate) fn has_begun(&self, note: &Note) -> bool {
        note.attempt == self.number && !note.granted
    }

    /// Goes on with the record that was read after a write without a reply.
    pub(crate) fn go_on(&mut self, note: &Note, version: u64) {
        (self.version, self.until) = (version, Instant::now() + note.keep);
    }

    async fn write(&mut self, granted: bool, keep: Duration) -> Result<Option<u64>> {
        let sent = Instant::now();
        let mut object = json!({ "request": self.key.request, "attempt": format!("{:016x}", self.number) });
        if granted {
            object["granted"] = true.into();
        }
        let (record, name) = (Record::new(object, keep), &self.key.record);
        let written =
            self.service.records.write(RecordKind::Request, name, Some(&record), self.version).await?;
        if let Some(version) = written {
            (self.version, self.until) = (version, sent + keep);
        }
        Ok(written)
    }

    /// Reads the record again after a write that had no answer, or that found another version. `None`: the record is no more this
    /// attempt's. Else whether it says that the request was granted.
    async fn look(&mut self) -> Result<Option<bool>> {
        let (note, stored) = read(&self.service, &self.key).await?;
        let own = note.filter(|note| note.attempt == self.number);
        self.version = stored.version;
        self.settled |= own.is_none();
        Ok(own.map(|note| note.granted))
    }

    /// Keeps the record while the work lasts. Completes when the record is lost, or is no longer certain to be there.
    ///
    /// # Cancel safety
    /// Dropped midway, a write may have taken effect. The next step finds that.
    pub(crate) async fn keep(&mut self) {
        loop {
            tokio::time::sleep(WORK / 3).await;
            let mut pauses = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
            loop {
                match self.write(false, WORK).await {
                    Ok(Some(_)) => break,
                    Ok(None) if matches!(self.look().await, Ok(None)) => return,
                    Ok(None) | Err(_) if Instant::now() < self.until => {
                        tokio::time::sleep(pauses.pause()).await;
                    }
                    Ok(None) | Err(_) => return,
                }
            }
        }
    }

    /// Extends the lease of the grant.
    pub(crate) async fn extend(&mut self, ttl: Duration) -> Result<()> {
        match &mut self.guard {
            Some(guard) => guard.extend(ttl).await,
            None => Ok(()),
        }
    }

    /// Writes that the request was granted: from now on each copy finds the grant by the record. Returns the guard, whose drop leaves the
    /// grant. `None`: the record was lost, and nothing is left of the grant.
    pub(crate) async fn grant(mut self, ttl: Duration) -> Result<Option<Guard>> {
        // From here on another copy may have found the grant by the record, and have told its caller. So this copy takes it back after a
        // failure or a pause only if no record can have said so. At worst the lock stays until its lease ends.
        if let Some(guard) = &mut self.guard {
            guard.set_on_drop(None);
        }
        self.granted_until = Some(self.service.locks.runtime().clock().now() + ttl);
        let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
        loop {
            let error = match self.write(true, ttl + WORK).await {
                Ok(Some(_)) => break,
                Ok(None) => None,
                Err(error) if error.is_transient() => Some(error),
                Err(error) => return Err(error),
            };
            match self.look().await? {
                None => return Ok(None),
                Some(true) => break,
                Some(false) if pauses.count() >= TRIES => return Err(error.unwrap_or_else(not_written)),
                Some(false) => tokio::time::sleep(pauses.pause()).await,
            }
        }
        self.settled = true;
        Ok(self.guard.take())
    }

    /// Removes the record, so that the next request with the key begins at once.
    pub(crate) async fn end(mut self) {
        let removed =
            self.service.records.write(RecordKind::Request, &self.key.record, None, self.version).await;
        self.settled |= matches!(removed, Ok(Some(_)));
    }
}

fn not_written() -> Error {
    let message = "the record of an idempotency key is written by others at the same time; try again";
    Error::new(ErrorKind::Unreachable, message).transient(true)
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let clock = self.service.locks.runtime().clock().clone();
        let guard = match (self.guard.take(), self.granted_until) {
            (Some(guard), Some(until)) if !self.settled => Some((guard, until)),
            // A record that named the grant may have expired.
            (Some(_), Some(until)) if clock.now() >= until => None,
            (guard, _) => {
                // No record has named the grant. The lock first: whoever finds no record asks for the lock.
                guard.into_iter().for_each(Guard::withdraw);
                None
            }
        };
        if self.settled {
            return;
        }
        let (service, key, number) = (self.service.clone(), self.key.clone(), self.number);
        self.service.locks.runtime().cleaner().finish(async move {
            let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
            loop {
                let removed = remove(&service, &key, number).await;
                // From then on a record that named the grant may have expired. The lease has ended, unless a caller has extended it.
                if guard.as_ref().is_some_and(|(_, until)| clock.now() >= *until) {
                    return;
                }
                match removed {
                    Ok(Some(is_granted)) => {
                        match guard {
                            // Each copy finds it then.
                            Some((guard, _)) if is_granted => drop(guard.detach().await),
                            Some((guard, _)) => guard.withdraw(),
                            None => {}
                        }
                        return;
                    }
                    Ok(None) if pauses.count() < TRIES || guard.is_some() => {}
                    Err(_) if guard.is_some() => {}
                    // A record that cannot be removed expires.
                    Ok(None) | Err(_) => return,
                }
                pauses.sleep(&clock).await;
            }
        });
    }
}

/// Removes the record of an attempt, unless it says that the request was granted. Returns whether it does. `None`: others write it at the
/// same time.
async fn remove(service: &Service, key: &Key, number: u64) -> Result<Option<bool>> {
    let (note, stored) = read(service, key).await?;
    let Some(note) = note.filter(|note| note.attempt == number) else { return Ok(Some(false)) };
    if note.granted {
        return Ok(Some(true));
    }
    let removed = service.records.write(RecordKind::Request, &key.record, None, stored.version).await?;
    Ok(removed.map(|_| false))
}
