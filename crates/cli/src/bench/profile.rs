//! Where the time of a token or a prompt goes, step by step: the fields of the JSON output, and how they are computed.

mod names;
mod parts;
mod text;

pub use parts::Part;
pub(super) use text::blocks;

use anyhow::Result;
pub(super) use names::WeightNames;
use ptero_cpu::profile::{Profiler, ProgramTimes, StepTimes};
use ptero_plan::StepBytes;
use ptero_plan::plan::{Plan, PlanStep};
use ptero_plan::prim::ViewId;
use serde::Serialize;
use std::ops::AddAssign;
use std::time::Instant;

/// Where the time goes. A step's `us` is the sum of `memory_us`, `compute_us`, `waiting_us` and `serial_us`.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// The number of tokens, or of prompts, that were recorded.
    pub recorded: usize,
    /// How many of them all times here are means of: the middle half by time.
    pub averaged: usize,
    /// Microseconds of a token, or of a prompt; without `recording_us`.
    pub us: f64,
    /// What belongs to no step: inputs, integers of the host, going from step to step, reading the token, sampling on the host.
    pub outside_us: f64,
    /// What recording itself took.
    pub recording_us: f64,
    /// The read bandwidth that `memory_us` is computed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_gb_per_s: Option<f64>,
    /// The steps that ran, in order.
    pub steps: Vec<Step>,
}

/// A step.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Its block in the plan, as in `inspect --plan`.
    pub block: usize,
    /// Its number in the block.
    pub step: usize,
    /// The node that it came from: chain, and number in the chain.
    pub node: String,
    /// The primitive.
    pub kind: &'static str,
    /// The part of the model that it is counted to.
    pub part: Part,
    /// The primitive, its type and its sizes. Of a size that changes from token to token, the last.
    pub label: String,
    /// The name of the first of its weights that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// The sizes of its operands.
    pub reads: Vec<Vec<usize>>,
    /// The sizes of its results.
    pub writes: Vec<Vec<usize>>,
    /// Its times and bytes.
    #[serde(flatten)]
    pub spent: Spent,
}

/// Times and bytes of a step or of several, per token or per prompt.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spent {
    /// How often steps ran.
    pub calls: f64,
    /// How often they shared work among threads.
    pub jobs: f64,
    /// Microseconds.
    pub us: f64,
    /// What reading the bytes takes at the machine's bandwidth, if the step took as long.
    pub memory_us: f64,
    /// Work beyond that.
    pub compute_us: f64,
    /// Threads' waiting inside shared work: waking up, uneven tasks. Averaged over the threads.
    pub waiting_us: f64,
    /// Threads' waiting while one thread works alone. Averaged over the threads.
    pub serial_us: f64,
    /// Bytes of weights that are read.
    pub weight_bytes: f64,
    /// Bytes of state that are read.
    pub state_bytes: f64,
}

impl Spent {
    fn new(times: StepTimes, count: f64, threads: f64, bandwidth: Option<f64>) -> Self {
        let StepTimes { calls, ns, jobs, job_ns, busy_ns, bytes: StepBytes { weights, state } } = times;
        let [calls, jobs, weight_bytes, state_bytes] = [calls, jobs, weights, state].map(|sum| sum as f64 / count);
        let [us, job_us, busy_us] = [ns, job_ns, busy_ns].map(|sum| 1e-3 * sum as f64 / count);
        let waiting_us = (job_us - busy_us / threads).clamp(0.0, job_us);
        let serial_us = (us - job_us) * (threads - 1.0) / threads;
        let work_us = us - waiting_us - serial_us;
        let memory_us = bandwidth.map_or(0.0, |bandwidth| 1e6 * (weight_bytes + state_bytes) / bandwidth).min(work_us);
        let compute_us = work_us - memory_us;
        Self { calls, jobs, us, memory_us, compute_us, waiting_us, serial_us, weight_bytes, state_bytes }
    }

    /// Returns the bytes read per second, in GB; `None` if nothing is read.
    pub(super) fn gb_per_s(&self) -> Option<f64> {
        let bytes = self.weight_bytes + self.state_bytes;
        (bytes > 0.0 && self.us > 0.0).then(|| 1e-3 * bytes / self.us)
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.jobs += other.jobs;
        self.us += other.us;
        self.memory_us += other.memory_us;
        self.compute_us += other.compute_us;
        self.waiting_us += other.waiting_us;
        self.serial_us += other.serial_us;
        self.weight_bytes += other.weight_bytes;
        self.state_bytes += other.state_bytes;
    }
}

/// Steps of the same label.
pub(super) struct Group<'a> {
    pub(super) label: &'a str,
    pub(super) part: Part,
    /// The names of their weights, without numbers of layers, each once.
    pub(super) weights: Vec<String>,
    pub(super) spent: Spent,
}

/// Recordings of a token, or of a prompt, each with the nanoseconds around it.
#[derive(Default)]
pub(super) struct Samples(Vec<(u64, ProgramTimes)>);

