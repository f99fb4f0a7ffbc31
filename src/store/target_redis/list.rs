//! Lists: documents that consumers take, and receipts, which consumers put into a second list. A
//! receipt is the lease of a job whose document a consumer has dealt with.

use super::{KeyContext, TargetRedis, WriteRetry};
use crate::error::Result;
use crate::names::Names;

impl TargetRedis {
    /// Appends a document to the end of a list.
    pub(crate) async fn push(&self, list: &str, document: &[u8], writes: WriteRetry) -> Result<()> {
        let mut cmd = redis::cmd("RPUSH");
        cmd.arg(list).arg(document);
        self.write(&place(list), &cmd, writes).await
    }

    /// The oldest receipts for this list, at most `most`, which is at least 1; they stay there.
    pub(crate) async fn receipts(&self, list: &str, most: usize) -> Result<Vec<Vec<u8>>> {
        let receipts = Names::receipts(list);
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(&receipts).arg(0).arg(most - 1);
        self.ask(&place(&receipts), &cmd).await
    }

    /// Removes these receipts, each as often as it is named here.
    pub(crate) async fn forget(&self, list: &str, dealt_with: &[Vec<u8>]) -> Result<()> {
        if dealt_with.is_empty() {
            return Ok(());
        }
        let receipts = Names::receipts(list);
        let mut pipeline = redis::pipe();
        for receipt in dealt_with {
            pipeline
                .cmd("LREM")
                .arg(&receipts)
                .arg(1)
                .arg(receipt)
                .ignore();
        }
        self.ask_many(&place(&receipts), &pipeline).await
    }
}

/// Names a list in errors.
fn place(key: &str) -> KeyContext<'_> {
    KeyContext { what: "list", key }
}
