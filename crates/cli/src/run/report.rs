//! What is shown beside the text: seed and settings before it, timings after it.

use super::settings::Words;
use ptero::{Finish, FinishReason, Model, SampleOptions};
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// Returns the name of a reason in JSON.
fn name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfText => "eos",
        FinishReason::Length => "length",
        FinishReason::ContextFull => "context",
        FinishReason::StopString => "stop",
        FinishReason::Stopped => "interrupted",
    }
}

/// Returns a reason in words.
fn words(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfText => "the text ended",
        FinishReason::Length => "as long as asked for",
        FinishReason::ContextFull => "the context is full",
        FinishReason::StopString => "a stop string",
        FinishReason::Stopped => "interrupted",
    }
}

/// What is known before the first token.
pub(crate) struct Start<'a> {
    pub(crate) model: &'a Model,
    pub(crate) options: &'a SampleOptions,
    pub(crate) prompt_tokens: usize,
}

impl Start<'_> {
    pub(crate) fn json(&self) -> Value {
        let SampleOptions { temperature, top_k, top_p, seed, .. } = self.options;
        json!({
            "event": "start",
            "model": self.model.name(),
            "device": self.model.device().name(),
            "seed": seed,
            "temperature": decimal(*temperature),
            "top_k": top_k,
            "top_p": top_p.map(decimal),
            "samples_in_program": self.model.samples_itself(),
            "context": self.model.context(),
            "prompt_tokens": self.prompt_tokens,
        })
    }
}

/// Returns the shortest decimal that is this number, not its exact binary fraction.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

impl fmt::Display for Start<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: ", self.model.name(), self.model.device())?;
        self.options.seed.map_or(Ok(()), |seed| write!(f, "seed {seed}, "))?;
        write!(f, "{}", Words(self.options))?;
        if self.model.samples_itself() { Ok(()) } else { f.write_str(", sampled on the host") }
    }
}

/// What is known after the last token.
pub(crate) struct Report<'a> {
    pub(crate) finish: &'a Finish,
    /// From the start of the command until the model could be used; none after the first text.
    pub(crate) load: Option<Duration>,
    /// From the start of the command, or of the reply, until its first token.
    pub(crate) first_token: Option<Duration>,
}

impl Report<'_> {
    pub(crate) fn json(&self) -> Value {
        let timings = &self.finish.timings;
        json!({
            "event": "end",
            "reason": name(self.finish.reason),
            "prompt_tokens": timings.prompt_tokens,
            "new_tokens": timings.new_tokens,
            "load_seconds": self.load.map(|time| time.as_secs_f64()),
            "first_token_seconds": self.first_token.map(|time| time.as_secs_f64()),
            "prefill_seconds": timings.prefill.as_secs_f64(),
            "decode_seconds": timings.decode.as_secs_f64(),
            "prefill_tokens_per_second": timings.prefill_rate(),
            "decode_tokens_per_second": timings.decode_rate(),
        })
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timings = &self.finish.timings;
        self.load.map_or(Ok(()), |load| write!(f, "load {} · ", Milliseconds(load)))?;
        write!(f, "prompt {} tokens, {:.0}/s · ", timings.prompt_tokens, timings.prefill_rate())?;
        self.first_token.map_or(Ok(()), |time| write!(f, "first token after {} · ", Milliseconds(time)))?;
        write!(f, "{} tokens", timings.new_tokens)?;
        // The first token is the prompt's.
        if timings.decode_steps > 0 {
            write!(f, ", {:.1}/s", timings.decode_rate())?;
        }
        write!(f, " · {}", words(self.finish.reason))
    }
}

struct Milliseconds(Duration);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 10.0 { write!(f, "{:.0} ms", seconds * 1e3) } else { write!(f, "{seconds:.1} s") }
    }
}
