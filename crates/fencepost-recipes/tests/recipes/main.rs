//! The recipes over the engine in memory.

mod coordination;
mod latch;
mod pauses;
