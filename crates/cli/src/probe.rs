//! `keyfall probe`: whether a daemon is ready, for health checks where no other HTTP client is installed,
//! as in the image of a container.

use std::path::PathBuf;

use super::connect::daemon_at;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The URL of the daemon; also KEYFALL_API. By default http://127.0.0.1:9276
    #[arg(long, value_name = "URL")]
    api: Option<String>,

    /// The certificates of the CA that signed the daemon's certificate, as PEM, if this system does
    /// not trust it; also KEYFALL_CA_FILE
    #[arg(long, value_name = "PATH")]
    ca_file: Option<PathBuf>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    daemon_at(options.api, options.ca_file)?.is_ready().await
}
