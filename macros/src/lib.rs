//! The attribute macros of Keyfall. Use them through `keyfall`, which re-exports them.
#![deny(missing_docs)]

mod debug_handler;

use proc_macro::TokenStream;

/// Checks that a function is a handler, and points the compiler's errors at the part that is at
/// fault. See `keyfall::debug_handler`, whose documentation has examples, and runs them.
#[proc_macro_attribute]
pub fn debug_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    debug_handler::expand(attribute.into(), item.into()).into()
}
