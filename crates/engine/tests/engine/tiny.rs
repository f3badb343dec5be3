//! Tiny checkpoints, and the programs and texts made of them.

use ptero_backend::Backend;
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_engine::{Engine, Finish, Result, SampleOptions, Sampling, Session, TokenId};
use ptero_export::{Recipe, export};
use ptero_pte::{Bytes, Program, Verified};
use ptero_reference::Reference;
use ptero_sampling::inputs::Head;
use ptero_tensor::ScaleType;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A model of each kind of state: caches, sliding-window caches, recurrent state.
pub(crate) const MODELS: [&str; 3] = ["llama", "mistral", "qwen3_5_moe"];

pub(crate) const PROMPT: [u32; 11] = [1, 17, 80, 3, 44, 9, 91, 23, 5, 62, 30];

pub(crate) fn backends() -> [Box<dyn Backend>; 2] {
    [Box::new(Reference), Box::new(Cpu::new())]
}

/// The device of tests that need no other to compare with.
pub(crate) fn device() -> Box<dyn Backend> {
    Box::new(Cpu::new())
}

/// The same device with another number of threads.
pub(crate) fn threaded(threads: usize) -> Box<dyn Backend> {
    Box::new(Cpu::with(threads, Isa::best()))
}

pub(crate) fn exact(sample: bool) -> Recipe {
    Recipe { dtype: ScaleType::F32, ..rounded(sample) }
}

pub(crate) fn rounded(sample: bool) -> Recipe {
    Recipe { sample: sample.then_some(Head::Plain), ..Recipe::default() }
}

/// The folder of the tiny models.
pub(crate) fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny")
}

/// Every tiny model that there is.
pub(crate) fn all() -> Vec<String> {
    let names = std::fs::read_dir(tiny()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The program as it is written.
pub(crate) fn exported(name: &str, recipe: &Recipe) -> Program {
    let (folder, gguf) = (tiny().join(name), tiny().join(name).join("model.gguf"));
    let checkpoint = Checkpoint::open(if gguf.exists() { &gguf } else { &folder }, &Limits::default()).unwrap();
    let (mut bytes, export) = (Vec::new(), export(&checkpoint, recipe).unwrap());
    export.write(&mut bytes, &mut |_| ()).unwrap();
    Program::read(&Bytes::from(bytes), &ptero_pte::Limits::DEFAULT).unwrap()
}

pub(crate) fn verified(program: Program) -> Verified {
    Verified::new(program, &ptero_pte::Limits::DEFAULT).unwrap()
}

/// A program whose texts have no end of their own, so that they are long enough to compare.
pub(crate) fn endless(name: &str, recipe: &Recipe) -> Verified {
    let mut program = exported(name, recipe);
    program.methods.retain(|method| method.name != "get_eos_ids");
    verified(program)
}

pub(crate) fn model(name: &str, recipe: &Recipe, backend: &dyn Backend) -> Engine {
    Engine::new(&endless(name, recipe), backend, &[]).unwrap()
}

pub(crate) fn session(name: &str, recipe: &Recipe) -> Session {
    model(name, recipe, device().as_ref()).session().unwrap()
}

/// Plain sampling with a seed, wherever that is done.
pub(crate) fn seeded(seed: i64) -> SampleOptions {
    let sampling = Sampling::HostAllowed;
    SampleOptions { temperature: 1.0, seed: Some(seed), sampling, ..SampleOptions::default() }
}

/// Many ways to draw.
pub(crate) fn ways(seed: i64) -> [SampleOptions; 6] {
    let plain = seeded(seed);
    [
        plain,
        SampleOptions { temperature: 0.0, ..plain },
        SampleOptions { temperature: 0.3, ..plain },
        SampleOptions { top_k: Some(5), ..plain },
        SampleOptions { temperature: 2.5, top_p: Some(0.7), ..plain },
        SampleOptions { temperature: 1.5, top_k: Some(40), top_p: Some(0.9), ..plain },
    ]
}

/// Calls back for every token.
pub(crate) trait GenerateWith {
    fn generate_with(
        &mut self,
        prompt: &[TokenId],
        options: &SampleOptions,
        most: usize,
        on_token: impl FnMut(TokenId) -> ControlFlow<()>,
    ) -> Result<Finish>;
}

impl GenerateWith for Session {
    fn generate_with(
        &mut self,
        prompt: &[TokenId],
        options: &SampleOptions,
        most: usize,
        mut on_token: impl FnMut(TokenId) -> ControlFlow<()>,
    ) -> Result<Finish> {
        let mut tokens = self.generate(prompt, options, most)?;
        for token in tokens.by_ref() {
            if on_token(token?).is_break() {
                break;
            }
        }
        Ok(tokens.finish())
    }
}

/// The text with which a session continues the prompt after a reset.
pub(crate) fn text(session: &mut Session, options: &SampleOptions, count: usize) -> Vec<u32> {
    session.reset().unwrap();
    let mut text = Vec::new();
    let finish = session.generate_with(&PROMPT, options, count, |token| {
        text.push(token);
        ControlFlow::Continue(())
    });
    assert_eq!(finish.unwrap().timings.new_tokens, text.len());
    text
}
