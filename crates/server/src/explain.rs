//! Why a token was drawn: `POST /v1/explain`. The logits come from the batcher, and the sampling contract explains them.

use crate::endpoints::json_text;
use crate::error::ApiError;
use crate::generation::with;
use crate::guard::json_body;
use crate::models::LoadedModel;
use crate::record::Record;
use crate::request::{biases, check_text_start, parse};
use crate::server::App;
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use ptero::{Candidate, Filter, GeneratorBuilder, Model, Settings, TextEvent, TextSink, TokenId, TokenSettings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Candidates, if nothing else is asked for.
const CANDIDATES: usize = 10;
/// The most candidates.
const MOST_CANDIDATES: usize = 50;

/// A request for the reasons of a draw.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainRequest {
    model: Option<String>,
    /// The tokens before.
    prompt: Vec<TokenId>,
    /// Which of them are of the text.
    text_start: Option<usize>,
    /// The seed of this one token.
    seed: i64,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    #[serde(default)]
    logit_bias: BTreeMap<String, f32>,
    count: Option<usize>,
    /// A token to show in any case.
    token: Option<TokenId>,
}

impl ExplainRequest {
    fn settings(&self, model: &Model) -> Result<GeneratorBuilder, ApiError> {
        let settings = model.generator().host_sampling(true).seed(self.seed).logit_bias(biases(&self.logit_bias)?);
        let settings = with(settings, self.temperature, GeneratorBuilder::temperature);
        let settings = with(settings, self.top_k, GeneratorBuilder::top_k);
        let settings = with(settings, self.top_p, GeneratorBuilder::top_p);
        let settings = with(settings, self.min_p, GeneratorBuilder::min_p);
        let settings = with(settings, self.repetition_penalty, GeneratorBuilder::repetition_penalty);
        let settings = with(settings, self.presence_penalty, GeneratorBuilder::presence_penalty);
        Ok(with(settings, self.frequency_penalty, GeneratorBuilder::frequency_penalty))
    }

    fn count(&self) -> Result<usize, ApiError> {
        let count = self.count.unwrap_or(CANDIDATES);
        let message = || format!("`count` is {count}; from 1 to {MOST_CANDIDATES} are possible");
        let is_possible = (1..=MOST_CANDIDATES).contains(&count);
        is_possible.then_some(count).ok_or_else(|| ApiError::bad(message()).param("count"))
    }
}

/// A request whose logits are asked for.
struct Asked {
    request: ExplainRequest,
    settings: GeneratorBuilder,
    count: usize,
    logits: oneshot::Receiver<Result<Vec<f32>, ApiError>>,
}

pub(crate) async fn explain(
    State(app): State<Arc<App>>,
    Extension(record): Extension<Arc<Record>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = json_body(&app, request).await?;
    let request: ExplainRequest = on_thread(move || parse(&body)).await?;
    let loaded = app.model(request.model.as_deref(), &record).await?;
    let asking = Arc::clone(&loaded);
    let asked = on_thread(move || ask(&asking, request)).await?;
    record.note(|log| log.prompt_tokens = asked.request.prompt.len());
    let Asked { request, settings, count, logits } = asked;
    let logits = logits.await.unwrap_or_else(|_gone| Err(ApiError::internal()))?;
    on_thread(move || answer(&loaded, &request, &settings, &logits, count)).await.map(json_text)
}

/// Does what takes its time on another thread.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_panic| Err(ApiError::internal()))
}

fn ask(loaded: &LoadedModel, request: ExplainRequest) -> Result<Asked, ApiError> {
    let (model, count) = (&loaded.model, request.count()?);
    check_text_start(request.text_start.unwrap_or(0), request.prompt.len())?;
    let settings = request.settings(model)?;
    settings.check()?;
    let vocabulary = model.vocabulary();
    if let Some(token) = request.token.filter(|token| usize::try_from(*token).is_ok_and(|token| token >= vocabulary)) {
        let message = format!("`token` is {token}, which is outside the vocabulary of {vocabulary}");
        return Err(ApiError::bad(message).param("token"));
    }
    let (reply, logits) = oneshot::channel();
    loaded.batcher.logits(model, &request.prompt, Box::new(LogitsSink { reply: Some(reply) }))?;
    Ok(Asked { request, settings, count, logits })
}

/// Passes logits on to the task that waits for them.
struct LogitsSink {
    reply: Option<oneshot::Sender<Result<Vec<f32>, ApiError>>>,
}

impl LogitsSink {
    fn reply(&mut self, logits: Result<Vec<f32>, ApiError>) {
        // If nobody waits any more, nobody needs it.
        self.reply.take().map(|reply| reply.send(logits));
    }
}

impl TextSink for LogitsSink {
    fn send(&mut self, event: TextEvent) {
        if let TextEvent::Failed(error) = event {
            self.reply(Err(error.into()));
        }
    }

