//! Prompts and steps of decoding, timed.

use super::BenchArgs;
use super::report::{Bytes, Figures, FirstToken, Run, Skipped, Test, Traffic};
use super::setup::{Device, Source};
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use ptero_cpu::machine::Spread;
use ptero_engine::{Draw, Engine, Session, TokenId};
use ptero_tensor::SplitMix64;
use std::time::Instant;

/// The tests that fit the model.
pub(super) struct Bench {
    repeats: u32,
    steps: usize,
    prompts: Vec<usize>,
    depths: Vec<usize>,
    skipped: Vec<Skipped>,
}

impl Bench {
    pub(super) fn new(args: &BenchArgs, model: &Engine) -> Self {
        let (context, steps) = (model.context(), args.decode);
        let (prompts, long): (Vec<usize>, Vec<usize>) =
            args.prompt_lengths.iter().filter(|length| **length > 0).partition(|length| **length <= context);
        let fits = |depth: &&usize| depth.checked_add(steps).is_some_and(|end| end <= context);
        let (depths, deep): (Vec<usize>, Vec<usize>) = args.depths.iter().filter(|_| steps > 0).partition(fits);
        let long = long.into_iter().map(|length| Skipped::new("prefill", length, None, context));
        let deep = deep.into_iter().map(|depth| Skipped::new("decode", steps, Some(depth), context));
        Self { repeats: args.repeat, steps, prompts, depths, skipped: long.chain(deep).collect() }
    }

    pub(super) fn skipped(&self) -> Vec<Skipped> {
        self.skipped.clone()
    }

