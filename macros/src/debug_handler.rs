//! `#[debug_handler]`: keeps the function as it is and adds checks of its parts. The code of each
//! check has the source position of its part, so that compiler errors point there.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{
    Error, FnArg, GenericArgument, ItemFn, PathArguments, Result, ReturnType, Signature, Token,
    Type,
};

/// The largest number of arguments of a handler.
const MAX_ARGUMENTS: usize = 8;

/// The function, followed by its checks, or by an error if it cannot be checked.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let checks = checks(attribute, item.clone()).unwrap_or_else(|error| error.to_compile_error());
    quote! { #item #checks }
}

/// The checks, as items that do not compile where the function is at fault.
///
/// # Errors
/// A fault that shows without knowledge of types, or an attribute that cannot be read.
fn checks(attribute: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let state = named_state.parse2(attribute)?;
    let Ok(function) = syn::parse2::<ItemFn>(item.clone()) else {
        return Err(Error::new_spanned(
            item,
            "`debug_handler` stands above an `async fn`",
        ));
    };
    let signature = &function.sig;
    check_shape(signature)?;
    let arguments: Vec<&Type> = arguments(signature)?;
    let state = match state {
        Some(state) => state,
        None => guessed_state(&arguments)?,
    };
    let each = arguments
        .iter()
        .map(|argument| check_argument(argument, &state));
    let output = check_output(&signature.output);
    let future = check_future(signature, arguments.len());
    Ok(quote! {
        #[doc(hidden)]
        #[allow(warnings, clippy::all, clippy::pedantic)]
        const _: () = {
            #(#each)*
            #output
            #future
        };
    })
}

/// Reads the argument of the attribute: `state = App`, or nothing.
fn named_state(input: ParseStream<'_>) -> Result<Option<Type>> {
    if input.is_empty() {
        return Ok(None);
    }
    let usage = |error: Error| {
        Error::new(
            error.span(),
            "write `#[debug_handler]` or `#[debug_handler(state = App)]`",
        )
    };
    let name = input.parse::<syn::Ident>().map_err(usage)?;
    if name != "state" {
        return Err(usage(Error::new(name.span(), "")));
    }
    input.parse::<Token![=]>().map_err(usage)?;
    Type::parse(input).map(Some).map_err(usage)
}

/// Checks the parts of the signature that need no knowledge of types: `async`, `self`, generics,
/// and the number of arguments.
fn check_shape(signature: &Signature) -> Result<()> {
    let returns_a_future =
        matches!(&signature.output, ReturnType::Type(_, it) if matches!(**it, Type::ImplTrait(_)));
    if signature.asyncness.is_none() && !returns_a_future {
        return Err(Error::new_spanned(
            signature.fn_token,
            "a handler is an `async fn`: write `async fn`",
        ));
    }
    if let Some(FnArg::Receiver(receiver)) = signature.inputs.first() {
        return Err(Error::new_spanned(
            receiver,
            "a handler is a function and takes no `self`: put what it needs into the router's \
             state, and take `State<T>`",
        ));
    }
    let generics = &signature.generics;
    if !generics.params.is_empty() {
        return Err(Error::new_spanned(
            generics,
            "`debug_handler` cannot look into a generic function: put it above one whose types \
             are all named",
        ));
    }
    if let Some(ninth) = signature.inputs.iter().nth(MAX_ARGUMENTS) {
        return Err(Error::new_spanned(
            ninth,
            format!(
                "a handler takes at most eight arguments, and this one takes {}: take `Job`, \
                 which has all of them, or put several into one type that is `FromJob`",
                signature.inputs.len()
            ),
        ));
    }
    Ok(())
}

/// The types of the arguments; refuses references and `impl Trait`.
fn arguments(signature: &Signature) -> Result<Vec<&Type>> {
    let types = signature.inputs.iter().enumerate().map(|(at, argument)| {
        let FnArg::Typed(argument) = argument else {
            unreachable!("`self` was refused before")
        };
        match &*argument.ty {
            Type::Reference(it) => Err(Error::new_spanned(
                it,
                format!(
                    "argument {} is a reference, and a handler owns its arguments: take the type \
                     itself",
                    at + 1
                ),
            )),
            Type::ImplTrait(it) => Err(Error::new_spanned(
                it,
                format!("argument {} has no type of its own: name one", at + 1),
            )),
            it => Ok(it),
        }
    });
    types.collect()
}

/// The `T` of the arguments that are `State<T>`; `()` if there is none. Refuses several different
/// ones.
fn guessed_state(arguments: &[&Type]) -> Result<Type> {
    let mut states: Vec<&Type> = Vec::new();
    for state in arguments.iter().filter_map(|argument| state_of(argument)) {
        if !states.contains(&state) {
            states.push(state);
        }
    }
    match states[..] {
        [] => Ok(syn::parse_quote!(())),
        [state] => Ok(state.clone()),
        [_, second, ..] => Err(Error::new_spanned(
            second,
            "the arguments take several states, of which a router has one: name it with \
             `#[debug_handler(state = App)]`",
        )),
    }
}

/// The `T` of an argument that is `State<T>`.
fn state_of(argument: &Type) -> Option<&Type> {
    let Type::Path(path) = argument else {
        return None;
    };
    let last = path.path.segments.last()?;
    match &last.arguments {
        PathArguments::AngleBracketed(generics) if last.ident == "State" => {
            match generics.args.first()? {
                GenericArgument::Type(state) => Some(state),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Code that compiles if the argument is `FromJob` and `Send`.
fn check_argument(argument: &Type, state: &Type) -> TokenStream {
    quote_spanned! {argument.span()=>
        const _: fn() = {
            fn argument<T: ::keyfall::FromJob<#state> + ::core::marker::Send>() {}
            argument::<#argument>
        };
    }
}

/// Code that compiles if the return type is `IntoOutcome`; nothing for `impl Future`, which the
/// next check covers.
fn check_output(output: &ReturnType) -> TokenStream {
    match output {
        ReturnType::Type(_, output) if !matches!(**output, Type::ImplTrait(_)) => {
            quote_spanned! {output.span()=>
                const _: fn() = {
                    fn output<T: ::keyfall::IntoOutcome>() {}
                    output::<#output>
                };
            }
        }
        _ => TokenStream::new(),
    }
}

/// Code that compiles if the future is `Send` and, for a function that is not `async`, if its
/// output is `IntoOutcome`.
fn check_future(signature: &Signature, arguments: usize) -> TokenStream {
    let name = &signature.ident;
    let calls = (0..arguments).map(|at| format_ident!("argument_{at}", span = Span::call_site()));
    let types = signature.inputs.iter().map(|argument| match argument {
        FnArg::Typed(argument) => argument.ty.to_token_stream(),
        FnArg::Receiver(_) => TokenStream::new(),
    });
    let parameters = calls
        .clone()
        .zip(types)
        .map(|(name, of)| quote! { #name: #of });
    let output = signature
        .asyncness
        .is_none()
        .then(|| quote! { <Output: ::keyfall::IntoOutcome> });
    quote_spanned! {name.span()=>
        fn future(#(#parameters),*) {
            fn is_send<T>(_: T)
            where
                T: ::core::future::Future #output + ::core::marker::Send,
            {
            }
            is_send(#name(#(#calls),*));
        }
    }
}
