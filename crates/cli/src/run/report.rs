//! What is said beside the text: the seed and the settings before it, the timings after it.

use super::settings::Words;
use ptero_engine::{Finish, Model, Reason, SampleOptions};
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Eos,
    Length,
    Context,
    Stop,
    Interrupted,
}

impl End {
    /// The engine's reason; only a stop string makes the caller want no more.
    pub(crate) fn of(reason: Reason) -> Self {
        match reason {
            Reason::Eos => Self::Eos,
            Reason::Length => Self::Length,
            Reason::ContextFull => Self::Context,
            Reason::Stopped => Self::Interrupted,
            Reason::Caller => Self::Stop,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Length => "length",
            Self::Context => "context",
            Self::Stop => "stop",
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eos => "the text ended",
            Self::Length => "as long as asked for",
            Self::Context => "the context is full",
            Self::Stop => "a stop string",
            Self::Interrupted => "interrupted",
        })
    }
}

/// What is known before the first token.
pub(crate) struct Start<'a> {
    pub(crate) name: &'a str,
    pub(crate) device: &'a str,
    pub(crate) model: &'a Model,
    pub(crate) options: &'a SampleOptions,
}

impl Start<'_> {
    pub(crate) fn json(&self, prompt_tokens: usize) -> Value {
        let SampleOptions { temperature, top_k, top_p, seed, .. } = self.options;
        json!({
            "event": "start",
            "model": self.name,
            "device": self.device,
            "seed": seed,
            "temperature": decimal(*temperature),
            "top_k": top_k,
            "top_p": top_p.map(decimal),
            "samples_in_program": self.model.samples_itself(),
            "context": self.model.context(),
            "prompt_tokens": prompt_tokens,
        })
    }
}

/// The decimal that was meant, not the binary fraction next to it.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

impl fmt::Display for Start<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: ", self.name, self.device)?;
        self.options.seed.map_or(Ok(()), |seed| write!(f, "seed {seed}, "))?;
        write!(f, "{}", Words(self.options))?;
        if self.model.samples_itself() { Ok(()) } else { f.write_str(", drawn on the host") }
    }
}

/// What is known after the last token.
pub(crate) struct Report<'a> {
    pub(crate) finish: &'a Finish,
    pub(crate) end: End,
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
            "reason": self.end.name(),
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
        write!(f, " · {}", self.end)
    }
}

struct Milliseconds(Duration);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 10.0 { write!(f, "{:.0} ms", seconds * 1e3) } else { write!(f, "{seconds:.1} s") }
    }
}
