//! The attribute macros of keyfall. Use them through `keyfall`, which re-exports them.
#![deny(missing_docs)]

mod debug_handler;

use proc_macro::TokenStream;

/// See `keyfall::debug_handler`, whose documentation has examples, and runs them.
#[proc_macro_attribute]
pub fn debug_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    debug_handler::expand(attribute.into(), item.into()).into()
}
