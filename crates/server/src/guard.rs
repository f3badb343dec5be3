//! Who may ask, and how much: checks of every request before anything else looks at it.

use crate::error::ApiError;
use crate::origins::Origin;
use crate::page;
use crate::server::App;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use subtle::ConstantTimeEq;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Paths that whoever watches the process may ask for without a key.
const OPEN_PATHS: [&str; 2] = ["/health", "/ready"];
/// The names of this machine for itself.
const LOOPBACK_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Gives a request its id and its record, and refuses it if it may not ask.
pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let record = Arc::new(app.record(request.method().clone(), request.uri().path()));
    let mut response = match check(&app, &request) {
        Ok(()) => {
            request.extensions_mut().insert(Arc::clone(&record));
            tokio::select! {
                biased;
                response = next.run(request) => response,
                // Nobody waits for its texts any more, so they end.
                () = record.deadline() => record.timeout().into_response(),
            }
        }
        Err(error) => error.into_response(),
    };
    record.note(|log| log.status = Some(response.status()));
    if let Ok(id) = HeaderValue::from_str(&record.id()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn check(app: &App, request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    match &app.config.api_key {
        Some(_) if OPEN_PATHS.contains(&request.uri().path()) => Ok(()),
        // The page asks for the key, and sends it with what it asks for.
        Some(_) if page::has(request.method(), request.uri().path()) => Ok(()),
        Some(key) => check_key(key, headers),
        // Without a key, a web page could ask through the browser of whoever runs the server.
        None => check_host(headers).and_then(|()| check_origin(headers, &app.config.origins)),
    }
}

fn check_key(key: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
    let is_right: bool = given.ct_eq(key.as_bytes()).into();
    let refused = || ApiError::new(StatusCode::UNAUTHORIZED, "the API key is missing or wrong").code("invalid_api_key");
    is_right.then_some(()).ok_or_else(refused)
}

/// Refuses names that others chose for this machine, as in DNS rebinding.
fn check_host(headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let is_own = host.is_some_and(is_loopback);
    let refused = || ApiError::new(StatusCode::FORBIDDEN, "the header `Host` does not name this machine");
    is_own.then_some(()).ok_or_else(refused)
}

/// Refuses requests from pages of other sites, unless they are named.
fn check_origin(headers: &HeaderMap, others: &[Origin]) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let is_own = authority.is_some_and(|(_, authority)| is_loopback(authority));
    let may_ask = is_own || others.iter().any(|other| other.is_of(origin));
    may_ask.then_some(()).ok_or_else(|| ApiError::new(StatusCode::FORBIDDEN, "pages of other sites may not ask"))
}

fn is_loopback(authority: &str) -> bool {
    let authority = authority.parse::<Authority>().ok().filter(|authority| !authority.as_str().contains('@'));
    authority.is_some_and(|authority| LOOPBACK_HOSTS.iter().any(|own| authority.host().eq_ignore_ascii_case(own)))
}

/// Reads the body of a request: JSON, within the limits of size and time.
pub(crate) async fn json_body(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.map(|value| value.split(';').next().unwrap_or_default().trim());
    // Pages of other sites can send other types without being asked to prove anything.
    if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        let message = "the header `Content-Type` has to be `application/json`";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let limit = app.config.limits.body_bytes;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let too_large = || ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {limit} bytes"));
    if length.is_some_and(|length: usize| length > limit) {
        return Err(too_large());
    }
    match tokio::time::timeout(app.config.limits.body_time, to_bytes(request.into_body(), limit)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.to_string().contains("length limit") => Err(too_large()),
        Ok(Err(_)) => Err(ApiError::bad("the body could not be read")),
        Err(_) => Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_its_own() {
        for own in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in
            ["", "example.com", "localhost.example.com", "127.0.0.1.nip.io", "user@localhost", "127.0.0.2", "::1"]
        {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