    fn send_logits(&mut self, logits: Vec<f32>) {
        self.reply(Ok(logits));
    }

    fn is_wanted(&self) -> bool {
        !self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

#[derive(Serialize)]
struct ShownExplanation<'a> {
    object: &'static str,
    model: &'a str,
    system_fingerprint: &'a str,
    seed: i64,
    /// The position of the token: the number of tokens before it.
    position: usize,
    settings: ShownSettings,
    vocabulary: usize,
    left: ShownLeft,
    winner: TokenId,
    candidates: Vec<ShownCandidate>,
}

/// How a token is sampled, in the words of requests.
#[derive(Serialize)]
struct ShownSettings {
    temperature: f32,
    /// 0: all.
    top_k: i64,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
}

/// The number of tokens that are left.
#[derive(Serialize)]
struct ShownLeft {
    before: usize,
    top_k: usize,
    top_p: usize,
    min_p: usize,
}

/// A candidate. JSON has no infinity: such a number is `null`.
#[derive(Serialize)]
struct ShownCandidate {
    token: TokenId,
    text: String,
    bytes: Vec<u8>,
    is_end: bool,
    rank: usize,
    logit: Option<f32>,
    adjusted_logit: Option<f32>,
    logprob: Option<f32>,
    probability: f32,
    dropped_by: Option<&'static str>,
    noise: Option<f32>,
    score: Option<f32>,
}

fn answer(
    loaded: &LoadedModel,
    request: &ExplainRequest,
    settings: &GeneratorBuilder,
    logits: &[f32],
    count: usize,
) -> Result<String, ApiError> {
    let model = &loaded.model;
    let text_start = request.text_start.unwrap_or(request.prompt.len());
    let also: Vec<TokenId> = request.token.into_iter().collect();
    let found = settings.explain(&request.prompt, text_start, logits, count, &also)?;
    let [before, top_k, top_p, min_p] = found.left;
    let ends = model.end_tokens();
    let candidates = found.candidates.iter().map(|candidate| shown(model, candidate, &ends));
    let shown = ShownExplanation {
        object: "explanation",
        model: model.name(),
        system_fingerprint: &loaded.fingerprint,
        seed: request.seed,
        position: request.prompt.len(),
        settings: ShownSettings::of(&settings.token_settings()?, logits.len()),
        vocabulary: logits.len(),
        left: ShownLeft { before, top_k, top_p, min_p },
        winner: TokenId::try_from(found.winner).map_err(|_| ApiError::internal())?,
        candidates: candidates.collect::<Result<_, _>>()?,
    };
    serde_json::to_string(&shown).map_err(|_| ApiError::internal())
}

fn shown(model: &Model, candidate: &Candidate, ends: &[TokenId]) -> Result<ShownCandidate, ApiError> {
    let Candidate { token, rank, logit, adjusted, log_probability, probability, dropped_by, noise, score } = *candidate;
    let token = TokenId::try_from(token).map_err(|_| ApiError::internal())?;
    let bytes = model.token_bytes(token)?;
    let finite = |number: f32| Some(number).filter(|number| number.is_finite());
    Ok(ShownCandidate {
        token,
        text: String::from_utf8_lossy(&bytes).into_owned(),
        bytes,
        is_end: ends.contains(&token),
        rank,
        logit: finite(logit),
        adjusted_logit: finite(adjusted),
        logprob: finite(log_probability),
        probability,
        dropped_by: dropped_by.map(|filter| match filter {
            Filter::Excluded => "excluded",
            Filter::TopK => "top_k",
            Filter::TopP => "top_p",
            Filter::MinP => "min_p",
        }),
        noise: noise.and_then(finite),
        score: finite(score),
    })
}

impl ShownSettings {
    fn of(token: &TokenSettings, vocabulary: usize) -> Self {
        let Settings { temperature, top_k, top_p, min_p, exact_tail: _ } = token.settings;
        let keeps_all = usize::try_from(top_k).is_ok_and(|top_k| top_k >= vocabulary);
        Self {
            temperature,
            top_k: if keeps_all { 0 } else { top_k },
            top_p,
            min_p,
            repetition_penalty: token.penalties.repetition,
            presence_penalty: token.penalties.presence,
            frequency_penalty: token.penalties.frequency,
        }
    }
}

/// Returns what requests that name no settings get.
pub(crate) fn recommended(model: &Model) -> Option<serde_json::Value> {
    let settings = model.generator().host_sampling(true).token_settings().ok()?;
    let shown = serde_json::to_string(&ShownSettings::of(&settings, model.vocabulary())).ok()?;
    // Through text, which has 0.8 for the f32 next to it.
    serde_json::from_str(&shown).ok()
}