impl Samples {
    /// Records the work.
    pub(super) fn record(&mut self, profiler: &Profiler, work: impl FnOnce() -> Result<()>) -> Result<()> {
        profiler.start();
        let start = Instant::now();
        let done = work();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        profiler.stop();
        self.0.push((ns, profiler.take()));
        done
    }

    /// Sums up the middle half by time: whatever else the machine did meanwhile lengthened some of the others.
    fn middle(mut self) -> (u64, ProgramTimes, usize) {
        self.0.sort_by_key(|(ns, _)| *ns);
        let (all, cut) = (self.0.len(), self.0.len() / 4);
        let mut middle = self.0.into_iter().skip(cut).take(all - 2 * cut);
        let (mut ns, mut sum) = middle.next().unwrap_or_default();
        for (other_ns, other) in middle {
            ns += other_ns;
            sum += &other;
        }
        (ns, sum, all - 2 * cut)
    }
}

impl Profile {
    /// Of recordings; the bandwidth is in bytes per second.
    pub(super) fn new(profiler: &Profiler, names: &WeightNames, samples: Samples, bandwidth: Option<f64>) -> Self {
        let recorded = samples.0.len();
        let (ns, sum, averaged) = samples.middle();
        let (count, threads) = (averaged.max(1) as f64, profiler.threads() as f64);
        let plan = profiler.plan();
        let mut order = Vec::new();
        device_steps(plan, plan.main, &mut order);
        let steps = order.into_iter().filter_map(|at| {
            let times = *sum.steps.get(at.0)?.get(at.1)?;
            let spent = Spent::new(times, count, threads, bandwidth);
            (times.calls > 0).then(|| Step::new(profiler, names, at, spent))?
        });
        let steps: Vec<Step> = steps.collect();
        let [us, recording_us] = [ns, sum.recording_ns].map(|ns| 1e-3 * ns as f64 / count);
        let us = us - recording_us;
        let outside_us = us - steps.iter().map(|step| step.spent.us).sum::<f64>();
        let machine_gb_per_s = bandwidth.map(|bandwidth| 1e-9 * bandwidth);
        Self { recorded, averaged, us, outside_us, recording_us, machine_gb_per_s, steps }
    }

    /// Returns the steps grouped by label, the longest first.
    pub(super) fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for step in &self.steps {
            let found = groups.iter().position(|group| group.label == step.label && group.part == step.part);
            if found.is_none() {
                let Step { label, part, .. } = step;
                groups.push(Group { label, part: *part, weights: Vec::new(), spent: Spent::default() });
            }
            let at = found.unwrap_or(groups.len() - 1);
            let Some(group) = groups.get_mut(at) else { continue };
            group.spent += step.spent;
            if let Some(name) = step.weight.as_deref().map(names::without_layer)
                && !group.weights.contains(&name)
            {
                group.weights.push(name);
            }
        }
        groups.sort_by(|a, b| b.spent.us.total_cmp(&a.spent.us));
        groups
    }

    /// Returns the sums over all steps of each part that has any.
    pub(super) fn parts(&self) -> Vec<(Part, Spent)> {
        let sum = |part: &Part| {
            let mut sum = Spent::default();
            self.steps.iter().filter(|step| step.part == *part).for_each(|step| sum += step.spent);
            (*part, sum)
        };
        Part::ALL.iter().map(sum).filter(|(_, spent)| spent.calls > 0.0).collect()
    }
}

impl Step {
    /// `None` if it is not a primitive.
    fn new(profiler: &Profiler, names: &WeightNames, at: (usize, usize), spent: Spent) -> Option<Self> {
        let (plan, (block, step)) = (profiler.plan(), at);
        let found = plan.blocks.get(block)?;
        let PlanStep::Device(prim) = found.steps.get(step)? else { return None };
        let (chain, node) = found.origin.get(step)?;
        let sizes = |view: ViewId| profiler.sizes(at, view);
        Some(Self {
            block,
            step,
            node: format!("{chain}.{node}"),
            kind: prim.name(),
            part: Part::of(prim),
            label: plan.label(prim, sizes),
            weight: plan.memory_reads(prim).iter().find_map(|read| names.get(plan, read.view())),
            reads: prim.reads().into_iter().map(sizes).collect(),
            writes: prim.writes().into_iter().map(|view| sizes(*view)).collect(),
            spent,
        })
    }
}

/// The primitives of a block and of the blocks that it runs, in order, each once.
fn device_steps(plan: &Plan, block: usize, order: &mut Vec<(usize, usize)>) {
    let steps = plan.blocks.get(block).map(|block| block.steps.as_slice()).unwrap_or_default();
    for (at, step) in steps.iter().enumerate() {
        match step {
            PlanStep::Device(_) => order.push((block, at)),
            PlanStep::If { then, otherwise, .. } => {
                device_steps(plan, *then, order);
                device_steps(plan, *otherwise, order);
            }
            PlanStep::Loop { body, .. } => device_steps(plan, *body, order),
            PlanStep::Host(_) | PlanStep::Item(..) | PlanStep::Check(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
