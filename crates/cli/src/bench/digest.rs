//! `ptero bench --logits-digest`: all logits of a few sampled texts as one number, which every device should give.

use super::measure::Tokens;
use super::setup::{Device, Source};
use super::text::{Align, Column, Table};
use super::{BenchArgs, progress};
use crate::print;
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use ptero_engine::{Engine, Session, Settings, TokenId, TokenSettings};
use ring::digest::{Context as Digest, SHA256};
use serde::Serialize;
use std::io::Write;

/// The seeds of the texts.
const SEEDS: [i64; 3] = [1, 2, 3];

const COLUMNS: &[Column] = &[("seed", Align::Right), ("SHA-256 of all logits", Align::Left)];

/// The digests of a model on a device.
#[derive(Debug, Serialize)]
struct Digests<'a> {
    model: &'a str,
    device: &'static str,
    prompt_tokens: usize,
    tokens: usize,
    temperature: f32,
    top_k: i64,
    top_p: f32,
    texts: Vec<Text>,
    /// Of the logits of all texts, one after the other.
    sha256: String,
}

/// The digest of one text.
#[derive(Debug, Serialize)]
struct Text {
    seed: i64,
    sha256: String,
}

/// Samples the texts and prints the digests.
pub(super) fn run(args: &BenchArgs, source: &Source, settings: Settings) -> Result<()> {
    let device = Device::open(args.device, args.threads.first().copied(), false, args.huge_pages, args.quiet)?;
    let program = source.keeping_logits()?;
    let model = Engine::new(&program, &*device.backend, &[]).with_context(|| source.program.name().to_owned())?;
    ensure!(model.keeps_logits() && model.takes_seed(), "the program does not show the logits that it draws from");
    let prompt_tokens = args.prompt_lengths.iter().copied().max().unwrap_or(0);
    let (tokens, context) = (args.decode, model.context());
    ensure!(
        prompt_tokens > 0 && prompt_tokens.checked_add(tokens).is_some_and(|end| end <= context),
        "a prompt of {prompt_tokens} tokens and {tokens} more cannot be tested in a context of {context}\n\
         hint: choose others with --prompt-lengths and --decode"
    );
    let progress = progress::counted(SEEDS.len() as u64 * (tokens as u64 + 1), args.quiet);
    let texts = Texts { prompt: Tokens::new(&model).prompt(prompt_tokens), tokens, settings, progress: &progress };
    let (texts, sha256) = texts.digests(&model)?;
    progress.finish_and_clear();
    let (model, device, Settings { temperature, top_k, top_p, .. }) = (source.program.name(), device.name, settings);
    let top_k = if top_k == Settings::PLAIN.top_k { 0 } else { top_k };
    let digests = Digests { model, device, prompt_tokens, tokens, temperature, top_k, top_p, texts, sha256 };
    if args.json { print::json(&digests) } else { Ok(write!(anstream::stdout(), "{}", digests.markdown())?) }
}

/// The texts to sample.
struct Texts<'a> {
    prompt: Vec<TokenId>,
    /// How many follow the prompt.
    tokens: usize,
    settings: Settings,
    progress: &'a ProgressBar,
}

impl Texts<'_> {
    /// The digest of each text, and that of all.
    fn digests(&self, model: &Engine) -> Result<(Vec<Text>, String)> {
        let mut session = model.session()?;
        let (mut all, mut texts) = (Digest::new(&SHA256), Vec::new());
        for seed in SEEDS {
            self.progress.set_message(format!("seed {seed}"));
            let mut text = Digest::new(&SHA256);
            self.sample(&mut session, seed, &mut [&mut text, &mut all])?;
            texts.push(Text { seed, sha256: hex(text) });
        }
        Ok((texts, hex(all)))
    }

    /// Samples a text and adds its logits to digests: the bytes of each, least significant first.
    fn sample(&self, session: &mut Session, seed: i64, digests: &mut [&mut Digest]) -> Result<()> {
        session.reset()?;
        let mut token = session.prefill(&self.prompt, &TokenSettings::new(self.settings, seed))?;
        for step in 0..=self.tokens {
            if step > 0 {
                // Seeds follow each other (S1.4).
                let seed = seed.wrapping_add_unsigned(step as u64);
                token = session.decode(token, &TokenSettings::new(self.settings, seed))?;
            }
            let logits = session.fetch_logits()?.context("a call left no logits")?;
            let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
            digests.iter_mut().for_each(|digest| digest.update(&bytes));
            self.progress.inc(1);
        }
        Ok(())
    }
}

impl Digests<'_> {
    fn markdown(&self) -> String {
        let Self { model, device, prompt_tokens, tokens, temperature, top_k, top_p, texts, sha256 } = self;
        let row = |name: String, sha256: &String| vec![name, sha256.clone()];
        let mut rows: Vec<_> = texts.iter().map(|text| row(text.seed.to_string(), &text.sha256)).collect();
        rows.push(row("all".to_owned(), sha256));
        format!(
            "{model} on {device}: a prompt of {prompt_tokens} tokens, then {tokens} sampled ones; \
             temperature {temperature}, top-k {top_k}, top-p {top_p}\n\n{}",
            Table { columns: COLUMNS, rows }.markdown()
        )
    }
}

fn hex(digest: Digest) -> String {
    digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
