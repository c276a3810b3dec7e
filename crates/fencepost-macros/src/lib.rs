//! The attribute [`macro@locked`]. Programs use it as `fencepost::locked`, behind the feature `macros`.

mod expand;
mod options;

use proc_macro::TokenStream;

// The crate `fencepost` runs the examples, which need it.
#[cfg_attr(not(doctest), doc = include_str!("locked.md"))]
#[proc_macro_attribute]
pub fn locked(options: TokenStream, function: TokenStream) -> TokenStream {
    expand::locked(options.into(), function.into()).unwrap_or_else(|error| error.to_compile_error()).into()
}
