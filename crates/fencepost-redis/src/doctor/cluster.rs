//! Examines a cluster as its nodes report it.

use fencepost_core::{Error, Finding, Severity};

use super::probe::ProbeOptions;
use super::unreached;
use crate::config::Address;
use crate::conn::info::fields;
use crate::deployment::slots::SLOTS;

/// A node, as another knows it.
#[derive(PartialEq, Eq, Debug)]
struct Node {
    address: Address,
    flags: String,
    slots: usize,
}

/// Returns the findings of the first node that answers, and the masters that serve slots.
pub(super) async fn look(options: &ProbeOptions, seeds: &[Address]) -> (Vec<Finding>, Vec<Address>) {
    let mut findings: Vec<Finding> = Vec::new();
    for seed in seeds {
        let asked = async {
            let mut probe = options.open(seed).await?;
            let table: String = probe.ask(&["CLUSTER", "NODES"]).await?;
            let info: String = probe.ask(&["CLUSTER", "INFO"]).await?;
            Ok::<_, Error>((nodes(&table, seed), info))
        };
        match asked.await {
            Ok((nodes, info)) => {
                // One that answers knows all the others.
                findings.iter_mut().for_each(|finding| finding.severity = Severity::Warning);
                findings
                    .extend(judge(&nodes, &info).into_iter().map(|finding| finding.at(&seed.to_string())));
                let serving = nodes.into_iter().filter(|node| node.slots > 0 && !node.is_down());
                return (findings, serving.map(|node| node.address).collect());
            }
            Err(failure) => {
                let mut found = unreached(&failure);
                found.subject = "cluster";
                findings.push(found.at(&seed.to_string()));
            }
        }
    }
    (findings, Vec::new())
}

/// Reads CLUSTER NODES: `id host:port@bus,name flags master ping pong epoch link slots…`.
fn nodes(table: &str, from: &Address) -> Vec<Node> {
    let read = |line: &str| {
        let mut words = line.split(' ');
        let (_id, address, flags, _master) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let (host, port) = address.split('@').next()?.rsplit_once(':')?;
        // A node that was never told its own address leaves it out.
        let host = match (host, from) {
            ("", Address::Tcp(host, _)) => host,
            _ => host,
        };
        // An entry in brackets is a slot that moves.
        let slots = words.skip(4).filter(|slots| !slots.starts_with('[')).map(count).sum();
        Some(Node {
            address: Address::Tcp(host.to_owned(), port.parse().ok()?),
            flags: flags.to_owned(),
            slots,
        })
    };
    table.lines().filter_map(read).collect()
}

/// `0-5460`, or one number.
fn count(slots: &str) -> usize {
    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
    match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) if first <= last => last - first + 1,
        _ => 0,
    }
}

impl Node {
    fn is_down(&self) -> bool {
        self.flags.split(',').any(|flag| matches!(flag, "fail" | "fail?" | "noaddr"))
    }
}

fn judge(nodes: &[Node], info: &str) -> Vec<Finding> {
    let served: usize = nodes.iter().filter(|node| !node.is_down()).map(|node| node.slots).sum();
    let masters = nodes.iter().filter(|node| node.slots > 0).count();
    let says = format!("{masters} masters serve {served} of {SLOTS} slots");
    let info = fields(info);
    let state = info.get("cluster_state").map_or("unknown", String::as_str);
    let mut findings = vec![match (state, served) {
        ("ok", SLOTS) => Finding::ok("cluster", says),
        ("ok", _) => Finding::problem("cluster", format!("{says}: the locks of the others cannot be had"))
            .advice("look at CLUSTER NODES"),
        _ => Finding::problem("cluster", format!("{says}, and its state is {state}"))
            .advice("look at CLUSTER INFO"),
    }];
    for node in nodes.iter().filter(|node| node.is_down()) {
        let role = if node.slots > 0 { "a master" } else { "a node" };
        let finding = Finding::warning("cluster", format!("{role} is down ({})", node.flags));
        findings.push(
            finding.advice("start it again, or remove it by CLUSTER FORGET").at(&node.address.to_string()),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
a :7000@17000,first myself,master - 0 0 1 connected 0-5460
b 10.0.0.2:7001@17001 master - 0 1 2 connected 5461-10922 [93->-a]
c 10.0.0.3:7002@17002 master - 0 1 3 connected 10923-16382 16383
d 10.0.0.4:7003@17003 slave,fail a 0 1 1 disconnected
";

    #[test]
    fn nodes_are_read() {
        let nodes = nodes(TABLE, &Address::Tcp("seed".to_owned(), 7000));
        let slots: Vec<_> = nodes.iter().map(|node| node.slots).collect();
        assert_eq!(slots, [5461, 5462, 5461, 0]);
        assert_eq!(nodes[0].address, Address::Tcp("seed".to_owned(), 7000));
        assert!(nodes[3].is_down() && !nodes[0].is_down());
    }

    #[test]
    fn slots_that_nobody_serves_are_a_problem() {
        let address = Address::Tcp("seed".to_owned(), 7000);
        let judged = |table: &str, state: &str| {
            let findings = judge(&nodes(table, &address), &format!("cluster_state:{state}\r\n"));
            findings.iter().map(|finding| finding.severity).collect::<Vec<_>>()
        };
        assert_eq!(judged(TABLE, "ok"), [Severity::Ok, Severity::Warning], "a replica is down");
        assert_eq!(judged(&TABLE.replace(" 16383", ""), "ok")[0], Severity::Problem);
        assert_eq!(judged(TABLE, "fail")[0], Severity::Problem);
    }
}
