//! The paths of the server.

use crate::answer::{Answer, Choice, Kind, Usage};
use crate::error::ApiError;
use crate::explain::{explain, recommended};
use crate::generation::{Generation, settings};
use crate::guard::{guard, json_body};
use crate::page;
use crate::record::Record;
use crate::request::{ChatRequest, CompletionRequest, OnePrompt, Shared, parse};
use crate::server::App;
use crate::stream::EventStream;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};
use ptero::{TextEvent, TokenId};
use serde_json::json;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tower_http::catch_panic::CatchPanicLayer;

/// Tokens of a completion, if nothing else is asked for: OpenAI's default.
const COMPLETION_TOKENS: usize = 16;

/// Returns everything that answers requests.
pub(crate) fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/health", get(async || as_json(&json!({"status": "ok"}))))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/explain", post(explain))
        .merge(page::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .layer(CatchPanicLayer::custom(|_: Box<dyn Any + Send>| ApiError::internal().into_response()))
        .layer(middleware::from_fn_with_state(Arc::clone(app), guard))
        .with_state(Arc::clone(app))
}

fn as_json(value: &serde_json::Value) -> Response {
    json_text(value.to_string())
}

pub(crate) fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let is_ending = app.is_ending.load(Ordering::Relaxed);
    let ending = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is ending").code("ending");
    if is_ending { Err(ending()) } else { Ok(as_json(&json!({"status": "ready"}))) }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.text(&app.batcher.stats(), &app.config.batch);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn models(State(app): State<Arc<App>>) -> Response {
    as_json(&json!({"object": "list", "data": [about_model(&app)]}))
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    check_model(&app, Some(&id)).map(|()| as_json(&about_model(&app)))
}

fn about_model(app: &App) -> serde_json::Value {
    let model = &app.config.model;
    json!({
        "id": model.name(), "object": "model", "created": app.started, "owned_by": "ptero",
        "context_length": model.context(), "system_fingerprint": app.fingerprint,
        "has_chat_template": model.has_chat_template(), "recommended": recommended(model),
    })
}

async fn unknown(request: Request) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no `{} {}`", request.method(), request.uri().path()))
}

async fn not_allowed(request: Request) -> ApiError {
    let message = format!("`{}` does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

pub(crate) fn check_model(app: &App, asked: Option<&str>) -> Result<(), ApiError> {
    let name = app.config.model.name();
    let refused = |asked: &str| {
        let message = format!("there is no model `{asked}`; this server has `{name}`");
        ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found")
    };
    asked.filter(|asked| *asked != name).map_or(Ok(()), |asked| Err(refused(asked)))
}

async fn chat(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = json_body(&app, request).await?;
    let prepare = move |app: &App| {
        let mut request: ChatRequest = parse(&body)?;
        let shared = request.shared();
        check_model(app, shared.model.as_deref())?;
        let (likeliest, most) = (request.logprobs()?, request.most_tokens()?);
        let variables = request.chat_template_kwargs.take().unwrap_or_default();
        let prompt = app.config.model.encode_chat(&request.messages()?, &variables)?;
        let settings = settings(&app.config.model, &shared, most, likeliest)?;
        let prompts = vec![prompt];
        let generation = Generation::start(app, &settings, &prompts, shared.choices)?;
        let prompts = shared.returns_token_ids.then_some(prompts);
        Ok(Prepared { kind: Kind::Chat, generation, shared, likeliest, prompts })
    };
    prepared(&app, prepare).await?.answer(&app, record).await
}

async fn completion(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = json_body(&app, request).await?;
    let prepare = move |app: &App| {
        let mut request: CompletionRequest = parse(&body)?;
        let shared = request.shared();
        check_model(app, shared.model.as_deref())?;
        let likeliest = request.logprobs()?;
        let prompts = request.prompt.0.into_iter().map(|prompt| tokens(app, prompt));
        let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
        let most = shared.max_tokens.or(Some(COMPLETION_TOKENS));
        let settings = settings(&app.config.model, &shared, most, likeliest)?;
        let generation = Generation::start_text(app, &settings, &prompts, request.text_start, shared.choices)?;
        let prompts = shared.returns_token_ids.then_some(prompts);
        Ok(Prepared { kind: Kind::Completion, generation, shared, likeliest, prompts })
    };
    prepared(&app, prepare).await?.answer(&app, record).await
}

fn tokens(app: &App, prompt: OnePrompt) -> Result<Vec<TokenId>, ApiError> {
    let model = &app.config.model;
    Ok(match prompt {
        OnePrompt::Text(text) if text.is_empty() => model.beginning()?,
        OnePrompt::Text(text) => model.encode(&text)?,
        OnePrompt::Tokens(tokens) => tokens,
    })
}

/// A request whose texts wait in the batcher.
struct Prepared {
    kind: Kind,
    generation: Generation,
    shared: Shared,
    likeliest: Option<usize>,
    /// The tokens of each prompt, if they are asked for.
    prompts: Option<Vec<Vec<TokenId>>>,
}

/// Reads a request and submits its texts. Tokenizers, templates and grammars take their time, so another thread does it.
async fn prepared(
    app: &Arc<App>,
    prepare: impl FnOnce(&App) -> Result<Prepared, ApiError> + Send + 'static,
) -> Result<Prepared, ApiError> {
    let app = Arc::clone(app);
    let prepared = tokio::task::spawn_blocking(move || prepare(&app)).await;
    prepared.unwrap_or_else(|_panic| Err(ApiError::internal()))
}

impl Prepared {
    async fn answer(self, app: &App, record: Arc<Record>) -> Result<Response, ApiError> {
        let Self { kind, generation, shared, likeliest, prompts } = self;
        let answer = Answer::new(app, kind, &record.id(), generation.seed, likeliest);
        let answer = answer.with_token_ids(prompts, generation.choices);
        if shared.streams {
            return Ok(EventStream::new(generation, answer, shared.includes_usage, record).into_response());
        }
        record.note(|log| log.prompt_tokens = generation.prompt_tokens);
        whole(generation, &answer, &record).await.inspect_err(|error| {
            record.note(|log| log.trouble = Some(error.message.clone()));
        })
    }
}

/// Waits for all texts.
async fn whole(mut generation: Generation, answer: &Answer, record: &Record) -> Result<Response, ApiError> {
    let mut texts = vec![Choice::default(); generation.texts];
    let mut left = generation.texts;
    while left > 0 {
        let (index, happened) = generation.next().await.ok_or_else(ApiError::internal)?;
        let choice = texts.get_mut(index).ok_or_else(ApiError::internal)?;
        match happened {
            TextEvent::Piece(piece) => answer.add(choice, piece)?,
            TextEvent::End(finish) => {
                choice.end(&finish);
                left -= 1;
            }
            TextEvent::Failed(error) => return Err(error.into()),
        }
    }
    record.note(|log| log.new_tokens = Usage::new_tokens(&texts));
    let usage = Usage::of(&texts, generation.choices, generation.prompt_tokens);
    Ok(json_text(answer.whole(&mut texts, usage)))
}
