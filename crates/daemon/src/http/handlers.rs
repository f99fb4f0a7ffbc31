//! One type for all handlers.
//!
//! axum makes its code around a handler anew for each type of handler, and the compiler proves each
//! time that the future is `Send`, through all calls in it: that was a quarter of the daemon's
//! compile time.

use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::response::Response;
use futures_util::future::BoxFuture;

/// A handler that extracts its arguments itself.
pub(super) type Erased<S> = fn(State<S>, Request) -> BoxFuture<'static, Response>;

/// Extracts the arguments of `handler`, and calls it.
pub(super) fn call<H: Handler<T, S>, T, S>(
    handler: H,
    State(state): State<S>,
    request: Request,
) -> BoxFuture<'static, Response> {
    Box::pin(handler.call(request, state))
}

/// `utoipa_axum::routes!`, for the calls of a module that share a path: `calls!(jobs: put, show)`.
macro_rules! calls {
    ($module:ident: $($handler:ident),+) => {{
        mod erased {
            use std::sync::Arc;

            // The documentation of the handlers; the constants hide the handlers themselves.
            pub(super) use super::$module::*;
            use super::{Api, $module};
            use crate::http::handlers::{Erased, call};

            $(
                #[allow(non_upper_case_globals)]
                pub(super) const $handler: Erased<Arc<Api>> =
                    |state, request| call($module::$handler, state, request);
            )+
        }
        utoipa_axum::routes!($(erased::$handler),+)
    }};
}

pub(super) use calls;
