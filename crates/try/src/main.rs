//! Runs the demo of `keyfall_demo` in its default length.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if let Some(argument) = std::env::args().nth(1) {
        anyhow::bail!(
            "{argument:?} is not known: this demo has no options, and `keyfall demo` has"
        );
    }
    keyfall_demo::run(keyfall_demo::SECONDS).await
}
