//! Which other web pages may ask, and how their browsers are told (CORS).

use crate::error::ServeError;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, header};
use std::str::FromStr;
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// The time for which a browser need not ask again whether it may ask.
const PREFLIGHT_TIME: Duration = Duration::from_secs(3600);

/// Where web pages come from, such as `https://example.com`; `*` is anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(HeaderValue);

impl Origin {
    /// Returns `true` if pages from anywhere are meant.
    pub fn is_any(&self) -> bool {
        self.0 == "*"
    }

    /// Returns `true` if it is what a browser calls the origin of a page.
    pub(crate) fn is_of(&self, page: &HeaderValue) -> bool {
        self.0 == page
    }
}

impl FromStr for Origin {
    type Err = ServeError;

    /// Takes an origin as browsers write it: a scheme and a host, perhaps with a port, and nothing else.
    fn from_str(text: &str) -> Result<Self, ServeError> {
        let is_scheme = |scheme: &str| {
            !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let is_host = |host: &str| host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'));
        let is_origin = text.split_once("://").is_some_and(|(scheme, host)| is_scheme(scheme) && is_host(host));
        let value = HeaderValue::from_str(&text.to_ascii_lowercase()).ok().filter(|_| is_origin || text == "*");
        value.map(Self).ok_or_else(|| ServeError::Origin(text.escape_debug().to_string()))
    }
}

/// Returns what tells browsers that pages of these origins may ask; nothing if there are none.
pub(crate) fn cors(origins: &[Origin], exposed: HeaderName) -> Option<CorsLayer> {
    let allowed = if origins.iter().any(Origin::is_any) {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().map(|origin| origin.0.clone()))
    };
    let layer = CorsLayer::new().allow_origin(allowed).allow_methods([Method::GET, Method::POST]);
    let layer = layer.allow_headers(AllowHeaders::mirror_request()).max_age(PREFLIGHT_TIME);
    (!origins.is_empty()).then(|| layer.expose_headers([exposed, header::RETRY_AFTER]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_19_origins_are_written_as_browsers_write_them() {
        for text in ["https://example.com", "http://127.0.0.1:3000", "HTTPS://Example.com", "app://localhost", "*"] {
            let origin = text.parse::<Origin>();
            let page = HeaderValue::from_str(&text.to_ascii_lowercase());
            assert!(origin.is_ok_and(|origin| page.is_ok_and(|page| origin.is_of(&page))), "{text}");
        }
        for text in
            ["", "null", "example.com", "https://", "https://a/", "https://a/b", "https://me@a", "https://*\n", "://a"]
        {
            assert!(matches!(text.parse::<Origin>(), Err(ServeError::Origin(_))), "{text}");
        }
    }
}
