//! The page before calls that are made up here.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, Uri};
use keyfall_daemon::shapes::RightsOut;

use crate::assets::Assets;
use crate::page::Page;
use crate::words::Words;

/// The page of a reader who may do everything, in English and in UTC.
pub(crate) fn page() -> Page {
    let rights = RightsOut {
        token: None,
        scopes: ["read", "schedule", "consume", "operate"].map(Into::into).into(),
        prefixes: vec![String::new()],
    };
    Page {
        words: Words::of(&HeaderMap::new()),
        zone: Page::utc(),
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        here: "",
        rights: Some(Arc::new(rights)),
        is_read_only: false,
        can_leave: false,
        path: Uri::from_static("/ui/"),
        assets: Assets::get(),
    }
}
