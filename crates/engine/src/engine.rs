//! What all sessions of a program share.

use crate::TokenId;
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::options::entropy;
use crate::session::Session;
use crate::signature::Signature;
use crate::together::CallMemory;
use ptero_backend::{Backend, Executable};
use ptero_plan::graph::{Graph, Op, Output};
use ptero_plan::prim::Prim;
use ptero_plan::{KvCache, StepBytes, passes};
use ptero_pte::Verified;
use ptero_sampling::adjust::MOST_BIASES;
use ptero_sampling::inputs::Head;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A compiled language model; its signature and metadata are checked once. Clones share everything.
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    graph: Arc<Graph>,
    executable: Box<dyn Executable>,
    signature: Signature,
    facts: Facts,
    vocabulary: usize,
    max_prefill: usize,
    can_rewind: bool,
    /// Decode steps per call.
    burst: usize,
    load_time: Duration,
    /// The output that has the logits which the sampling head draws from.
    kept_logits: Option<usize>,
    call_memory: CallMemory,
}

impl Engine {
    /// Checks and compiles a program, without the passes named in `without`.
    ///
    /// # Errors
    /// When the program is not a language model, its metadata makes no sense, or the backend does not support what it needs.
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
        let (mut graph, _) = passes::prepare(delegate, kv_cache, &capabilities, without)?;
        let kept_logits = if signature.head == Some(Head::Full) { keep_logits(&mut graph) } else { None };
        let can_rewind = graph.keeps_positions(signature.positions, facts.context);
        let graph = Arc::new(graph);
        let executable = backend.compile(Arc::clone(&graph))?;
        let max_prefill = facts.max_prefill.unwrap_or(usize::MAX).min(signature.most_tokens).min(facts.context);
        // A text may end anywhere in a burst, and the state must then be rewound to that token.
        let burst = if facts.samples && can_rewind { capabilities.burst.max(1) } else { 1 };
        let load_time = start.elapsed();
        Ok(Self(Arc::new(Shared {
            graph,
            executable,
            signature,
            facts,
            vocabulary,
            max_prefill,
            can_rewind,
            burst,
            load_time,
            kept_logits,
            call_memory: CallMemory::default(),
        })))
    }

    /// Starts a session at position 0.
    ///
    /// # Errors
    /// When there is no memory for its state.
    pub fn session(&self) -> Result<Session> {
        let state = self.0.executable.state(entropy())?;
        Session::new(self.clone(), state)
    }

    /// Refuses an empty list of tokens, and tokens that are not in the vocabulary.
    pub(crate) fn check_tokens(&self, tokens: &[TokenId]) -> Result<()> {
        let vocabulary = self.vocabulary();
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let fits = |token: TokenId| usize::try_from(token).is_ok_and(|token| token < vocabulary);
        let outside = tokens.iter().enumerate().find(|(_, token)| !fits(**token));
        outside.map_or(Ok(()), |(index, token)| Err(Error::TokenOutside { token: *token, index, vocabulary }))
    }

    /// Refuses prompts that leave no room for a token at a position, or have tokens that are not in the vocabulary.
    pub(crate) fn check_prompt(&self, prompt: &[TokenId], position: usize) -> Result<()> {
        self.check_tokens(prompt)?;
        let context = self.context();
        let fits = prompt.len() < context.saturating_sub(position);
        if fits { Ok(()) } else { Err(Error::NoRoom { prompt: prompt.len(), position, context }) }
    }

    /// Refuses biases, and returns the others with their tokens as programs take them.
    ///
    /// # Errors
    /// When the program does not support biases, there are too many, a token is outside the vocabulary, or a number is not finite.
    pub fn check_biases(&self, biases: &[(TokenId, f32)]) -> Result<Vec<(i32, f32)>> {
        if !biases.is_empty() && !self.has_full_sampler() {
            return Err(Error::NeedsFullSampler("a logit bias"));
        }
        if biases.len() > MOST_BIASES {
            return Err(Error::TooManyBiases(biases.len()));
        }
        let vocabulary = self.vocabulary();
        let checked = |&(token, bias): &(TokenId, f32)| match i32::try_from(token) {
            _ if !bias.is_finite() => Err(Error::Bias { token, bias }),
            Ok(index) if (token as usize) < vocabulary => Ok((index, bias)),
            Ok(_) | Err(_) => Err(Error::BiasOutside { token, vocabulary }),
        };
        biases.iter().map(checked).collect()
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.0.vocabulary
    }

    /// Returns the number of positions of a session: prompt and new tokens together.
    pub fn context(&self) -> usize {
        self.0.facts.context
    }

    /// Returns the most tokens that one call takes; longer prompts are processed in chunks (S1.3).
    pub fn max_prefill(&self) -> usize {
        self.0.max_prefill
    }

    /// Returns `true` if the program samples, so that no logits reach the host (S1.2).
    pub fn samples_itself(&self) -> bool {
        self.0.facts.samples
    }

    /// Returns `true` if sampling takes a seed. Only a program with a sampling head without a seed input does not.
    pub fn takes_seed(&self) -> bool {
        !self.samples_itself() || self.0.signature.head >= Some(Head::Plain)
    }

    /// Returns `true` if all options of the sampler are supported: the program has the full sampling head, or returns logits, from
    /// which the host samples.
    pub fn has_full_sampler(&self) -> bool {
        !self.samples_itself() || self.0.signature.head == Some(Head::Full)
    }

    /// Returns `true` if the logits of a call can be read: the program returns them, or its full sampling head is one operation
    /// that draws from them.
    pub fn keeps_logits(&self) -> bool {
        !self.samples_itself() || self.0.kept_logits.is_some()
    }

    pub(crate) fn kept_logits(&self) -> Option<usize> {
        self.0.kept_logits
    }

    /// Returns `true` if sessions can rewind to any earlier position, not only to 0.
    pub fn can_rewind(&self) -> bool {
        self.0.can_rewind
    }

    /// Returns the token that texts begin with, if the program names one.
    pub fn bos_id(&self) -> Option<TokenId> {
        self.0.facts.bos_id
    }

    /// Returns the tokens that end a text; none if the program names none.
    pub fn eos_ids(&self) -> &[TokenId] {
        &self.0.facts.eos_ids
    }

    /// Returns the time that checking, lowering and compiling took.
    pub fn load_time(&self) -> Duration {
        self.0.load_time
    }

    /// Returns the bytes that a decode step at this position must read.
    pub fn step_bytes(&self, position: usize) -> StepBytes {
        self.0.graph.step_bytes(self.0.signature.positions, i64::try_from(position).unwrap_or(i64::MAX))
    }

    pub(crate) fn executable(&self) -> &dyn Executable {
        self.0.executable.as_ref()
    }

    pub(crate) fn call_memory(&self) -> &CallMemory {
        &self.0.call_memory
    }

    pub(crate) fn burst(&self) -> usize {
        self.0.burst
    }

    pub(crate) fn signature(&self) -> &Signature {
        &self.0.signature
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("facts", &self.0.facts)
            .field("signature", &self.0.signature)
            .finish_non_exhaustive()
    }
}

/// Makes the logits that a graph samples from an output after all others, and returns its index.
fn keep_logits(graph: &mut Graph) -> Option<usize> {
    let sample = graph.block(graph.main).nodes.iter().find_map(|node| match &node.op {
        Op::Prim(Prim::Sample(sample)) => Some(sample.logits),
        _ => None,
    })?;
    graph.outputs.push(Output::Tensor(sample));
    Some(graph.outputs.len() - 1)
}

/// The size of the vocabulary follows from the logits; a program that returns a token must name it.
fn vocabulary(facts: &Facts, signature: &Signature) -> Result<usize> {
    match (facts.samples, facts.vocabulary) {
        (true, said) => said.ok_or(Error::MissingMetadata("get_vocab_size")),
        // Fewer are fine: some models have padding rows.
        (false, Some(said)) if said > signature.output_elements => {
            Err(Error::Vocabulary { said, found: signature.output_elements })
        }
        (false, _) => Ok(signature.output_elements),
    }
}
