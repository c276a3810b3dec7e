use crate::runtime::spawner::{Spawner, Task};

/// A spawner that drops every task before it starts, for a test of a part of an engine that needs a [`Runtime`](crate::Runtime) and
/// none of its tasks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTasks;

impl Spawner for NoTasks {
    fn spawn(&self, _: Task) {}
}
