//! Examines a deployment as its sentinels report it.

use std::collections::HashMap;
use std::error::Error as _;

use fencepost_core::{Error, Finding, Severity};
use futures_util::future::join_all;

use super::{ProbeOptions, unreached};
use crate::config::Address;

/// One sentinel's view of the master.
struct View {
    fields: HashMap<String, String>,
    /// The objection of SENTINEL CKQUORUM.
    objection: Option<String>,
}

/// Returns the findings of each sentinel, and the master's address that most of them report.
pub(super) async fn look(
    options: &ProbeOptions,
    addresses: &[Address],
    name: &str,
) -> (Vec<Finding>, Option<Address>) {
    let asked = addresses.iter().map(|address| async move { (address, ask(options, address, name).await) });
    let asked = join_all(asked).await;
    let seen: Vec<_> = asked.iter().filter_map(|(_, view)| view.as_ref().ok()).collect();
    let master = most(seen.iter().filter_map(|view| view.master()).collect());
    let well = seen.len();
    let mut findings = Vec::new();
    for (address, view) in &asked {
        let mut found = match view {
            Ok(view) => view.judge(name, master.as_ref()),
            Err(failure) => unreached(failure),
        };
        // As long as one answers, the master is found.
        if view.is_err() && well > 0 {
            found.severity = Severity::Warning;
        }
        found.subject = "sentinel";
        findings.push(found.at(&address.to_string()));
    }
    if well > 0 && master.is_none() {
        findings.push(Finding::problem("sentinel", format!("no sentinel knows the address of {name}")));
    }
    (findings, master)
}

async fn ask(options: &ProbeOptions, address: &Address, name: &str) -> Result<View, Error> {
    let mut probe = options.open(address).await?;
    let fields = probe.ask(&["SENTINEL", "MASTER", name]).await?;
    let objection = match probe.ask::<String>(&["SENTINEL", "CKQUORUM", name]).await {
        Ok(_) => None,
        // In the server's own words.
        Err(failure) => Some(failure.source().map_or_else(|| failure.to_string(), ToString::to_string)),
    };
    Ok(View { fields, objection })
}

/// Returns the most frequent value.
fn most(addresses: Vec<Address>) -> Option<Address> {
    let count = |address: &Address| addresses.iter().filter(|other| *other == address).count();
    addresses.iter().max_by_key(|address| count(address)).cloned()
}

impl View {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or(0)
    }

    fn master(&self) -> Option<Address> {
        Some(Address::Tcp(self.field("ip").to_owned(), self.field("port").parse().ok()?))
    }

    fn judge(&self, name: &str, master: Option<&Address>) -> Finding {
        let (sentinels, replicas) = (self.number("num-other-sentinels") + 1, self.number("num-slaves"));
        let (quorum, down) = (self.number("quorum"), self.number("down-after-milliseconds"));
        let address = self.master().map_or_else(|| "?".to_owned(), |address| address.to_string());
        let says = format!(
            "{name} is {address}, taken for down after {down} ms by {quorum} of {sentinels} sentinels; {replicas} can replace it"
        );
        if self.field("flags").contains("_down") {
            return Finding::problem("sentinel", format!("{says}; it finds the master down now"));
        }
        if let Some(objection) = &self.objection {
            return Finding::problem("sentinel", format!("{says}; no failover can be made now: {objection}"))
                .advice("check the other sentinels");
        }
        if self.master().as_ref() != master {
            return Finding::warning("sentinel", format!("{says}; the others name another master"))
                .advice("check again; if this persists, check this sentinel's network");
        }
        if sentinels < 3 {
            return Finding::warning(
                "sentinel",
                format!("{says}; with fewer than three sentinels, no failover is possible while one is down"),
            )
            .advice("run three on machines of their own");
        }
        if replicas == 0 {
            return Finding::warning("sentinel", says).advice("add a replica");
        }
        Finding::ok("sentinel", says)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(changes: &[(&str, &str)]) -> View {
        let base = [
            ("ip", "10.0.0.1"),
            ("port", "6379"),
            ("flags", "master"),
            ("quorum", "2"),
            ("num-other-sentinels", "2"),
            ("num-slaves", "1"),
            ("down-after-milliseconds", "1000"),
        ];
        let fields =
            base.iter().chain(changes).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        View { fields: fields.collect(), objection: None }
    }

    #[test]
    fn what_a_sentinel_sees_is_judged() {
        let master = view(&[]).master();
        let judge = |changes: &[(&str, &str)]| view(changes).judge("locks", master.as_ref()).severity;
        assert_eq!(judge(&[]), Severity::Ok);
        assert_eq!(judge(&[("flags", "master,o_down")]), Severity::Problem);
        assert_eq!(judge(&[("num-other-sentinels", "0")]), Severity::Warning);
        assert_eq!(judge(&[("num-slaves", "0")]), Severity::Warning);
        assert_eq!(judge(&[("port", "6380")]), Severity::Warning, "the others name another");
        let mut objecting = view(&[]);
        objecting.objection = Some("NOQUORUM".to_owned());
        assert_eq!(objecting.judge("locks", master.as_ref()).severity, Severity::Problem);
    }

    #[test]
    fn the_master_is_whom_most_name() {
        let at = |port| Address::Tcp("host".to_owned(), port);
        assert_eq!(most(vec![at(1), at(2), at(2)]), Some(at(2)));
        assert_eq!(most(Vec::new()), None);
    }
}
