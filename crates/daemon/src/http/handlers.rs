//! One type for all handlers.
//!
//! axum makes its code around a handler anew for each type of handler, and the compiler proves each
//! time that the future is `Send`, through all calls in it: that was a quarter of the daemon's
//! compile time.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::MethodRouter;
use futures_util::future::BoxFuture;
use utoipa::Path;
use utoipa_axum::PathItemExt;
use utoipa_axum::router::UtoipaMethodRouter;

use super::Api;

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

/// The calls that share a path.
///
/// The documentation of a call takes longer to make than its route, and few processes show it.
pub(super) struct Calls {
    /// Adds the calls to the router.
    pub(super) serve: fn(Router<Arc<Api>>) -> Router<Arc<Api>>,
    /// Makes the documentation of the calls.
    pub(super) document: fn() -> UtoipaMethodRouter<Arc<Api>>,
}

/// Adds the handler of a documented call to the handlers of its path.
pub(super) fn with<P: Path>(
    (_, handlers): (String, MethodRouter<Arc<Api>>),
    handler: Erased<Arc<Api>>,
) -> (String, MethodRouter<Arc<Api>>) {
    let methods = P::methods().into_iter();
    let handlers = methods.fold(handlers, |handlers, method| {
        handlers.on(method.to_method_filter(), handler)
    });
    (P::path(), handlers)
}

/// The [`Calls`] of a module that share a path: `calls!(jobs: put, show)`.
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
        Calls {
            serve: |router| {
                let calls = (String::new(), MethodRouter::new());
                $(
                    let calls = pastey::paste! {
                        with::<erased::[<__path_ $handler>]>(calls, erased::$handler)
                    };
                )+
                let (path, handlers) = calls;
                router.route(&path, handlers)
            },
            document: || utoipa_axum::routes!($(erased::$handler),+),
        }
    }};
}

pub(super) use calls;
