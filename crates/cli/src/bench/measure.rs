//! Times prompts and decoding steps.

use super::BenchArgs;
use super::profile::{Profile, Samples, WeightNames};
use super::report::{Bytes, FirstToken, Run, Skipped, Test, Traffic};
use super::setup::{Device, Source};
use crate::print::counted;
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use ptero_cpu::machine::Spread;
use ptero_cpu::profile::Profiler;
use ptero_engine::{CallLane, Engine, Session, StopFlag, TokenId, TokenSettings, call_together};
use ptero_tensor::SplitMix64;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Instant;

/// Decodes one token per session.
type DecodeStep<'a> = &'a mut dyn FnMut() -> Result<()>;

/// The tests that fit the context of the model.
pub(super) struct Bench {
    repeats: u32,
    steps: usize,
    prompts: Vec<usize>,
    depths: Vec<usize>,
    lanes: Vec<usize>,
    pub(super) skipped: Vec<Skipped>,
    /// Records the steps of the model, for a profile of each test.
    profiler: Option<Arc<Profiler>>,
}

impl Bench {
    pub(super) fn new(args: &BenchArgs, model: &Engine, profiler: Option<Arc<Profiler>>) -> Self {
        let (context, steps) = (model.context(), args.decode);
        let (prompts, long): (Vec<usize>, Vec<usize>) =
            args.prompt_lengths.iter().filter(|length| **length > 0).partition(|length| **length <= context);
        let fits = |depth: &&usize| depth.checked_add(steps).is_some_and(|end| end <= context);
        let (depths, deep): (Vec<usize>, Vec<usize>) = args.depths.iter().filter(|_| steps > 0).partition(fits);
        let reason = format!("does not fit the context of {context} tokens");
        let skip = |test, tokens, depth| Skipped { test, tokens, depth, reason: reason.clone() };
        let long = long.into_iter().map(|length| skip("prefill", length, None));
        let deep = deep.into_iter().map(|depth| skip("decode", steps, Some(depth)));
        let lanes = args.lanes.iter().map(|lanes| usize::from(*lanes)).collect();
        Self { repeats: args.repeat, steps, prompts, depths, lanes, skipped: long.chain(deep).collect(), profiler }
    }

    /// Decoding alone, from the first position.
    pub(super) fn decoding(steps: usize, repeats: u32, model: &Engine) -> Self {
        let steps = steps.min(model.context());
        Self {
            repeats,
            steps,
            prompts: Vec::new(),
            depths: vec![0],
            lanes: vec![1],
            skipped: Vec::new(),
            profiler: None,
        }
    }

    /// Returns the number of rounds of all tests: one to warm up, those that are measured, and those that are recorded.
    pub(super) fn rounds(&self) -> u64 {
        let (tests, repeats) = (self.prompts.len() + self.depths.len() * self.lanes.len(), u64::from(self.repeats));
        tests as u64 * (1 + repeats + if self.profiler.is_some() { repeats } else { 0 })
    }

    /// Returns the first depth that fits.
    pub(super) fn first_depth(&self) -> Option<usize> {
        self.depths.first().copied()
    }

    pub(super) fn run(&self, device: &Device, model: &Engine, source: &Source, progress: &ProgressBar) -> Result<Run> {
        let tokens = Tokens::new(model);
        let start = Instant::now();
        let mut session = model.session()?;
        let first = self.prompts.iter().min().copied().unwrap_or(1);
        session.prefill(&tokens.prompt(first), &TokenSettings::GREEDY)?;
        let mut run = Run {
            threads: device.threads,
            open_ms: 1e3 * source.program.open_time().as_secs_f64(),
            compile_ms: 1e3 * model.load_time().as_secs_f64(),
            first_token: FirstToken { prompt_tokens: first, ms: 1e3 * start.elapsed().as_secs_f64() },
            tests: Vec::new(),
            sampling: None,
        };
        let names = WeightNames::new(source.program.verified());
        for length in &self.prompts {
            progress.set_message(format!("prompt of {length}"));
            let prompt = tokens.prompt(*length);
            let seconds = self.repeat(progress, || {
                session.reset()?;
                let start = Instant::now();
                session.prefill(&prompt, &TokenSettings::GREEDY)?;
                Ok(start.elapsed().as_secs_f64())
            })?;
            let mut test = Test::new("prefill", *length, None, seconds);
            let samples = self.record(progress, |profiler, samples| {
                session.reset()?;
                samples.record(profiler, || Ok(session.prefill(&prompt, &TokenSettings::GREEDY).map(drop)?))
            })?;
            test.profile = self.profile(&names, samples, || device.bandwidth());
            run.tests.push(test);
        }
        for depth in &self.depths {
            session.reset()?;
            for lanes in &self.lanes {
                progress.set_message(format!("decoding at {depth}, {}", counted(*lanes, "lane")));
                let (seconds, samples) = self.decode(&mut session, &tokens, (*depth, *lanes), progress)?;
                let mut test = Test::new("decode", self.steps, Some(*depth), seconds).with_lanes(*lanes);
                let bytes = mean_bytes(model, *depth, self.steps);
                let bytes = Bytes { state: bytes.state * *lanes as u64, ..bytes };
                let bandwidth = device.bandwidth();
                test.traffic = Some(Traffic::new(bytes, test.ms_per_token.median, bandwidth));
                test.profile = self.profile(&names, samples, || bandwidth);
                run.tests.push(test);
            }
        }
        Ok(run)
    }

