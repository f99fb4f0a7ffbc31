//! The interface of a topology under test.

use std::sync::OnceLock;

use crate::site::Site;

/// The servers that hold the jobs.
pub(super) trait Place: Sized + Send + 'static {
    /// Part of the names of apps.
    const NAME: &'static str;

    /// Starts all servers, such that a server is replaced only on request: acknowledged writes
    /// stay, however busy the machine is.
    fn start() -> impl Future<Output = Self>;

    /// The URL for clients.
    fn url(&self) -> String;

    /// Whether plain keys are adopted there.
    const ADOPTS: bool = true;

    /// The server on which the plain key of a job has to be set, if clients find its ledger by this
    /// URL.
    fn server_of(url: &str, _key: &str) -> impl Future<Output = String> + Send {
        let url = url.to_owned();
        async { url }
    }

    /// Kills a server that has jobs of this kind, and starts it again with the data that it had.
    fn start_again(&mut self, kind: &str) -> impl Future<Output = ()>;

    /// The URL of the place that all tests share. It ends with the process.
    fn shared() -> &'static OnceLock<String>;
}

/// A site on the servers that all tests of a topology share, with an app of its own.
pub(super) async fn site<P: Place>(test: &str) -> Site {
    let url = P::shared().get_or_init(|| {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let place = P::start().await;
                tell.send(place.url()).unwrap();
                // The guards of the servers end them when this process is gone.
                std::future::pending::<()>().await;
            });
        });
        told.recv().expect("the shared servers start")
    });
    Site::on(url, &app_of::<P>(test)).await
}

pub(super) fn app_of<P: Place>(test: &str) -> String {
    format!("{}-{test}", P::NAME)
}
