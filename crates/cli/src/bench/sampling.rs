//! Drawing tokens in the program, beside drawing them on the host: the same program, settings, seeds and tokens.

use super::BenchArgs;
use super::host::{Drawer, HostSampled};
use super::measure::{Bench, Tokens};
use super::report::{Comparison, Figures, Sampled};
use super::setup::{Device, Source};
use crate::progress::Progress;
use anyhow::{Context, Result, bail, ensure};
use ptero_backend::Backend;
use ptero_cpu::machine::Spread;
use ptero_engine::{Draw, Model, Session, Settings};
use std::sync::Arc;
use std::time::Instant;

/// The ways, with their names and what they are.
const WAYS: [(&str, &str, Option<Drawer>); 3] = [
    ("program", "in the program", None),
    (
        "host_fast",
        "on the host, fast: logits are read out, and drawn from by the vectorised sampler of the CPU device",
        Some(Drawer::Fast),
    ),
    (
        "host_reference",
        "on the host, reference: logits are read out, and drawn from by the plain code that defines the result",
        Some(Drawer::Reference),
    ),
];

/// Of the first token; the others follow (S1.4).
const SEED: i64 = 42;

/// The same program in all ways.
pub(super) struct Samplers {
    models: Vec<Model>,
    grafted: bool,
}

/// A way under measurement.
struct Lane {
    session: Session,
    /// The median step of each round.
    seconds: Vec<f64>,
}

/// Rounds of all ways, those to warm up included.
pub(super) fn rounds(args: &BenchArgs) -> u64 {
    WAYS.len() as u64 * (u64::from(args.repeat) + 1)
}

impl Samplers {
    pub(super) fn compile(source: &Source, device: &Device) -> Result<Self> {
        let program = source.sampling()?;
        let model = |drawer: Option<Drawer>| {
            let backend: Arc<dyn Backend> = match drawer {
                None => Arc::clone(&device.backend),
                Some(drawer) => {
                    let (inner, host) = (Arc::clone(&device.backend), device.host.clone());
                    Arc::new(HostSampled { inner, host, drawer })
                }
            };
            Model::new(&program, &*backend, &[])
        };
        let models = WAYS.into_iter().map(|(_, _, drawer)| model(drawer)).collect::<Result<Vec<_>, _>>();
        let models = models.context("the sampler cannot be compared with one on the host")?;
        if models.iter().any(|model| !model.takes_seed()) {
            bail!(
                "this program draws without a seed, so that tokens cannot be compared\nhint: export it with `--sample`"
            );
        }
        Ok(Self { models, grafted: !source.samples()? })
    }

    pub(super) fn compare(
        &self,
        args: &BenchArgs,
        settings: Settings,
        bench: &Bench,
        progress: &Progress,
    ) -> Result<Comparison> {
        ensure!(args.decode > 0, "--sampling decodes, and --decode is 0");
        let depth = bench.first_depth().context("--sampling needs a depth that fits the context; see --depths")?;
        progress.begin("sampling");
        let lanes = self.models.iter().map(|model| Ok(Lane { session: model.session()?, seconds: Vec::new() }));
        let mut lanes = lanes.collect::<Result<Vec<Lane>>>()?;
        let tokens = self.models.first().map(Tokens::new).context("no model")?;
        for round in 0..=args.repeat {
            let mut texts: Vec<Vec<i64>> = vec![Vec::new(); lanes.len()];
            // Another one starts each time, so that none always follows the same.
            for turn in 0..lanes.len() {
                let at = (turn + round as usize) % lanes.len();
                if let Some((lane, text)) = lanes.get_mut(at).zip(texts.get_mut(at)) {
                    *text = lane.round(&tokens, settings, depth, args.decode, round > 0)?;
                }
                progress.add(1);
            }
            check_same(&texts)?;
        }
        let samplers = summary(&lanes)?;
        let (tokens, rounds, grafted) = (args.decode, args.repeat, self.grafted);
        Ok(Comparison { tokens, depth, rounds, grafted, samplers, ..Comparison::with(settings) })
    }
}

impl Lane {
    /// Decodes from the same place each time; gives the tokens.
    fn round(
        &mut self,
        tokens: &Tokens,
        settings: Settings,
        depth: usize,
        steps: usize,
        is_counted: bool,
    ) -> Result<Vec<i64>> {
        let mut token = tokens.fill(&mut self.session, depth)?;
        let (mut text, mut seconds) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
        for seed in (SEED..).take(steps) {
            let start = Instant::now();
            token = self.session.decode(token, &Draw { settings, seed })?;
            seconds.push(start.elapsed().as_secs_f64());
            text.push(token);
        }
        if is_counted {
            self.seconds.extend(Spread::of(seconds).map(|spread| spread.median));
        }
        Ok(text)
    }
}

/// The same seed gives the same token, wherever it is drawn (S1.2).
fn check_same(texts: &[Vec<i64>]) -> Result<()> {
    let Some((program, others)) = texts.split_first() else { return Ok(()) };
    for (other, (name, ..)) in others.iter().zip(WAYS.into_iter().skip(1)) {
        if let Some((step, (token, drawn))) = program.iter().zip(other).enumerate().find(|(_, (a, b))| a != b) {
            bail!("step {step}: the program drew token {token}, but `{name}` drew {drawn}; this is a fault of ptero");
        }
    }
    Ok(())
}

fn summary(lanes: &[Lane]) -> Result<Vec<Sampled>> {
    let program = lanes.first().map(|lane| lane.seconds.clone()).unwrap_or_default();
    let sampled = |((sampler, what, drawer), lane): ((&'static str, &'static str, Option<Drawer>), &Lane)| {
        let spread = Spread::of(lane.seconds.clone()).context("no repeats")?;
        let gains = lane.seconds.iter().zip(&program).map(|(host, program)| 100.0 * (host / program - 1.0)).collect();
        let gain = Spread::of(gains).filter(|_| drawer.is_some());
        let gain = gain.map(|Spread { median, least, most }| Figures { median, least, most });
        Ok(Sampled { sampler, what, ms_per_token: Figures::milliseconds(1.0, spread), program_is_faster_percent: gain })
    };
    WAYS.into_iter().zip(lanes).map(sampled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_token_than_the_programs_is_named() {
        assert!(check_same(&[vec![1, 2], vec![1, 2], vec![1, 2]]).is_ok());
        let error = check_same(&[vec![1, 2], vec![1, 2], vec![1, 3]]).unwrap_err().to_string();
        assert!(error.contains("step 1: the program drew token 2, but `host_reference` drew 3"), "{error}");
    }
}
