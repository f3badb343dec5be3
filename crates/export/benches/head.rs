//! Prefill with the head on the last position, beside the same program with the head on every position (S4.2).
//!
//! `cargo bench -p ptero-export --bench head -- CHECKPOINT [TOKENS]`

use ptero_backend::{Backend, Executable, InputValue, State, run_once};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_cpu::Cpu;
use ptero_export::{Recipe, Storage, export};
use ptero_plan::{Options, lower, passes};
use ptero_pte::{Bytes, DType, Program, Verified};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let Some(path) = args.first() else { return Err("give a checkpoint; see benches/head.sh".into()) };
    let tokens: u32 = args.get(1).map_or(Ok(1505), |tokens| tokens.parse())?;
    let checkpoint = Checkpoint::open(Path::new(path), &Limits::default())?;
    for (name, storage) in [("bf16", Storage::Plain), ("int4", Storage::Int4)] {
        let recipe = Recipe { linear: storage, embedding: storage, max_prefill: Some(tokens), ..Recipe::default() };
        let every = Recipe { every_position: true, ..recipe.clone() };
        let (mut last, mut every) = (start(&checkpoint, &recipe, tokens)?, start(&checkpoint, &every, tokens)?);
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            // In turn, so that both see the same machine.
            for ((executable, state), times) in [&mut last, &mut every].into_iter().zip(&mut times) {
                let started = Instant::now();
                run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false))?;
                times.push(started.elapsed().as_secs_f64());
            }
        }
        let [last, every] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times.get(ROUNDS / 2).copied().unwrap_or_default()
        });
        println!(
            "{name}: {tokens} tokens in {:.0} ms with the head on the last position, {:.0} ms with it on all: {:.0} % less time",
            1e3 * last,
            1e3 * every,
            100.0 * (1.0 - last / every),
        );
    }
    Ok(())
}

/// A program, and a state whose inputs are written.
type Started = (Box<dyn Executable>, Box<dyn State>);

fn start(checkpoint: &Checkpoint, recipe: &Recipe, tokens: u32) -> Result<Started, Box<dyn Error>> {
    let mut bytes = Vec::new();
    export(checkpoint, recipe)?.write(&mut bytes, &mut |_| {})?;
    let limits = ptero_pte::Limits::DEFAULT;
    let program = Verified::new(Program::read(&Bytes::from(bytes), &limits)?, &limits)?;
    let (_, delegate) = program.delegates("forward").next().ok_or("no delegate")?;
    let (cpu, mut graph) = (Cpu::new(), lower(delegate, &Options::default())?);
    passes::run(&mut graph, &cpu.capabilities(), &[]);
    let executable = cpu.compile(Arc::new(graph))?;
    let mut state = executable.state(0)?;
    let ids: Vec<u8> = (0..tokens).flat_map(|token| i64::from(token % 1000).to_le_bytes()).collect();
    let positions: Vec<u8> = (0..tokens).flat_map(|position| i64::from(position).to_le_bytes()).collect();
    let count = u64::from(tokens);
    state.write(0, InputValue::Tensor { dtype: DType::I64, shape: &[1, count], bytes: &ids })?;
    state.write(1, InputValue::Tensor { dtype: DType::I64, shape: &[count], bytes: &positions })?;
    Ok((executable, state))
}
