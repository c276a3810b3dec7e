//! The view of `fencepost top`: looks at the engine, what the reader chose, and how it is drawn.

pub(crate) mod draw;
mod lock;
pub(crate) mod looks;
pub(crate) mod screen;
pub(crate) mod state;
