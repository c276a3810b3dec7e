//! The caller of a request, and what it may do.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use fencepost_core::Name;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::peer::Peer;
use crate::problem::{Answer, Problem};
use crate::rights::entry::{Right, Verb};
use crate::rights::rate::Rate;
use crate::rights::secret::Hash;
use crate::trace::Parent;

/// The caller of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) name: Arc<str>,
    pub(crate) peer: Option<Peer>,
    /// The span of the caller that its request belongs to.
    pub(crate) trace: Option<Box<Parent>>,
    /// The hash of its access token. `None`: it came without one.
    pub(crate) token: Option<Hash>,
    /// `None`: the service has no rights, and the caller may do all.
    pub(crate) rights: Option<Arc<[Right]>>,
    /// `None`: it may wait as often as all callers together.
    waiting: Option<Arc<Semaphore>>,
    /// `None`: it may ask as often as it likes.
    rate: Option<Arc<Rate>>,
}

impl Caller {
    /// The caller of a service without rights.
    pub(crate) fn of_this_machine() -> Caller {
        Caller {
            name: "".into(),
            peer: None,
            trace: None,
            token: None,
            rights: None,
            waiting: None,
            rate: None,
        }
    }

    pub(crate) fn new(name: &str, rights: &[Right], waiting: Option<Arc<Semaphore>>) -> Caller {
        Caller {
            name: name.into(),
            peer: None,
            trace: None,
            token: None,
            rights: Some(rights.into()),
            waiting,
            rate: None,
        }
    }

    /// Sets the hash of its access token.
    pub(crate) fn by(mut self, token: Hash) -> Caller {
        self.token = Some(token);
        self
    }

    /// Sets the limit of its requests.
    pub(crate) fn at_most(mut self, rate: Option<Arc<Rate>>) -> Caller {
        self.rate = rate;
        self
    }

    /// Counts a request of it.
    pub(crate) fn admit(&self) -> Answer<()> {
        if self.rate.as_ref().is_none_or(|rate| rate.admit(Instant::now())) {
            return Ok(());
        }
        let detail = "the limit of requests a second of this token is reached; ask less often";
        Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail))
    }

    /// Returns the label of its claims: its name, and what it calls itself.
    pub(crate) fn label(&self, own: Option<&str>) -> Option<String> {
        match (&*self.name, own) {
            ("", own) => own.map(str::to_owned),
            (name, None) => Some(name.to_owned()),
            (name, Some(own)) => Some(format!("{name}: {own}")),
        }
    }

    /// Returns whether callers have names: they have none in a service without access tokens.
    pub(crate) fn is_named(&self) -> bool {
        self.token.is_some()
    }

    /// Returns whether it may do this with the lock.
    pub(crate) fn may(&self, verb: Verb, name: &Name) -> bool {
        self.rights.as_ref().is_none_or(|rights| rights.iter().any(|right| right.allows(verb, name)))
    }

    /// Refuses a verb that the caller has no right to. The answer is the same for each name, whether a lock of it exists or not.
    pub(crate) fn check(&self, verb: Verb, name: &Name) -> Answer<()> {
        if self.may(verb, name) {
            return Ok(());
        }
        let detail = format!("the access token does not allow to {} this name", verb.name());
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }

    /// Returns the prefixes of all names that it may read and that begin with `prefix`: sorted, and none begins with another.
    pub(crate) fn readable(&self, prefix: &str) -> Vec<String> {
        let Some(rights) = &self.rights else { return vec![prefix.to_owned()] };
        let reads = rights.iter().filter(|right| right.verbs.contains(&Verb::Read));
        let mut prefixes: Vec<String> = reads
            .filter_map(|right| match (right.prefix.starts_with(prefix), prefix.starts_with(&right.prefix)) {
                (true, _) => Some(right.prefix.clone()),
                (_, true) => Some(prefix.to_owned()),
                _ => None,
            })
            .collect();
        prefixes.sort();
        prefixes.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
        prefixes
    }

    /// Returns the same, and refuses a caller that may read none of these names: an empty list would say that nothing is locked.
    pub(crate) fn listable(&self, prefix: &str) -> Answer<Vec<String>> {
        let prefixes = self.readable(prefix);
        if prefixes.is_empty() {
            let detail = match prefix {
                "" => "the access token does not allow to read any name".to_owned(),
                prefix => format!("the access token does not allow to read names that begin with {prefix:?}"),
            };
            return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail));
        }
        Ok(prefixes)
    }

    /// Counts a request of it that waits.
    pub(crate) fn wait(&self) -> Answer<Option<OwnedSemaphorePermit>> {
        let Some(waiting) = &self.waiting else { return Ok(None) };
        let permit = Arc::clone(waiting).try_acquire_owned();
        let full = |_| {
            Problem::unavailable(
                "too-many-waiting",
                "the limit of waiting requests of this access token is reached",
            )
        };
        permit.map(Some).map_err(full)
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Caller> {
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.ok_or_else(|| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "a request without a caller")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_prefixes_do_not_overlap() {
        let rights: Vec<Right> = ["read:a/", "acquire,read:a/b/", "evict:c/", "read:d"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let caller = Caller::new("ci", &rights, None);
        assert_eq!(caller.readable(""), ["a/", "d"]);
        assert_eq!(caller.readable("a/b/c"), ["a/b/c"]);
        assert_eq!(caller.readable("a"), ["a/"]);
        assert!(caller.readable("c/").is_empty());
        assert_eq!(Caller::of_this_machine().readable("x"), ["x"]);
    }
}
