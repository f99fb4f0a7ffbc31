//! Going through the jobs of one ledger, a page at a time, to an end.

use std::sync::Arc;

use crate::client::Client;
use crate::error::Result;
use crate::store::{Ledger, Slice, Sought};

/// A walk ends even if jobs come faster than it goes: with the last job of those that were
/// there at its beginning, and after so many times their number.
const PATIENCE: u64 = 2;

/// A walk through the jobs of a ledger that are in one state.
pub(crate) struct JobScan<'a> {
    client: &'a Client,
    pub(crate) ledger: Arc<Ledger>,
    sought: Sought,
    /// How many more may be looked at.
    left: u64,
}

impl<'a> JobScan<'a> {
    /// Through what `sought` says, from its beginning.
    pub(crate) async fn through(
        client: &'a Client,
        ledger: &Arc<Ledger>,
        mut sought: Sought,
    ) -> Result<Self> {
        let (size, last) = ledger.extent(sought.state, client.deadline()).await?;
        // Whoever goes down leaves behind what comes later; a lease that is renewed moves up.
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

    /// The next page, until there is none.
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
