//! `ptero run`: generates text with a model.

mod chat;
mod interrupt;
mod prompt;
mod report;
mod settings;
mod writer;

pub use settings::SamplingArgs;

use crate::device::{self, DeviceArgs};
use crate::progress::terminal;
use crate::with;
use anyhow::{Result, ensure};
use clap::Args;
use prompt::{PromptArgs, Task};
use ptero::{Finish, FinishReason, Model, Options};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use writer::Writer;

/// Arguments of `ptero run`.
#[derive(Args, Debug)]
#[command(
    after_help = "The text goes to standard output, the seed, the settings and the timings to standard error. If the model has
a chat template, it is applied to the prompt; without a prompt, a conversation starts.

Examples:
  ptero run -p \"Once upon a time\"                    use the included model
  ptero run -p \"Once upon a time\" -s 42 --temp 1.2   the same text every time
  ptero run -m smol.pte -p \"Why is the sky blue?\"    use a program (see `ptero export`)
  ptero run -m ./SmolLM2-135M-Instruct               export a checkpoint and start a conversation
  ptero run -p \"Once\" --min-p 0.05 --repetition-penalty 1.1   every sampler, inside the program
  ptero run -p \"Once\" --choices 3 --json --logprobs 5  three texts, with log-probabilities
  git diff | ptero run -m smol.pte - -n 100          read the prompt from a pipe"
)]
pub struct RunArgs {
    /// A program (.pte), or a checkpoint to export first (folder, .gguf, .safetensors or owner/name)
    /// [default: the included model]
    #[arg(short, long, alias = "model_path", value_name = "MODEL")]
    model: Option<String>,

    #[command(flatten)]
    prompt: PromptArgs,

    #[command(flatten)]
    sampling: SamplingArgs,

    #[command(flatten)]
    length: LengthArgs,

    #[command(flatten)]
    files: FileArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Skip an optimisation pass; can be repeated
    #[arg(long, value_name = "PASS", value_parser = device::pass_parser(), hide = true)]
    without: Vec<String>,

    /// Print one JSON event per line: `start`, `token`, `text`, `end`
    #[arg(long, conflicts_with = "chat", help_heading = "Output")]
    json: bool,

    /// Print only the text and errors
    #[arg(long, help_heading = "Output")]
    quiet: bool,
}

/// When to stop.
#[derive(Args, Debug)]
#[command(next_help_heading = "Length")]
struct LengthArgs {
    /// Maximum number of tokens to generate; -1 for as many as fit [default: 256, or no limit for replies]
    #[arg(short = 'n', long, aliases = ["max_new_tokens", "max-new-tokens", "max_tokens", "n-predict"], value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    max_tokens: Option<i64>,

    /// Stop before TEXT; can be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Continue after the end-of-text token
    #[arg(long, alias = "ignore_eos")]
    ignore_eos: bool,
}

/// Files of the model.
#[derive(Args, Debug)]
#[command(next_help_heading = "Files")]
pub(crate) struct FileArgs {
    /// Use this tokenizer.json, or the one in this folder
    #[arg(long, aliases = ["tokenizer_path", "tokenizer-path"], value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// Use this chat template (Jinja)
    #[arg(long, aliases = ["chat-template-file"], value_name = "FILE")]
    chat_template: Option<PathBuf>,

    /// Load tensor data (.ptd) of the program; can be repeated
    #[arg(long, aliases = ["data_path", "data_paths"], value_name = "FILE", value_delimiter = ',')]
    data: Vec<PathBuf>,
}

impl FileArgs {
    /// Returns `true` if there are any.
    pub(crate) fn are_given(&self) -> bool {
        self.tokenizer.is_some() || self.chat_template.is_some() || !self.data.is_empty()
    }

    /// Adds the files to options.
    pub(crate) fn apply(&self, options: Options) -> Options {
        let options = options.data(&self.data);
        let options = with(options, self.tokenizer.as_ref(), Options::tokenizer);
        with(options, self.chat_template.as_ref(), Options::chat_template)
    }
}