    /// Times decoding of some sessions at once, and records it if there is a profiler.
    fn decode(
        &self,
        session: &mut Session,
        tokens: &Tokens,
        (depth, lanes): (usize, usize),
        progress: &ProgressBar,
    ) -> Result<(Spread, Option<Samples>)> {
        tokens.fill(session, depth)?;
        let mut others = (1..lanes).map(|_| Ok(session.fork()?)).collect::<Result<Vec<Session>>>()?;
        let mut round = |run_step: &mut dyn FnMut(DecodeStep<'_>) -> Result<()>| {
            let mut next = tokens.fill(session, depth)?;
            for other in &mut others {
                tokens.fill(other, depth)?;
            }
            let start = Instant::now();
            if others.is_empty() {
                for _ in 0..self.steps {
                    run_step(&mut || {
                        next = session.decode(next, &TokenSettings::GREEDY)?;
                        Ok(())
                    })?;
                }
            } else {
                let mut tokens = vec![next; 1 + others.len()];
                for _ in 0..self.steps {
                    run_step(&mut || {
                        let sessions = std::iter::once(&mut *session).chain(&mut others).zip(&tokens);
                        let lane = |(session, token)| CallLane::new(session, from_ref(token), TokenSettings::GREEDY);
                        let mut lanes: Vec<CallLane<'_>> = sessions.map(lane).collect();
                        call_together(&mut lanes, &StopFlag::default());
                        tokens = lanes.into_iter().map(|lane| lane.next).collect::<Result<_, _>>()?;
                        Ok(())
                    })?;
                }
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let seconds = self.repeat(progress, || round(&mut |step| step()))?;
        let samples =
            self.record(progress, |profiler, samples| round(&mut |step| samples.record(profiler, step)).map(drop))?;
        Ok((seconds, samples))
    }

    /// Runs a test `repeats` times while its steps are recorded; `None` if there is nothing to record them with.
    fn record(
        &self,
        progress: &ProgressBar,
        mut work: impl FnMut(&Profiler, &mut Samples) -> Result<()>,
    ) -> Result<Option<Samples>> {
        let Some(profiler) = &self.profiler else { return Ok(None) };
        let mut samples = Samples::default();
        for _ in 0..self.repeats {
            work(profiler, &mut samples)?;
            progress.inc(1);
        }
        Ok(Some(samples))
    }

    /// Returns where the time of the recorded tokens or prompts goes, compared with a bandwidth in bytes per second.
    fn profile(
        &self,
        names: &WeightNames,
        samples: Option<Samples>,
        bandwidth: impl FnOnce() -> Option<f64>,
    ) -> Option<Profile> {
        Some(Profile::new(self.profiler.as_ref()?, names, samples?, bandwidth()))
    }

    /// Runs a test once to warm up, then `repeats` times.
    fn repeat(&self, progress: &ProgressBar, mut work: impl FnMut() -> Result<f64>) -> Result<Spread> {
        let mut seconds = Vec::new();
        for _ in 0..=self.repeats {
            seconds.push(work()?);
            progress.inc(1);
        }
        Spread::of(seconds.split_off(1)).context("no repeats")
    }
}

/// Returns the mean number of bytes that the steps of a test read.
fn mean_bytes(model: &Engine, depth: usize, steps: usize) -> Bytes {
    let steps_bytes = || (depth..depth + steps).map(|position| model.step_bytes(position));
    let mean = |sum: u128| u64::try_from(sum / steps.max(1) as u128).unwrap_or(u64::MAX);
    let weights = mean(steps_bytes().map(|step| u128::from(step.weights)).sum());
    Bytes { weights, state: mean(steps_bytes().map(|step| u128::from(step.state)).sum()) }
}

/// Makes prompts of random tokens.
pub(super) struct Tokens {
    vocabulary: u64,
    /// Tokens that begin and end texts, which are left out.
    special: Vec<TokenId>,
}

impl Tokens {
    pub(super) fn new(model: &Engine) -> Self {
        let special = model.eos_ids().iter().copied().chain(model.bos_id()).collect();
        Self { vocabulary: model.vocabulary() as u64, special }
    }

    /// Returns a prompt, the same in every run.
    pub(super) fn prompt(&self, length: usize) -> Vec<TokenId> {
        let mut rng = SplitMix64::new(0);
        let mut next = move || TokenId::try_from(rng.below(self.vocabulary)).unwrap_or(0);
        // If all tokens are special, they are used nevertheless.
        let is_plain = |token: &TokenId| !self.special.contains(token) || self.vocabulary <= self.special.len() as u64;
        std::iter::from_fn(|| Some(next())).filter(is_plain).take(length).collect()
    }

    /// Moves a session to position `depth` and returns the next token to decode.
    pub(super) fn fill(&self, session: &mut Session, depth: usize) -> Result<TokenId> {
        if session.position() < depth || session.rewind(depth).is_err() {
            session.reset()?;
            if depth > 0 {
                session.prefill(&self.prompt(depth), &TokenSettings::GREEDY)?;
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
