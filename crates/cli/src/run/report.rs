//! What is printed besides the text: the seed and the settings before it, the timings after it.

use super::settings::words;
use ptero::{Finish, FinishReason, Model, SampleOptions};
use serde_json::{Value, json};
use std::time::Duration;

/// The same note for people and as a JSON event.
pub(crate) struct Note {
    pub(crate) text: String,
    pub(crate) json: Value,
}

/// Returns the note before the first token.
pub(crate) fn start(model: &Model, options: &SampleOptions, prompt_tokens: usize) -> Note {
    let SampleOptions { temperature, top_k, top_p, min_p, seed, .. } = options;
    let json = json!({
        "event": "start",
        "model": model.name(),
        "device": model.device().name(),
        "seed": seed,
        "temperature": decimal(*temperature),
        "top_k": top_k,
        "top_p": top_p.map(decimal),
        "min_p": min_p.map(decimal),
        "repetition_penalty": options.repetition_penalty.map(decimal),
        "presence_penalty": options.presence_penalty.map(decimal),
        "frequency_penalty": options.frequency_penalty.map(decimal),
        "exact_tail": options.exact_tail,
        "samples_in_program": model.samples_itself(),
        "context": model.context(),
        "prompt_tokens": prompt_tokens,
    });
    let seed = seed.map(|seed| format!("seed {seed}, ")).unwrap_or_default();
    let host = if model.samples_itself() { "" } else { ", sampled on the host" };
    Note { text: format!("{} on {}: {seed}{}{host}", model.name(), model.device(), words(options)), json }
}

/// Returns the shortest decimal that rounds to `value`, such as 0.8 rather than 0.800000011920929; `null` for infinity and NaN.
pub(crate) fn decimal(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or_else(|_| value.into()))
}

/// Returns the note after the last token. `load` is the time from the start of the command until the model was ready, and `None`
/// after the first text; `first` is the time from the start of the command or of the reply until its first token.
pub(crate) fn end(finish: &Finish, load: Option<Duration>, first: Option<Duration>) -> Note {
    let timings = &finish.timings;
    let description = match finish.reason {
        FinishReason::EndOfText => "the text ended",
        FinishReason::Length => "as long as asked for",
        FinishReason::ContextFull => "the context is full",
        FinishReason::StopString => "a stop string",
        FinishReason::Stopped => "interrupted",
    };
    let json = json!({
        "event": "end",
        "reason": finish.reason.name(),
        "prompt_tokens": timings.prompt_tokens,
        "new_tokens": timings.new_tokens,
        "load_seconds": load.map(|time| time.as_secs_f64()),
        "first_token_seconds": first.map(|time| time.as_secs_f64()),
        "prefill_seconds": timings.prefill.as_secs_f64(),
        "decode_seconds": timings.decode.as_secs_f64(),
        "prefill_tokens_per_second": timings.prefill_rate(),
        "decode_tokens_per_second": timings.decode_rate(),
    });
    let load = load.map(|load| format!("load {} · ", shown(load))).unwrap_or_default();
    let prompt = format!("prompt {} tokens, {:.0}/s", timings.prompt_tokens, timings.prefill_rate());
    let first = first.map(|first| format!("first token after {} · ", shown(first))).unwrap_or_default();
    // Prefill gives the first token, so there may be no decoding step.
    let steps = Some(timings.decode_steps).filter(|steps| *steps > 0);
    let rate = steps.map(|_| format!(", {:.1}/s", timings.decode_rate())).unwrap_or_default();
    Note { text: format!("{load}{prompt} · {first}{} tokens{rate} · {description}", timings.new_tokens), json }
}

fn shown(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 10.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}
