//! `ptero run`: a prompt goes in, its continuation comes out.

mod chat;
mod interrupt;
mod prompt;
mod report;
mod settings;
mod speaker;
mod stream;

pub use settings::SamplingArgs;

use crate::device::{self, DeviceArgs};
use crate::model::{self, Opened, Voice, VoiceFiles};
use anyhow::{Context, Result, ensure};
use clap::Args;
use prompt::{PromptArgs, Task};
use ptero_engine::Model;
use ptero_text::Message;
use report::End;
use speaker::Speaker;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use stream::Form;

/// How long a text is that has no end of its own.
const DEFAULT_TOKENS: usize = 256;

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
    #[arg(long, value_name = "PASS", value_parser = device::PASS_NAMES, hide = true)]
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

impl LengthArgs {
    fn most(&self, otherwise: usize) -> usize {
        // -1 and what no memory could hold are as many as fit.
        self.max_tokens.map_or(otherwise, |tokens| usize::try_from(tokens).unwrap_or(usize::MAX))
    }
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let opened = model::open(args.model.as_deref(), &args.files.data, args.quiet || args.json)?;
    let (model, voice) = load(args, &opened).with_context(|| opened.name.clone())?;
    let options = args.sampling.options(&voice.generation, &model)?;
    let mut speaker = Speaker::new(args, &opened.name, &model, &voice, options)?;
    let load = started.elapsed();
    let task = args.prompt.task(&voice)?;
    speaker.loaded_in(load);
    let (tokens, most) = match &task {
        Task::Chat(first) => {
            ensure!(!args.json, "--json needs a prompt\nhint: give one with `-p`, `-f` or standard input");
            return chat::run(&mut speaker, first.clone());
        }
        Task::Tokens(tokens) => (tokens.clone(), DEFAULT_TOKENS),
        Task::Begin => (beginning(&voice, &model)?, DEFAULT_TOKENS),
        Task::Continue(text) => (prompt::encode(&voice, text, true)?, DEFAULT_TOKENS),
        Task::Reply(text) => {
            let messages = [args.prompt.opening(), vec![Message::new("user", text)]].concat();
            (args.prompt.render(&voice, &messages)?, usize::MAX)
        }
    };
    speaker.check(&tokens)?;
    speaker.introduce(tokens.len())?;
    if let Task::Continue(text) = &task {
        speaker.echo(text);
    }
    let end = speaker.say(&tokens, most)?.end;
    Ok(if end == End::Interrupted { interrupt::EXIT_CODE.into() } else { ExitCode::SUCCESS })
}

/// What a text begins with, where nothing is to be continued.
fn beginning(voice: &Voice, model: &Model) -> Result<Vec<i64>> {
    let start = prompt::encode(voice, "", true)?;
    let start = if start.is_empty() { model.bos_id().into_iter().collect() } else { start };
    let none = "there is no prompt, and the model has no token to begin texts with\nhint: give a prompt with `-p`";
    Some(start).filter(|start| !start.is_empty()).context(none)
}

/// The model and its text, side by side: large vocabularies take as long as the program.
fn load(args: &RunArgs, opened: &Opened) -> Result<(Model, Voice)> {
    let files = VoiceFiles { tokenizer: args.files.tokenizer.clone(), template: args.files.chat_template.clone() };
    let backend = device::open(&args.device)?;
    std::thread::scope(|scope| {
        let voice = scope.spawn(|| Voice::of(opened, &files));
        let model = Model::new(&opened.program, backend.as_ref(), &args.without)?;
        // A panic over there is a panic here.
        let voice = voice.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((model, voice))
    })
}

impl RunArgs {
    fn form(&self) -> Form {
        match self.json {
            true => Form::Json,
            false if std::io::stdout().is_terminal() => Form::Terminal,
            false => Form::Text,
        }
    }
}
