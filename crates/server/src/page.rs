//! The page in the browser: files that are part of the program, and the headers that keep everything else out of it.

use crate::server::App;
use axum::Router;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

/// Nothing but the page's own files is loaded, run or asked, and no other page can show it in a frame.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";

/// A file of the page.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
    /// Changes with the content, so that browsers load a file again after an update.
    tag: u64,
}

macro_rules! assets {
    ($($path:literal, $content_type:literal, $file:literal;)*) => {
        const ASSETS: &[Asset] = &[$(Asset {
            path: $path,
            content_type: $content_type,
            content: include_str!(concat!("page/", $file)),
            tag: digest(include_bytes!(concat!("page/", $file))),
        },)*];
    };
}

assets! {
    "/", "text/html; charset=utf-8", "index.html";
    "/page/style.css", "text/css; charset=utf-8", "style.css";
    "/page/inspector.css", "text/css; charset=utf-8", "inspector.css";
    "/page/icon.svg", "image/svg+xml", "icon.svg";
    "/page/main.js", "text/javascript; charset=utf-8", "main.js";
    "/page/api.js", "text/javascript; charset=utf-8", "api.js";
    "/page/conversation.js", "text/javascript; charset=utf-8", "conversation.js";
    "/page/dom.js", "text/javascript; charset=utf-8", "dom.js";
    "/page/fields.js", "text/javascript; charset=utf-8", "fields.js";
    "/page/inspector.js", "text/javascript; charset=utf-8", "inspector.js";
    "/page/link.js", "text/javascript; charset=utf-8", "link.js";
    "/page/markdown.js", "text/javascript; charset=utf-8", "markdown.js";
    "/page/text.js", "text/javascript; charset=utf-8", "text.js";
    "/page/tokens.js", "text/javascript; charset=utf-8", "tokens.js";
}

/// A digest of a file, FNV-1a, which tells versions apart and protects nothing.
const fn digest(mut bytes: &[u8]) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    while let [byte, rest @ ..] = bytes {
        digest = (digest ^ *byte as u64).wrapping_mul(0x0100_0000_01b3);
        bytes = rest;
    }
    digest
}

/// Returns the paths of the page.
pub(crate) fn routes() -> Router<Arc<App>> {
    let add = |router: Router<Arc<App>>, asset: &'static Asset| {
        router.route(asset.path, get(async |headers: HeaderMap| asset.response(&headers)))
    };
    ASSETS.iter().fold(Router::new(), add)
}

/// Returns `true` if a request is for a file of the page.
pub(crate) fn has(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && ASSETS.iter().any(|asset| asset.path == path)
}

impl Asset {
    fn response(&self, asked: &HeaderMap) -> Response {
        let tag = format!("\"{:016x}\"", self.tag);
        let held = asked.get(header::IF_NONE_MATCH).and_then(|held| held.to_str().ok());
        let is_held = held.is_some_and(|held| held.split(',').any(|held| held.trim().trim_start_matches("W/") == tag));
        let headers = [
            (header::CONTENT_TYPE, self.content_type),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-cache"),
            (header::ETAG, &tag),
        ];
        if is_held {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, self.content).into_response()
    }
}
