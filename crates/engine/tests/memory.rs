//! Decoding allocates nothing, alone or in lanes, and texts leak nothing (S1.3): a counting allocator checks.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use ptero_backend::{Backend, Executable, Lane, Result, State, Steps};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_engine::{CallLane, Engine, LogProbabilities, SampleOptions, Sampling, StopFlag, call_together};
use ptero_export::{Recipe, export};
use ptero_plan::Capabilities;
use ptero_plan::graph::Graph;
use ptero_pte::{Bytes, Program, Verified};
use ptero_sampling::inputs::Head;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How often the device allocated in runs.
static ON_DEVICE: AtomicUsize = AtomicUsize::new(0);

fn allocations(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.allocations + change.reallocations
}

/// The CPU, whose own allocations are counted apart. With more threads, which of them takes a task is not settled, nor whose
/// memory grows.
struct Counted;

struct Compiled(Box<dyn Executable>);

impl Backend for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }

    fn capabilities(&self) -> Capabilities {
        Cpu::with(1, Isa::best()).capabilities()
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Compiled(Cpu::with(1, Isa::best()).compile(graph)?)))
    }
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        self.0.state(seed)
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        let region = Region::new(COUNTING);
        let result = self.0.run(lanes, steps);
        ON_DEVICE.fetch_add(allocations(&region), Ordering::Relaxed);
        result
    }
}

fn model(name: &str, sample: Option<Head>) -> Engine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny").join(name);
    let checkpoint = Checkpoint::open(&folder, &Limits::default()).unwrap();
    let mut bytes = Vec::new();
    let recipe = Recipe { sample, ..Recipe::default() };
    export(&checkpoint, &recipe).unwrap().write(&mut bytes, &mut |_| ()).unwrap();
    let limits = ptero_pte::Limits::DEFAULT;
    let mut program = Program::read(&Bytes::from(bytes), &limits).unwrap();
    program.methods.retain(|method| method.name != "get_eos_ids");
    Engine::new(&Verified::new(program, &limits).unwrap(), &Counted, &[]).unwrap()
}

/// The options of a program with a head, or of none.
fn options_for(model: &Engine) -> SampleOptions {
    match (model.samples_itself(), model.has_full_sampler()) {
        // What is drawn on the host from more than the likeliest takes memory; what the program draws does not.
        (false, _) => SampleOptions::default(),
        (true, false) => options(1),
        (true, true) => SampleOptions {
            min_p: Some(0.01),
            exact_tail: true,
            repetition_penalty: Some(1.2),
            frequency_penalty: Some(0.1),
            log_probabilities: LogProbabilities::Processed,
            ..options(1)
        },
    }
}

fn options(seed: i64) -> SampleOptions {
    let (top_k, top_p, sampling) = (Some(30), Some(0.95), Sampling::HostAllowed);
    SampleOptions { temperature: 0.9, top_k, top_p, seed: Some(seed), sampling, ..SampleOptions::default() }
}

/// How often the engine and the device allocate in steps of decoding, once the first few are made.
fn decode_counts(model: &Engine) -> (usize, usize) {
    let mut session = model.session().unwrap();
    let schedule = options_for(model).schedule(model).unwrap();
    let mut token = session.prefill(&[1, 2, 3, 4, 5], &schedule.at_step(0)).unwrap();
    let mut step = |token, number| session.decode(token, &schedule.at_step(number)).unwrap();
    for number in 1..4 {
        token = step(token, number);
    }
    ON_DEVICE.store(0, Ordering::Relaxed);
    let region = Region::new(COUNTING);
    for number in 4..40 {
        token = step(token, number);
    }
    let (all, on_device) = (allocations(&region), ON_DEVICE.load(Ordering::Relaxed));
    (all - on_device, on_device)
}

