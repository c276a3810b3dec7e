//! Work that runs only while a lock is held, on the memory engine and a manual clock.

mod again;
mod once;
mod stage;
