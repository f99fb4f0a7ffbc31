//! A scan through the jobs of one ledger in one state, page by page, with a guaranteed end.

use std::sync::Arc;

use crate::client::Client;
use crate::error::Result;
use crate::store::{Ledger, Slice, Sought};

/// A scan ends even if jobs come faster than it reads: at the last job that was there at its
/// beginning, and after this multiple of their number.
const PATIENCE: u64 = 2;

/// A scan through the jobs of a ledger that are in one state.
pub(crate) struct JobScan<'a> {
    client: &'a Client,
    pub(crate) ledger: Arc<Ledger>,
    sought: Sought,
    /// The number of jobs that may still be read.
    left: u64,
}

impl<'a> JobScan<'a> {
    /// A scan of the jobs that `sought` describes, from its beginning.
    pub(crate) async fn through(
        client: &'a Client,
        ledger: &Arc<Ledger>,
        mut sought: Sought,
    ) -> Result<Self> {
        let (size, last) = ledger.extent(sought.state, client.deadline()).await?;
        // A downward scan leaves later jobs behind; a renewed lease moves up, past any fixed end.
        if !sought.down && sought.state != "leased" {
            sought.until = last;
        }
        Ok(JobScan {
            client,
            ledger: ledger.clone(),
            sought,
            left: size * PATIENCE,
        })
    }

    /// The next page; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Slice>> {
        if self.left == 0 {
            return Ok(None);
        }
        let slice = self
            .ledger
            .list(&self.sought, self.client.deadline())
            .await?;
        self.left = self.left.saturating_sub(slice.looked.max(1));
        self.sought.after = slice.next.clone();
        if self.sought.after.is_none() {
            self.left = 0;
        }
        Ok(Some(slice))
    }
}
