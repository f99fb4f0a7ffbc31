//! Plays the demo.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    keyfall_demo::run(keyfall_demo::SECONDS).await
}
