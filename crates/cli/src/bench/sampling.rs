//! Compares sampling in the program with sampling on the host: the same program, settings, seeds and tokens.

use super::BenchArgs;
use super::host::{HostSampled, HostSampler};
use super::measure::{Bench, Tokens};
use super::report::{Comparison, Figures, Sampled};
use super::setup::{Device, Source};
use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use ptero_backend::Backend;
use ptero_cpu::machine::Spread;
use ptero_engine::{Engine, Session, Settings, TokenId, TokenSettings};
use std::sync::Arc;
use std::time::Instant;

/// A sampler that is measured.
struct Sampler {
    name: &'static str,
    /// Where it samples, and after a colon how.
    what: &'static str,
    /// `None` for the program's own.
    host: Option<HostSampler>,
}

/// All samplers, in the order of the report. The table, the page and the chart read their names from here.
const SAMPLERS: [Sampler; 3] = [
    Sampler { name: "program", what: "in the program", host: None },
    Sampler {
        name: "host_fast",
        what: "on the host, fast: logits are read out and sampled by the vectorised sampler of the CPU device",
        host: Some(HostSampler::Fast),
    },
    Sampler {
        name: "host_reference",
        what: "on the host, reference: logits are read out and sampled by the plain code that defines the result",
        host: Some(HostSampler::Reference),
    },
];

/// The seed of the first token; the others follow (S1.4).
const SEED: i64 = 42;

/// Steps that a sampler decodes before the next takes its turn: few, so that all see the same machine.
const BLOCK: usize = 8;
/// The first steps of a block are not counted: the caches still hold the data of another sampler.
const SETTLING: usize = 2;
/// The order of the samplers in each turn. Over six turns, each sampler is at each position twice and directly after each
/// other sampler twice; from one turn to the next, a sampler may follow itself.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [1, 0, 2], [2, 0, 1], [0, 2, 1], [1, 2, 0], [2, 1, 0]];

/// The program, compiled once for each sampler.
pub(super) struct Samplers {
    models: Vec<Engine>,
    grafted: bool,
    /// The number of positions to fill before decoding.
    depth: usize,
}

/// The measurements of one sampler.
struct Lane {
    session: Session,
    token: TokenId,
    /// The tokens of this round, and the time of each step.
    text: Vec<TokenId>,
    steps: Vec<f64>,
    /// The median step of each round.
    seconds: Vec<f64>,
}

impl Samplers {
    pub(super) fn compile(args: &BenchArgs, source: &Source, device: &Device, bench: &Bench) -> Result<Self> {
        ensure!(args.decode > 0, "--sampling decodes, and --decode is 0");
        let depth = bench.first_depth().context("--sampling needs a depth that fits the context; see --depths")?;
        let program = source.sampling()?;
        let model = |sampler: Sampler| match sampler.host {
            None => Engine::new(&program, &*device.backend, &[]),
            Some(sampler) => {
                let (inner, host): (Arc<dyn Backend>, _) = (Arc::clone(&device.backend), device.host.clone());
                Engine::new(&program, &HostSampled { inner, host, sampler }, &[])
            }
        };
        let models = SAMPLERS.into_iter().map(model).collect::<Result<Vec<_>, _>>();
        let models = models.context("the sampler cannot be compared with one on the host")?;
        if models.iter().any(|model| !model.takes_seed()) {
            bail!("the program takes no seed, so tokens cannot be compared\nhint: export it with `--sample`");
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
                    lanes.get_mut(at).map_or(Ok(()), |lane| lane.decode(settings, start, length))?;
                }
            }
            check_same(&lanes.iter().map(|lane| lane.text.as_slice()).collect::<Vec<_>>())?;
            if round > 0 {
                lanes.iter_mut().for_each(Lane::end);
            }
            progress.inc(1);
        }
        let Settings { temperature, top_k, top_p, .. } = settings;
        Ok(Comparison {
            temperature,
            top_k: if top_k == Settings::PLAIN.top_k { 0 } else { top_k },
            top_p,
            tokens: args.decode,
            depth: self.depth,
            rounds: args.repeat,
            grafted: self.grafted,
            samplers: summary(&lanes)?,
        })
    }
}

impl Lane {
    fn new(model: &Engine) -> Result<Self> {
        let session = model.session()?;
        Ok(Self { session, token: 0, text: Vec::new(), steps: Vec::new(), seconds: Vec::new() })
    }

    /// Starts a round, at the same position each time.
    fn begin(&mut self, tokens: &Tokens, depth: usize) -> Result<()> {
        self.token = tokens.fill(&mut self.session, depth)?;
        self.text.clear();
        self.steps.clear();
        Ok(())
    }

    /// Decodes a block of `length` steps, the first of which is step `start` of the round.
    fn decode(&mut self, settings: Settings, start: usize, length: usize) -> Result<()> {
        for at in 0..length {
            let seed = SEED.wrapping_add_unsigned((start + at) as u64);
            let begun = Instant::now();
            self.token = self.session.decode(self.token, &TokenSettings::new(settings, seed))?;
            if at >= SETTLING.min(length / 2) {
                self.steps.push(begun.elapsed().as_secs_f64());
            }
            self.text.push(self.token);
        }
        Ok(())
    }

    /// Ends a round that counts.
    fn end(&mut self) {
        self.seconds.extend(Spread::of(self.steps.clone()).map(|spread| spread.median));
    }
}

/// Checks that all samplers gave the same tokens (S1.2).
fn check_same(texts: &[&[TokenId]]) -> Result<()> {
    let Some((program, others)) = texts.split_first() else { return Ok(()) };
    for (other, Sampler { name, .. }) in others.iter().zip(SAMPLERS.into_iter().skip(1)) {
        if let Some((step, (token, found))) = program.iter().zip(*other).enumerate().find(|(_, (a, b))| a != b) {
            bail!(
                "step {step}: the program sampled token {token}, but `{name}` sampled {found}; this is a bug in ptero"
            );
        }
    }
    Ok(())
}

fn summary(lanes: &[Lane]) -> Result<Vec<Sampled>> {
    let program = lanes.first().map(|lane| lane.seconds.clone()).unwrap_or_default();
    let summary = |(sampler, lane): (Sampler, &Lane)| {
        let spread = Spread::of(lane.seconds.clone()).context("no repeats")?;
        let gains = lane.seconds.iter().zip(&program).map(|(host, program)| 100.0 * (host / program - 1.0)).collect();
        let gain = Spread::of(gains).filter(|_| sampler.host.is_some());
        Ok(Sampled {
            sampler: sampler.name,
            what: sampler.what,
            ms_per_token: Figures::map(spread, |seconds| 1e3 * seconds),
            program_is_faster_percent: gain.map(|gain| Figures::map(gain, |percent| percent)),
        })
    };
    SAMPLERS.into_iter().zip(lanes).map(summary).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_token_than_the_programs_is_named() {
        assert!(check_same(&[&[1, 2], &[1, 2], &[1, 2]]).is_ok());
        let error = check_same(&[&[1, 2], &[1, 2], &[1, 3]]).unwrap_err().to_string();
        assert!(error.contains("step 1: the program sampled token 2, but `host_reference` sampled 3"), "{error}");
    }
}
