//! Everything that a request can be answered with instead of a text, in OpenAI's shape.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ptero::ErrorKind;
use ptero_engine::Error as EngineError;
use serde::Serialize;
use std::net::SocketAddr;

/// Tells OpenAI's clients whether to ask again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What keeps a server from starting, or ends it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum ServeError {
    #[error("{0} can be reached by others, so an API key is needed")]
    NeedsKey(SocketAddr),
    #[error("the API key is empty")]
    EmptyKey,
    #[error("`{0}` is not an origin such as `https://example.com`, without a path")]
    Origin(String),
    #[error("every web page could ask, so an API key is needed")]
    AnyOrigin,
    #[error("could not listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error("could not start: {0}")]
    Start(std::io::Error),
    #[error("there is no model to serve")]
    NoModels,
    #[error("`{0}` is not a name for a model")]
    ModelName(String),
    #[error("two models have the name `{0}`")]
    SameName(String),
    #[error(transparent)]
    Model(#[from] ptero::Error),
}

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// What is wrong.
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    /// A name of the error, for programs.
    pub code: Option<&'static str>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Shown<'a>,
}

#[derive(Serialize)]
struct Shown<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// A request that is wrong.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// A panic, or a thread that is gone.
    pub(crate) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error; the server goes on")
    }

    /// Returns the error as JSON.
    pub(crate) fn json(&self) -> String {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let Self { message, param, code, .. } = self;
        let error = Shown { message, r#type: kind, param: param.as_deref(), code: *code };
        serde_json::to_string(&Envelope { error }).unwrap_or_default()
    }
}

impl From<ptero::Error> for ApiError {
    fn from(error: ptero::Error) -> Self {
        use ptero::Error as E;
        let message = error.to_string();
        match error.innermost() {
            E::QueueFull { .. } => Self::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full"),
            E::Closed => Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is ending").code("ending"),
            E::Engine(EngineError::NoRoom { .. } | EngineError::ContextFull { .. }) => {
                Self::bad(message).code("context_length_exceeded")
            }
            // The model was chosen by whoever started the server, but the request asks for what it does not have.
            E::Text(_) | E::NoTokenizer | E::NoChatTemplate => Self::bad(message),
            other => match other.kind() {
                ErrorKind::Setting | ErrorKind::Prompt | ErrorKind::Limit => Self::bad(message),
                _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.json()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::GATEWAY_TIMEOUT {
            // OpenAI's clients would ask again for what took too long.
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}