/// Applies the arguments to the settings of a chat or a generator, which have the same setters.
macro_rules! configured {
    ($builder:expr, $args:expr, $structure:expr) => {{
        let (sampling, length) = (&$args.sampling, &$args.length);
        let builder = $builder.stop(&length.stop).ignore_eos(length.ignore_eos);
        let builder = builder.host_sampling(sampling.host_sampling);
        let builder = with(builder, sampling.temperature, |builder, value| builder.temperature(value));
        let builder = with(builder, sampling.top_k, |builder, value| builder.top_k(value));
        let builder = with(builder, sampling.top_p, |builder, value| builder.top_p(value));
        let builder = with(builder, sampling.min_p, |builder, value| builder.min_p(value));
        let builder = with(builder, sampling.repetition_penalty, |builder, value| builder.repetition_penalty(value));
        let builder = with(builder, sampling.presence_penalty, |builder, value| builder.presence_penalty(value));
        let builder = with(builder, sampling.frequency_penalty, |builder, value| builder.frequency_penalty(value));
        let builder = builder.exact_tail(sampling.exact_tail);
        let builder = builder.logit_bias(sampling.logit_bias.iter().copied());
        let builder = with(builder, sampling.logprobs, |builder, value| builder.log_probabilities(value.which));
        let builder = with(builder, $structure.json_schema.as_ref(), |builder, schema| builder.json_schema(schema));
        let builder = with(builder, sampling.regex.as_ref(), |builder, regex| builder.regex(regex));
        let builder = with(builder, $structure.grammar.as_ref(), |builder, grammar| builder.lark_grammar(grammar));
        let seed = sampling.seed.filter(|seed| *seed != -1);
        let builder = with(builder, seed, |builder, value| builder.seed(value));
        // -1 means no limit.
        let max_tokens = length.max_tokens.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
        with(builder, max_tokens, |builder, value| builder.max_tokens(value))
    }};
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let structure = args.sampling.structure()?;
    let model = open(args)?;
    // Settings that the model refuses are reported before the prompt is read.
    let settings = configured!(model.generator(), args, structure);
    settings.check()?;
    let mut writer = Writer::new(args, &model, started.elapsed());
    let task = args.prompt.task(&model)?;
    writer.loaded();
    let prompt = match &task {
        Task::Chat(first) => {
            ensure!(!args.json, "--json needs a prompt\nhint: give one with `-p`, `-f` or standard input");
            return chat::run(
                &mut writer,
                configured!(args.prompt.chat(&model), args, structure).start()?,
                first.clone(),
            );
        }
        Task::Reply(message) => {
            let mut chat = configured!(args.prompt.chat(&model), args, structure).start()?;
            writer.listen(chat.stop_flag())?;
            return each_choice(&mut writer, |writer, number| {
                let mut choice = number.map(|number| chat.choice(message, number)).transpose()?;
                let chat = choice.as_mut().unwrap_or(&mut chat);
                let options = *chat.options();
                writer.write(&options, None, chat.send(message)?)
            });
        }
        Task::Tokens(tokens) => tokens.clone(),
        Task::Begin => model.beginning()?,
        Task::Continue(text) => model.encode(text)?,
    };
    let mut generator = settings.start()?;
    writer.listen(generator.stop_flag())?;
    let echo = if let Task::Continue(text) = &task { Some(text.as_str()) } else { None };
    each_choice(&mut writer, |writer, number| {
        let mut choice = number.map(|number| generator.choice(&prompt, number)).transpose()?;
        let generator = choice.as_mut().unwrap_or(&mut generator);
        let options = *generator.options();
        writer.write(&options, echo, generator.generate_tokens(&prompt)?)
    })
}

/// Writes as many texts as were asked for, unless the user stops one. If there is only one, it has no number.
fn each_choice(
    writer: &mut Writer<'_>,
    mut write: impl FnMut(&mut Writer<'_>, Option<u32>) -> Result<Finish>,
) -> Result<ExitCode> {
    let count = writer.args.sampling.choices;
    for number in 0..count {
        let number = (count > 1).then_some(number);
        writer.begin_choice(number);
        if write(writer, number)?.reason == FinishReason::Stopped {
            return Ok(interrupt::EXIT_CODE.into());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn open(args: &RunArgs) -> Result<Model> {
    let options = args.files.apply(args.device.options()).without_passes(&args.without);
    let options = options.progress(terminal(args.quiet || args.json));
    let options = options.full_sampler(args.sampling.needs_full_sampler());
    Ok(match &args.model {
        Some(model) => options.open_model(model)?,
        None => options.included_model()?,
    })
}