    /// What else there is to say where nothing fits.
    pub(super) fn why(&self) -> &'static str {
        if self.skipped.is_empty() { "" } else { ", and every test is longer" }
    }

    /// Runs of tests, those to warm up included.
    pub(super) fn rounds(&self) -> u64 {
        (self.prompts.len() + self.depths.len()) as u64 * (u64::from(self.repeats) + 1)
    }

    /// The first depth that fits.
    pub(super) fn first_depth(&self) -> Option<usize> {
        self.depths.first().copied()
    }

    pub(super) fn run(&self, device: &Device, model: &Engine, source: &Source, progress: &ProgressBar) -> Result<Run> {
        let tokens = Tokens::new(model);
        let start = Instant::now();
        let mut session = model.session()?;
        let first = self.prompts.iter().min().copied().unwrap_or(1);
        session.prefill(&tokens.prompt(first), &Draw::GREEDY)?;
        let first_token = FirstToken { prompt_tokens: first, ms: 1e3 * start.elapsed().as_secs_f64() };
        let mut run = Run {
            threads: device.threads,
            open_ms: 1e3 * source.program.open_time().as_secs_f64(),
            compile_ms: 1e3 * model.load_time().as_secs_f64(),
            first_token,
            tests: Vec::new(),
            sampling: None,
        };
        for length in &self.prompts {
            progress.set_message(format!("prompt of {length}"));
            run.tests.push(self.prefill(&mut session, &tokens, *length, progress)?);
        }
        for depth in &self.depths {
            progress.set_message(format!("decoding at {depth}"));
            run.tests.push(self.decode(device, &mut session, &tokens, *depth, progress)?);
        }
        Ok(run)
    }

    fn prefill(&self, session: &mut Session, tokens: &Tokens, length: usize, progress: &ProgressBar) -> Result<Test> {
        let prompt = tokens.prompt(length);
        let seconds = self.repeat(progress, || {
            session.reset()?;
            let start = Instant::now();
            session.prefill(&prompt, &Draw::GREEDY)?;
            Ok(start.elapsed().as_secs_f64())
        })?;
        Ok(Test::new("prefill", length, None, seconds))
    }

    fn decode(
        &self,
        device: &Device,
        session: &mut Session,
        tokens: &Tokens,
        depth: usize,
        progress: &ProgressBar,
    ) -> Result<Test> {
        session.reset()?;
        let seconds = self.repeat(progress, || {
            let mut token = tokens.fill(session, depth)?;
            let start = Instant::now();
            for _ in 0..self.steps {
                token = session.decode(token, &Draw::GREEDY)?;
            }
            Ok(start.elapsed().as_secs_f64())
        })?;
        let mut test = Test::new("decode", self.steps, Some(depth), seconds);
        let bytes = mean_bytes(session.engine(), depth, self.steps);
        test.traffic = Some(Traffic::new(bytes, test.ms_per_token.median, device.bandwidth()));
        Ok(test)
    }

    /// Once to warm up, then as often as was asked for.
    fn repeat(&self, progress: &ProgressBar, mut work: impl FnMut() -> Result<f64>) -> Result<Spread> {
        let mut seconds = Vec::new();
        for round in 0..=self.repeats {
            let time = work()?;
            if round > 0 {
                seconds.push(time);
            }
            progress.inc(1);
        }
        Spread::of(seconds).context("no repeats")
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts of tokens and bytes are below 2^53")]
impl Test {
    fn new(test: &'static str, tokens: usize, depth: Option<usize>, seconds: Spread) -> Self {
        let count = tokens as f64;
        let (tokens_per_s, ms_per_token) = (Figures::rate(count, seconds), Figures::milliseconds(count, seconds));
        Self { test, tokens, depth, tokens_per_s, ms_per_token, traffic: None }
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts of tokens and bytes are below 2^53")]
impl Traffic {
    fn new(bytes_per_step: Bytes, ms: f64, bandwidth: Option<f64>) -> Self {
        let gb_per_s = 1e-6 * (bytes_per_step.weights + bytes_per_step.state) as f64 / ms;
        let machine_gb_per_s = bandwidth.map(|bandwidth| 1e-9 * bandwidth);
        let share_of_bandwidth = machine_gb_per_s.map(|machine| gb_per_s / machine);
        Self { bytes_per_step, gb_per_s, machine_gb_per_s, share_of_bandwidth }
    }
}

/// What the steps of a test read, in the mean.
fn mean_bytes(model: &Engine, depth: usize, steps: usize) -> Bytes {
    let sum = (depth..depth + steps)
        .map(|position| model.step_bytes(position))
        .fold((0, 0), |sum, step| (sum.0 + u128::from(step.weights), sum.1 + u128::from(step.state)));
    let mean = |sum: u128| u64::try_from(sum / steps.max(1) as u128).unwrap_or(u64::MAX);
    Bytes { weights: mean(sum.0), state: mean(sum.1) }
}

/// Prompts of no meaning.
pub(super) struct Tokens {
    vocabulary: u64,
    /// Those that begin and end texts.
    special: Vec<TokenId>,
}

impl Tokens {
    pub(super) fn new(model: &Engine) -> Self {
        let special = model.eos_ids().iter().copied().chain(model.bos_id()).collect();
        Self { vocabulary: model.vocabulary() as u64, special }
    }

    /// The same tokens in every run.
    pub(super) fn prompt(&self, length: usize) -> Vec<TokenId> {
        let mut rng = SplitMix64::new(0);
        let mut next = move || TokenId::try_from(rng.below(self.vocabulary)).unwrap_or(0);
        // A vocabulary of nothing else would have no other.
        let is_plain = |token: &TokenId| !self.special.contains(token) || self.vocabulary <= self.special.len() as u64;
        std::iter::from_fn(|| Some(next())).filter(is_plain).take(length).collect()
    }

    /// Brings a session to that position, and gives the token to go on with.
    pub(super) fn fill(&self, session: &mut Session, depth: usize) -> Result<TokenId> {
        if session.position() < depth || session.rewind(depth).is_err() {
            session.reset()?;
            if depth > 0 {
                session.prefill(&self.prompt(depth), &Draw::GREEDY)?;
            }
        }
        Ok(self.prompt(depth + 1).pop().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_the_same_in_every_run_and_hold_no_special_tokens() {
        let tokens = Tokens { vocabulary: 10, special: vec![0, 7] };
        let prompt = tokens.prompt(1000);
        assert_eq!(prompt, tokens.prompt(1000));
        assert_eq!(prompt.len(), 1000);
        let mut seen = prompt.clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [1, 2, 3, 4, 5, 6, 8, 9]);
        assert_eq!(Tokens { vocabulary: 1, special: vec![0] }.prompt(3), [0, 0, 0]);
    }
}
