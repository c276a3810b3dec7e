//! Work that runs only while a lock is held, on the memory engine and a manual clock.

mod again;
#[path = "../manual_time/mod.rs"]
mod manual_time;
mod once;
mod stage;
