//! The project's pages as tests: every Rust example in README.md and docs/ is compiled and run by `cargo test --doc`.
//!
//! The binary of this package, `fencepost-bench`, measures for `cargo xtask bench` and `cargo xtask prove`.

#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../DESIGN.md")]
    mod design {}
}
