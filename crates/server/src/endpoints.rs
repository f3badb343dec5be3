//! The paths of the server.

use crate::answer::{Answer, Choice, Kind, Usage};
use crate::error::ApiError;
use crate::explain::{explain, on_thread, recommended};
use crate::generation::Generation;
use crate::guard::{REQUEST_ID, guard, json_body};
use crate::models::{LoadedModel, ModelEntry};
use crate::origins::cors;
use crate::page;
use crate::prepare::{Prepared, TextRequest};
use crate::record::Record;
use crate::reply::ReplyReader;
use crate::request::{ChatRequest, CompletionRequest, parse};
use crate::responses::{ResponseWriter, ResponsesRequest, merged, repeated};
use crate::server::App;
use crate::stream::{Chunks, EventStream, EventWriter};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};
use serde_json::json;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tower_http::catch_panic::CatchPanicLayer;

/// Returns everything that answers requests.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let router = guarded(routes(), app);
    match cors(&app.config.origins, REQUEST_ID) {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(async || as_json(&json!({"status": "ok"}))))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model).post(load))
        .route("/v1/chat/completions", post(texts::<ChatRequest>))
        .route("/v1/completions", post(texts::<CompletionRequest>))
        .route("/v1/responses", post(response))
        .route("/v1/explain", post(explain))
        .merge(page::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
}

/// Adds who may ask, and an answer to whoever meets a panic.
fn guarded(routes: Router<Arc<App>>, app: &Arc<App>) -> Router {
    routes
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
    let text = app.metrics.text(&app.models, &app.config.batch);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let models: Vec<_> = app.models.iter().map(|entry| about_model(&app, entry)).collect();
    as_json(&json!({"object": "list", "data": models}))
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    app.entry(Some(&id)).map(|entry| as_json(&about_model(&app, entry)))
}

/// Loads a model before it is asked for texts: the page shows its settings.
async fn load(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Arc<Record>>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    app.model(Some(&id), &record).await?;
    app.entry(Some(&id)).map(|entry| as_json(&about_model(&app, entry)))
}

/// Describes a model: of one that is not loaded, little is known.
fn about_model(app: &App, entry: &ModelEntry) -> serde_json::Value {
    let about = json!({
        "id": entry.name(), "object": "model", "created": app.started, "owned_by": "ptero",
        "status": {"value": entry.status()},
    });
    let Some(loaded) = entry.loaded() else { return about };
    let LoadedModel { model, fingerprint, .. } = &*loaded;
    let more = json!({
        "context_length": model.context(), "system_fingerprint": fingerprint,
        "has_chat_template": model.has_chat_template(), "recommended": recommended(model),
    });
    merged(about, more)
}

async fn unknown(request: Request) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no `{} {}`", request.method(), request.uri().path()))
}

async fn not_allowed(request: Request) -> ApiError {
    let message = format!("`{}` does not take {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// Answers a request for texts.
async fn texts<R: TextRequest>(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = json_body(&app, request).await?;
    let request = on_thread(move || parse::<R>(&body)).await?;
    let loaded = app.model(request.model(), &record).await?;
    prepared(&loaded, request).await?.answer(&loaded, record).await
}

/// Answers a request for a response.
async fn response(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = json_body(&app, request).await?;
    let (request, repeated) = on_thread(move || Ok((parse::<ResponsesRequest>(&body)?, repeated(&body)))).await?;
    let loaded = app.model(request.model(), &record).await?;
    let Prepared { generation, shared, reader, .. } = prepared(&loaded, request).await?;
    let answer = Answer::new(&loaded, Kind::Chat, &record.id(), generation.seed, None);
    let mut writer = ResponseWriter::new(answer, &record.id(), repeated);
    if shared.streams {
        return Ok(EventStream::new(generation, Box::new(writer), reader, record).into_response());
    }
    let (mut texts, usage) = wait(generation, writer.answer(), reader, &record).await?;
    texts.iter_mut().for_each(|text| drop(writer.parts(0, text)));
    writer.closing(usage);
    Ok(as_json(&writer.response()))
}

/// Submits the texts of a request. Tokenizers, templates and grammars take their time, so another thread does it.
async fn prepared(loaded: &Arc<LoadedModel>, request: impl TextRequest) -> Result<Prepared, ApiError> {
    let loaded = Arc::clone(loaded);
    on_thread(move || request.prepare(&loaded)).await
}

impl Prepared {
    async fn answer(self, loaded: &LoadedModel, record: Arc<Record>) -> Result<Response, ApiError> {
        let Self { kind, generation, shared, likeliest, reader, prompts } = self;
        let answer = Answer::new(loaded, kind, &record.id(), generation.seed, likeliest);
        let answer = answer.with_token_ids(prompts, generation.choices);
        if shared.streams {
            let writer = Chunks { answer, includes_usage: shared.includes_usage };
            return Ok(EventStream::new(generation, Box::new(writer), reader, record).into_response());
        }
        let (mut texts, usage) = wait(generation, &answer, reader, &record).await?;
        Ok(json_text(answer.whole(&mut texts, usage)))
    }
}

/// Waits for all texts.
async fn wait(
    mut generation: Generation,
    answer: &Answer,
    reader: Option<ReplyReader>,
    record: &Record,
) -> Result<(Vec<Choice>, Usage), ApiError> {
    record.note(|log| log.prompt_tokens = generation.prompt_tokens);
    let mut texts = vec![Choice::new(reader); generation.texts];
    let mut left = generation.texts;
    while left > 0 {
        let next = generation.next().await.ok_or_else(ApiError::internal);
        let ended = next.and_then(|(index, event)| answer.take(texts.get_mut(index), event)).inspect_err(|error| {
            record.note(|log| log.trouble = Some(error.message.clone()));
        })?;
        left -= usize::from(ended);
    }
    record.note(|log| log.new_tokens = Usage::new_tokens(&texts));
    let usage = Usage::of(&texts, generation.choices, generation.prompt_tokens);
    Ok((texts, usage))
}

#[cfg(test)]
mod tests;
