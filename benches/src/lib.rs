//! The project's pages as tests: every Rust example in README.md and docs/ is compiled and run by `cargo test --doc`.
//!
//! What `cargo xtask bench` and `cargo xtask prove` measure with is the binary of this package, `fencepost-bench`.

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../DESIGN.md")]
    mod design {}
}
