//! Runs the demo of `keyfall_demo` in its default length.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    keyfall_demo::run(keyfall_demo::SECONDS).await
}
