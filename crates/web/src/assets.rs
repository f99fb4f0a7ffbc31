//! Scripts, style and icon. Their names change with their contents, so browsers keep them for ever.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

/// The names of the assets, as pages write them.
pub(crate) struct Assets {
    pub(crate) style: String,
    pub(crate) htmx: String,
    pub(crate) sse: String,
    pub(crate) script: String,
    pub(crate) icon: String,
}

const STYLE: &[u8] = include_bytes!("../assets/keyfall.css");
const HTMX: &[u8] = include_bytes!("../assets/htmx.min.js");
const SSE: &[u8] = include_bytes!("../assets/sse.min.js");
const SCRIPT: &[u8] = include_bytes!("../assets/keyfall.js");
const ICON: &[u8] = include_bytes!("../assets/icon.svg");

static ASSETS: LazyLock<Assets> = LazyLock::new(|| Assets {
    style: named("keyfall", STYLE, "css"),
    htmx: named("htmx", HTMX, "js"),
    sse: named("sse", SSE, "js"),
    script: named("keyfall", SCRIPT, "js"),
    icon: named("icon", ICON, "svg"),
});

/// `keyfall-0123456789ab.css`
fn named(stem: &str, contents: &[u8], ending: &str) -> String {
    let hash = Sha256::digest(contents);
    let hash: String = hash[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{stem}-{hash}.{ending}")
}

impl Assets {
    pub(crate) fn get() -> &'static Assets {
        &ASSETS
    }

    fn find(&self, name: &str) -> Option<(&'static [u8], &'static str)> {
        let script = "text/javascript; charset=utf-8";
        let all = [
            (&self.style, STYLE, "text/css; charset=utf-8"),
            (&self.htmx, HTMX, script),
            (&self.sse, SSE, script),
            (&self.script, SCRIPT, script),
            (&self.icon, ICON, "image/svg+xml"),
        ];
        let found = all.into_iter().find(|(its, ..)| *its == name);
        found.map(|(_, contents, kind)| (contents, kind))
    }
}

pub(crate) async fn show(Path(name): Path<String>) -> Response {
    let Some((contents, kind)) = Assets::get().find(&name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let for_ever = HeaderValue::from_static("public, max-age=31536000, immutable");
    let kind = HeaderValue::from_static(kind);
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, for_ever),
    ];
    (headers, Bytes::from_static(contents)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_of_others_are_the_published_ones() {
        let sums = include_str!("../assets/SHA256SUMS");
        for (name, contents) in [("htmx.min.js", HTMX), ("sse.min.js", SSE)] {
            let hash = Sha256::digest(contents);
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let line = format!("{hash}  {name}");
            assert!(sums.lines().any(|one| one == line), "{line}");
        }
    }
}
