//! Drawing tokens in the program, beside drawing them on the host: the same program, settings, seeds and tokens.

use super::BenchArgs;
use super::host::{Drawer, HostSampled};
use super::measure::{Bench, Tokens};
use super::report::{Comparison, Figures, Sampled};
use super::setup::{Device, Source};
use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use ptero_backend::Backend;
use ptero_cpu::machine::Spread;
use ptero_engine::{Draw, Engine, Session, Settings, TokenId};
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

/// Steps that one way decodes before the next has its turn: few, so that all see the same machine.
const BLOCK: usize = 8;
/// Of those, the first ones are not counted: they find the caches as another way left them.
const SETTLING: usize = 2;
/// In turns. Over six turns each way is at each place, and within a turn right after each other way, twice; from one turn to
/// the next, a way may come after itself.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 2, 1], [1, 2, 0], [2, 1, 0]];

/// The same program in all ways.
pub(super) struct Samplers {
    models: Vec<Engine>,
    grafted: bool,
    /// Positions that are filled before.
    depth: usize,
}

/// A way under measurement.
struct Lane {
    session: Session,
    token: TokenId,
    /// What was drawn in this round, and how long each step took.
    text: Vec<TokenId>,
    steps: Vec<f64>,
    /// The median step of each round.
    seconds: Vec<f64>,
}

/// Rounds, the one to warm up included.
pub(super) fn rounds(args: &BenchArgs) -> u64 {
    u64::from(args.repeat) + 1
}

impl Samplers {
    pub(super) fn compile(args: &BenchArgs, source: &Source, device: &Device, bench: &Bench) -> Result<Self> {
        ensure!(args.decode > 0, "--sampling decodes, and --decode is 0");
        let depth = bench.first_depth().context("--sampling needs a depth that fits the context; see --depths")?;
        let program = source.sampling()?;
        let model = |drawer: Option<Drawer>| {
            let backend: Arc<dyn Backend> = match drawer {
                None => Arc::clone(&device.backend),
                Some(drawer) => {
                    let (inner, host) = (Arc::clone(&device.backend), device.host.clone());
                    Arc::new(HostSampled { inner, host, drawer })
                }
            };
            Engine::new(&program, &*backend, &[])
        };
        let models = WAYS.into_iter().map(|(_, _, drawer)| model(drawer)).collect::<Result<Vec<_>, _>>();
        let models = models.context("the sampler cannot be compared with one on the host")?;
        if models.iter().any(|model| !model.takes_seed()) {
            bail!(
                "this program draws without a seed, so that tokens cannot be compared\nhint: export it with `--sample`"
            );
        }
        Ok(Self { models, grafted: !source.samples()?, depth })
    }

    pub(super) fn compare(&self, args: &BenchArgs, settings: Settings, progress: &ProgressBar) -> Result<Comparison> {
        progress.set_message("sampling");
        let mut lanes = self.models.iter().map(Lane::new).collect::<Result<Vec<Lane>>>()?;
        let tokens = self.models.first().map(Tokens::new).context("no model")?;
        for round in 0..=args.repeat {
            lanes.iter_mut().try_for_each(|lane| lane.begin(&tokens, self.depth))?;
            let order = ORDERS.iter().cycle().skip(round as usize);
            for (start, order) in (0..args.decode).step_by(BLOCK).zip(order) {
                let length = BLOCK.min(args.decode - start);
                for at in *order {
                    lanes.get_mut(at).map_or(Ok(()), |lane| lane.block(settings, start, length))?;
                }
            }
            check_same(&lanes.iter().map(|lane| lane.text.as_slice()).collect::<Vec<_>>())?;
            if round > 0 {
                lanes.iter_mut().for_each(Lane::count);
            }
            progress.inc(1);
        }
        let samplers = summary(&lanes)?;
        let (tokens, rounds, grafted, depth) = (args.decode, args.repeat, self.grafted, self.depth);
        Ok(Comparison { tokens, depth, rounds, grafted, samplers, ..Comparison::with(settings) })
    }
}

impl Lane {
    fn new(model: &Engine) -> Result<Self> {
        let session = model.session()?;
        Ok(Self { session, token: 0, text: Vec::new(), steps: Vec::new(), seconds: Vec::new() })
    }

    /// Starts a round, from the same place each time.
    fn begin(&mut self, tokens: &Tokens, depth: usize) -> Result<()> {
        self.token = tokens.fill(&mut self.session, depth)?;
        self.text.clear();
        self.steps.clear();
        Ok(())
    }

    /// Decodes some steps in a row.
    fn block(&mut self, settings: Settings, start: usize, length: usize) -> Result<()> {
        for at in 0..length {
            let seed = SEED.wrapping_add_unsigned((start + at) as u64);
            let begun = Instant::now();
            self.token = self.session.decode(self.token, &Draw { settings, seed })?;
            if at >= SETTLING.min(length / 2) {
                self.steps.push(begun.elapsed().as_secs_f64());
            }
            self.text.push(self.token);
        }
        Ok(())
    }

    fn count(&mut self) {
        self.seconds.extend(Spread::of(self.steps.clone()).map(|spread| spread.median));
    }
}

/// The same seed gives the same token, wherever it is drawn (S1.2).
fn check_same(texts: &[&[TokenId]]) -> Result<()> {
    let Some((program, others)) = texts.split_first() else { return Ok(()) };
    for (other, (name, ..)) in others.iter().zip(WAYS.into_iter().skip(1)) {
        if let Some((step, (token, drawn))) = program.iter().zip(*other).enumerate().find(|(_, (a, b))| a != b) {
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
        assert!(check_same(&[&[1, 2], &[1, 2], &[1, 2]]).is_ok());
        let error = check_same(&[&[1, 2], &[1, 2], &[1, 3]]).unwrap_err().to_string();
        assert!(error.contains("step 1: the program drew token 2, but `host_reference` drew 3"), "{error}");
    }
}
