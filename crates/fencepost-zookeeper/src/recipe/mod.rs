//! The recipes of ZooKeeper's lock libraries: names, layouts, kinds of locks, sequence numbers.

pub(crate) mod child;
pub(crate) mod kinds;
pub(crate) mod layout;
pub(crate) mod names;
pub(crate) mod sequence;