/// How often the engine and the device allocate in steps of several sessions together, once the first few are made. The lists of
/// calls are the caller's, and not counted.
fn together_counts(model: &Engine, lanes: usize) -> (usize, usize) {
    let schedule = options_for(model).schedule(model).unwrap();
    let mut texts: Vec<_> = (0..lanes).map(|_| (model.session().unwrap(), 0)).collect();
    for (lane, (session, token)) in texts.iter_mut().enumerate() {
        *token = session.prefill(&[1, 2, 3, 4, 5][..1 + lane % 5], &schedule.at_step(0)).unwrap();
    }
    let (mut engine, mut device, stop) = (0, 0, StopFlag::default());
    for number in 1..40 {
        let tokens: Vec<_> = texts.iter().map(|(_, token)| *token).collect();
        let calls = texts.iter_mut().zip(&tokens);
        let calls = calls
            .map(|((session, _), token)| CallLane::new(session, std::slice::from_ref(token), schedule.at_step(number)));
        let mut calls: Vec<_> = calls.collect();
        ON_DEVICE.store(0, Ordering::Relaxed);
        let region = Region::new(COUNTING);
        call_together(&mut calls, &stop);
        if number >= 4 {
            let on_device = ON_DEVICE.load(Ordering::Relaxed);
            (engine, device) = (engine + allocations(&region) - on_device, device + on_device);
        }
        let next: Vec<_> = calls.into_iter().map(|call| call.next.unwrap()).collect();
        texts.iter_mut().zip(next).for_each(|((_, token), next)| *token = next);
    }
    (engine, device)
}

/// How often the engine allocates in a text of that many tokens, once a longer one was made.
fn text_count(model: &Engine, tokens: usize) -> usize {
    let mut session = model.session().unwrap();
    let options = options_for(model);
    let mut say = |tokens| {
        session.reset().unwrap();
        session.generate(&[1, 2, 3], &options, tokens).unwrap().for_each(|token| assert!(token.is_ok()));
    };
    say(50);
    ON_DEVICE.store(0, Ordering::Relaxed);
    let region = Region::new(COUNTING);
    say(tokens);
    allocations(&region) - ON_DEVICE.load(Ordering::Relaxed)
}

/// One test: others would allocate beside it.
#[test]
fn decoding_allocates_nothing_and_a_thousand_texts_leak_nothing() {
    for name in ["llama", "mistral", "qwen3_5_moe"] {
        for sample in [Some(Head::Plain), Some(Head::Full), None] {
            let model = model(name, sample);
            let (engine, device) = decode_counts(&model);
            assert_eq!((engine, device), (0, 0), "{name}, head {sample:?}: by the engine, the device");
            let [short, long] = [4, 40].map(|tokens| text_count(&model, tokens));
            assert_eq!(short, long, "{name}, head {sample:?}: a text allocates nothing for a token");
            // More lanes than any list has room for without memory of its own.
            for lanes in [1, 2, 8, 17] {
                let (engine, device) = together_counts(&model, lanes);
                assert_eq!(
                    (engine, device),
                    (0, 0),
                    "{name}, head {sample:?}, {lanes} lanes: by the engine, the device"
                );
            }

            let mut session = model.session().unwrap();
            let mut say = |seed: i64| {
                session.reset().unwrap();
                session.generate(&[1, 2, 3], &options(seed), 4).unwrap().for_each(|token| assert!(token.is_ok()));
            };
            assert_eq!(growth(&mut say), 0, "{name}, head {sample:?}: one session that starts over");
        }
    }
    // Of caches and recurrent state.
    let model = model("qwen3_5_moe", Some(Head::Plain));
    let first = model.session().unwrap();
    let mut say = |seed: i64| {
        let mut session = if seed % 2 == 0 { model.session().unwrap() } else { first.fork().unwrap() };
        session.generate(&[1, 2, 3], &options(seed), 2).unwrap().for_each(|token| assert!(token.is_ok()));
    };
    assert_eq!(growth(&mut say), 0, "a session for every text, new ones and forks");
}

/// Returns by how many bytes the memory in use grows over a thousand texts, after a warm-up.
fn growth(say: &mut dyn FnMut(i64)) -> isize {
    (0..100).for_each(&mut *say);
    let region = Region::new(COUNTING);
    (100..1100).for_each(&mut *say);
    let change = region.change();
    change.bytes_allocated.cast_signed() - change.bytes_deallocated.cast_signed()
}
