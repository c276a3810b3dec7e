//! One node's table of all nodes.

use super::super::Look;
use std::ops::RangeInclusive;

/// A line of `CLUSTER NODES`.
pub(super) struct Node {
    pub(super) id: String,
    pub(super) port: u16,
    pub(super) flags: String,
    slots: Vec<RangeInclusive<u16>>,
}

/// Returns all lines, or none if the node does not answer.
pub(super) fn read(look: &mut Look) -> Vec<Node> {
    let text: String = look.try_ask(&["CLUSTER", "NODES"]).unwrap_or_default();
    text.lines().filter_map(Node::parse).collect()
}

impl Node {
    /// `ID HOST:PORT@BUS,NAME FLAGS MASTER PINGED PONGED EPOCH LINK SLOTS…`
    fn parse(line: &str) -> Option<Node> {
        let mut words = line.split_whitespace();
        let (id, address, flags) = (words.next()?, words.next()?, words.next()?);
        let port = address.split('@').next()?.rsplit(':').next()?.parse().ok()?;
        // A slot that is being moved appears a second time, in brackets.
        let slots = words.skip(5).filter(|word| !word.starts_with('[')).map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        });
        Some(Node { id: id.to_owned(), port, flags: flags.to_owned(), slots: slots.collect::<Option<_>>()? })
    }

    pub(super) fn is_master(&self) -> bool {
        // Not `nofail` or `nofailover`, which each node has whose replicas replace nobody.
        let is = |wanted: &[&str]| self.flags.split(',').any(|flag| wanted.contains(&flag));
        is(&["master"]) && !is(&["fail", "fail?"])
    }

    pub(super) fn has(&self, slot: u16) -> bool {
        self.is_master() && self.slots.iter().any(|range| range.contains(&slot))
    }
}
