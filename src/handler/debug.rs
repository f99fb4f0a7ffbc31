//! `#[debug_handler]`: compiler messages that say why a function is no handler.

/// Explains why the compiler does not take a function for a handler.
///
/// If a function is no `Handler`, the compiler points at `.route(…)` and gives no reason. With this
/// attribute above the function, the error points at the cause: at the argument that cannot be made
/// from a job, at the return type that does not say how a job ends, at an `async` that is missing,
/// at a ninth argument, or at a future that is not `Send`. The attribute changes neither the
/// function nor the program.
///
/// ```
/// use keyfall::{Json, Outcome};
///
/// #[keyfall::debug_handler]
/// async fn notify(Json(body): Json<String>) -> Outcome {
///     println!("{body}");
///     Outcome::Done
/// }
/// ```
///
/// An argument `Vec<u8>` instead of `Json<Vec<u8>>`, for example, does not compile:
///
/// ```compile_fail
/// #[keyfall::debug_handler]
/// async fn notify(body: Vec<u8>) {}
/// ```
///
/// # State
///
/// The state of the router is taken to be the `T` of an argument `State<T>`, and `()` if there is
/// none. Name the state if it is another type, because `T` is only a part of it or because an
/// extractor of your own needs it:
///
/// ```
/// use keyfall::{FromRef, State};
/// # #[derive(Clone)] struct Mailer;
///
/// struct App { mailer: Mailer }
///
/// impl FromRef<App> for Mailer {
///     fn from_ref(app: &App) -> Mailer {
///         app.mailer.clone()
///     }
/// }
///
/// #[keyfall::debug_handler(state = App)]
/// async fn remind(State(mailer): State<Mailer>) {}
/// ```
pub use keyfall_macros::debug_handler;
