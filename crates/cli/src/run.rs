//! `ptero run`: a prompt goes in, its continuation comes out.

mod chat;
mod interrupt;
mod prompt;
mod report;
mod settings;
mod writer;

pub use settings::SamplingArgs;

use crate::device::{self, DeviceArgs};
use crate::progress::terminal;
use anyhow::{Result, ensure};
use clap::Args;
use prompt::{PromptArgs, Task};
use ptero::{FinishReason, Model};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use writer::Writer;

/// Arguments of `ptero run`.
#[derive(Args, Debug)]
#[command(
    after_help = "Only the text goes to standard output; the seed, the settings and at the end the timings go to standard
error. A model with a chat template gets the prompt through it; without a prompt, it is talked with.

Examples:
  ptero run -p \"Once upon a time\"                    the model in the box goes on
  ptero run -p \"Once upon a time\" -s 42 --temp 1.2   wilder, and the same text every time
  ptero run -m smol.pte -p \"Why is the sky blue?\"    a model of your own (see `ptero export`)
  ptero run -m ./SmolLM2-135M-Instruct               a checkpoint, exported once; a conversation
  ptero run -m smol.pte --chat --system \"Be brief.\"  a conversation
  git diff | ptero run -m smol.pte - -n 100          a prompt from a pipe"
)]
pub struct RunArgs {
    /// A program (.pte), or a checkpoint (folder, .gguf, .safetensors, owner/name), which is exported into a cache first
    /// [default: the small model that ptero carries]
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

    /// Leave out a pass over the plan; may be given several times
    #[arg(long, value_name = "PASS", value_parser = device::pass_parser(), hide = true)]
    without: Vec<String>,

    /// Print events as JSON, one a line: `start`, `token`, `text`, `end`
    #[arg(long, conflicts_with = "chat", help_heading = "Output")]
    json: bool,

    /// Say nothing but the text and errors
    #[arg(long, help_heading = "Output")]
    quiet: bool,
}

/// When to end.
#[derive(Args, Debug)]
#[command(next_help_heading = "Length")]
struct LengthArgs {
    /// The most tokens to write; -1 is as many as fit [default: 256, or for a reply until it ends]
    #[arg(short = 'n', long, aliases = ["max_new_tokens", "max-new-tokens", "max_tokens", "n-predict"], value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    max_tokens: Option<i64>,

    /// End at this text, which is not written; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Go on when the model would end
    #[arg(long, alias = "ignore_eos")]
    ignore_eos: bool,
}

/// Files that a model may need beside it.
#[derive(Args, Debug)]
#[command(next_help_heading = "Files")]
struct FileArgs {
    /// tokenizer.json, or a folder with it, instead of the model's own
    #[arg(long, aliases = ["tokenizer_path", "tokenizer-path"], value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// A chat template (Jinja) instead of the model's own
    #[arg(long, aliases = ["chat-template-file"], value_name = "FILE")]
    chat_template: Option<PathBuf>,

    /// Tensor data (.ptd) that belongs to the program; may be given several times
    #[arg(long, aliases = ["data_path", "data_paths"], value_name = "FILE", value_delimiter = ',')]
    data: Vec<PathBuf>,
}

/// Applies the arguments to the settings of a chat or a generator, which have the same setters.
macro_rules! configured {
    ($builder:expr, $args:expr) => {{
        let (sampling, length) = (&$args.sampling, &$args.length);
        let builder = $builder.stop(&length.stop).ignore_eos(length.ignore_eos);
        let mut builder = builder.host_sampling(sampling.host_sampling);
        if let Some(temperature) = sampling.temperature {
            builder = builder.temperature(temperature);
        }
        if let Some(top_k) = sampling.top_k {
            builder = builder.top_k(top_k);
        }
        if let Some(top_p) = sampling.top_p {
            builder = builder.top_p(top_p);
        }
        if let Some(seed) = sampling.seed.filter(|seed| *seed != -1) {
            builder = builder.seed(seed);
        }
        if let Some(tokens) = length.max_tokens {
            // -1, and what no memory could hold, is as many as fit.
            builder = builder.max_tokens(usize::try_from(tokens).unwrap_or(usize::MAX));
        }
        builder
    }};
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let started = Instant::now();
    args.sampling.check()?;
    let model = open(args)?;
    // Settings that the model refuses are reported before the prompt is read.
    let settings = configured!(model.generator(), args);
    drop(settings.clone().start()?);
    let mut writer = Writer::new(args, &model, started.elapsed());
    let task = args.prompt.task(&model)?;
    writer.loaded();
    let prompt = match &task {
        Task::Chat(first) => {
            ensure!(!args.json, "--json needs a prompt\nhint: give one with `-p`, `-f` or standard input");
            return chat::run(&mut writer, configured!(args.prompt.chat(&model), args).start()?, first.clone());
        }
        Task::Reply(message) => {
            let mut chat = configured!(args.prompt.chat(&model), args).start()?;
            writer.listen(chat.stop_flag())?;
            let options = *chat.options();
            return exit_code(writer.write(&options, None, chat.send(message)?)?.reason);
        }
        Task::Tokens(tokens) => tokens.clone(),
        Task::Begin => model.beginning()?,
        Task::Continue(text) => model.encode(text)?,
    };
    let mut generator = settings.start()?;
    writer.listen(generator.stop_flag())?;
    let options = *generator.options();
    let echo = if let Task::Continue(text) = &task { Some(text.as_str()) } else { None };
    exit_code(writer.write(&options, echo, generator.generate_tokens(&prompt)?)?.reason)
}

fn exit_code(reason: FinishReason) -> Result<ExitCode> {
    Ok(if reason == FinishReason::Stopped { interrupt::EXIT_CODE.into() } else { ExitCode::SUCCESS })
}

fn open(args: &RunArgs) -> Result<Model> {
    let mut options = args.device.options().data(&args.files.data).without_passes(&args.without);
    options = options.progress(terminal(args.quiet || args.json));
    if let Some(path) = &args.files.tokenizer {
        options = options.tokenizer(path);
    }
    if let Some(path) = &args.files.chat_template {
        options = options.chat_template(path);
    }
    Ok(match &args.model {
        Some(model) => options.open_model(model)?,
        None => options.included_model()?,
    })
}
