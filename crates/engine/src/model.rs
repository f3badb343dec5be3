//! What all sessions of a program share.

use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::options::entropy;
use crate::session::Session;
use crate::signature::Signature;
use ptero_backend::{Backend, Executable};
use ptero_plan::graph::Graph;
use ptero_plan::{KvCache, Options, StepBytes, lower, passes};
use ptero_pte::Verified;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A program, compiled: its signature and metadata were checked once. Clones share everything.
#[derive(Clone)]
pub struct Model(Arc<Shared>);

struct Shared {
    graph: Arc<Graph>,
    executable: Box<dyn Executable>,
    signature: Signature,
    facts: Facts,
    vocabulary: usize,
    max_prefill: usize,
    can_rewind: bool,
    /// How many steps of decoding run at once.
    burst: usize,
    load_time: Duration,
}

impl Model {
    /// Checks and compiles a program; passes named in `without` are left out.
    ///
    /// # Errors
    /// When the program is no language model of the known form, says something of itself that cannot be, or asks for what
    /// the backend does not do.
    pub fn new(program: &Verified, backend: &dyn Backend, without: &[String]) -> Result<Self> {
        let start = Instant::now();
        if let Some(unknown) = without.iter().find(|name| passes::names().all(|pass| pass != name.as_str())) {
            return Err(Error::UnknownPass(unknown.clone()));
        }
        let facts = Facts::read(program)?;
        let method = program.method("forward").ok_or(Error::NoForward)?;
        let signature = Signature::of(program, method, facts.samples)?;
        let vocabulary = vocabulary(&facts, &signature)?;
        let delegate = program.delegate("forward", signature.delegate).ok_or(Error::NoForward)?;
        let capacity = i64::try_from(facts.context).unwrap_or(i64::MAX);
        let (kv_cache, capabilities) = (KvCache::of_program(program, capacity)?, backend.capabilities());
        let mut graph = lower(delegate, &Options { kv_cache, keeps_foreign: capabilities.foreign_kernels })?;
        passes::run(&mut graph, &capabilities, without);
        let can_rewind = graph.keeps_positions(signature.positions, facts.context);
        let graph = Arc::new(graph);
        let executable = backend.compile(Arc::clone(&graph))?;
        let max_prefill = facts.max_prefill.unwrap_or(usize::MAX).min(signature.most_tokens).min(facts.context);
        // A text may end anywhere in a burst; only a state that can go back can end there too.
        let burst = if facts.samples && can_rewind { capabilities.burst.max(1) } else { 1 };
        let load_time = start.elapsed();
        let shared =
            Shared { graph, executable, signature, facts, vocabulary, max_prefill, can_rewind, burst, load_time };
        Ok(Self(Arc::new(shared)))
    }

    /// A text of its own, at position 0.
    ///
    /// # Errors
    /// When there is no memory for its state.
    pub fn session(&self) -> Result<Session> {
        let state = self.0.executable.state(entropy())?;
        Session::new(self.clone(), state)
    }

    /// How many tokens there are.
    pub fn vocabulary(&self) -> usize {
        self.0.vocabulary
    }

    /// How many positions a session has.
    pub fn context(&self) -> usize {
        self.0.facts.context
    }

    /// The most tokens that one call takes; longer prompts go in several (S1.3).
    pub fn max_prefill(&self) -> usize {
        self.0.max_prefill
    }

    /// Whether the program draws the token, so that no logits reach the host (S1.2).
    pub fn samples_itself(&self) -> bool {
        self.0.facts.samples
    }

    /// Whether tokens can be drawn with a seed: all can but those of a program whose head has no such input.
    pub fn takes_seed(&self) -> bool {
        !self.samples_itself() || self.0.signature.takes_seed()
    }

    /// Whether sessions can go back to any earlier position, and not only to 0.
    pub fn can_rewind(&self) -> bool {
        self.0.can_rewind
    }

    /// The token that texts begin with, if the program says so.
    pub fn bos_id(&self) -> Option<i64> {
        self.0.facts.bos_id
    }

    /// The tokens that texts end with; none, if the program says nothing.
    pub fn eos_ids(&self) -> &[i64] {
        &self.0.facts.eos_ids
    }

    /// How long checking, lowering and compiling took.
    pub fn load_time(&self) -> Duration {
        self.0.load_time
    }

    /// What a step of decoding at that position must read.
    pub fn step_bytes(&self, position: usize) -> StepBytes {
        self.0.graph.step_bytes(self.0.signature.positions, i64::try_from(position).unwrap_or(i64::MAX))
    }

    pub(crate) fn executable(&self) -> &dyn Executable {
        self.0.executable.as_ref()
    }

    pub(crate) fn burst(&self) -> usize {
        self.0.burst
    }

    pub(crate) fn signature(&self) -> &Signature {
        &self.0.signature
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("facts", &self.0.facts)
            .field("signature", &self.0.signature)
            .finish_non_exhaustive()
    }
}

/// Logits tell how many tokens there are; a program that returns a token must say it.
fn vocabulary(facts: &Facts, signature: &Signature) -> Result<usize> {
    match (facts.samples, facts.vocabulary) {
        (true, said) => said.ok_or(Error::MissingMetadata("get_vocab_size")),
        // Fewer are fine: some models have rows that no token uses.
        (false, Some(said)) if said > signature.output_elements => {
            Err(Error::Vocabulary { said, found: signature.output_elements })
        }
        (false, _) => Ok(signature.output_elements),
    }
}
