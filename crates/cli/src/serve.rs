//! `ptero serve`: answers OpenAI's API over HTTP, and has a page for browsers.

use crate::device::DeviceArgs;
use crate::progress::terminal;
use crate::run::FileArgs;
use anyhow::{Result, ensure};
use clap::Args;
use ptero::{BatchOptions, INCLUDED, Model, name_of};
use ptero_server::{Config, ModelSource, Origin, RequestLog};
use serde_json::json;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Arguments of `ptero serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "Paths: / (a page to try it and to see why each token was drawn), /v1/chat/completions, /v1/completions, /v1/responses,
/v1/models, /v1/explain, /health, /ready, /metrics. Any client of OpenAI's API works; point it to http://ADDRESS/v1. A request may have a
seed, and with the same seed it gets the same text, however many others are served at the same time. See docs/SERVING.md.

Examples:
  ptero serve                                    serve the included model on port 8080, for this machine only
  ptero serve smol.pte --lanes 8                 up to 8 texts at once; more wait
  ptero serve ./SmolLM2-135M-Instruct --host 0.0.0.0 --api-key SECRET   for other machines
  ptero serve -m small=smol.pte -m large=./Qwen3-8B    two models: a request's `model` chooses, and without one it is the
                                                 first; the others are loaded when they are first asked for"
)]
pub struct ServeArgs {
    /// A program (.pte), or a checkpoint to export first (folder, .gguf, .safetensors or owner/name)
    /// [default: the included model]
    #[arg(value_name = "MODEL", conflicts_with = "models")]
    source: Option<String>,

    /// Serve this model, under this name or that of its file or checkpoint; can be repeated
    #[arg(short, long = "model", value_name = "[NAME=]MODEL")]
    models: Vec<String>,

    /// Address to listen on; other than loopback needs --api-key
    #[arg(long, default_value = "127.0.0.1", value_name = "IP", help_heading = "Network")]
    host: IpAddr,

    /// Port to listen on; 0 for any
    #[arg(long, default_value_t = 8080, value_name = "N", help_heading = "Network")]
    port: u16,

    /// Key that requests must carry (`Authorization: Bearer KEY`)
    #[arg(long, value_name = "KEY", help_heading = "Network")]
    api_key: Option<String>,

    /// Let web pages of this origin, such as `https://example.com`, ask through browsers; can be repeated. Any origin (`*`) needs
    /// --api-key
    #[arg(long, value_name = "ORIGIN", help_heading = "Network")]
    cors: Vec<Origin>,

    /// Texts generated at the same time, of each model
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Limits")]
    lanes: u16,

    /// Texts that wait, of each model; more are refused with status 429
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Limits")]
    queue: u16,

    /// Tokens of prompts processed between two steps of the texts that run
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Limits")]
    chunk: u16,

    /// Memory for the states of texts, in MiB; texts that might need more wait. Several models share it equally
    #[arg(long, default_value_t = 4096, value_name = "MIB", help_heading = "Limits")]
    state_memory: u32,

    /// Memory for states of earlier prompts, in MiB: a prompt that begins like one starts there; 0 for none.
    /// Several models share it equally
    #[arg(long, default_value_t = 1024, value_name = "MIB", help_heading = "Limits")]
    prefix_memory: u32,

    /// Seconds that a request may take; then its texts end with an error
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    timeout: u32,

    #[command(flatten)]
    files: FileArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// Log requests as JSON, one per line
    #[arg(long, help_heading = "Output")]
    log_json: bool,

    /// Log only errors that end the server
    #[arg(long, conflicts_with = "log_json", help_heading = "Output")]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: &ServeArgs) -> Result<()> {
    let models = models(args)?;
    let names: Vec<String> = models.iter().map(|model| model.name().to_owned()).collect();
    let mut config = Config::new(models, args.port);
    config.address = SocketAddr::new(args.host, args.port);
    config.api_key.clone_from(&args.api_key);
    config.origins.clone_from(&args.cors);
    config.batch = BatchOptions {
        lanes: args.lanes.into(),
        queue: args.queue.into(),
        chunk: args.chunk.into(),
        state_bytes: u64::from(args.state_memory) << 20,
        prefix_bytes: u64::from(args.prefix_memory) << 20,
    };
    config.limits.request_time = Duration::from_secs(args.timeout.into());
    let (is_json, is_quiet) = (args.log_json, args.quiet);
    config.log = Arc::new(move |log| {
        if !is_quiet {
            // If standard error is closed, requests are answered all the same.
            let _ = writeln!(std::io::stderr(), "{}", if is_json { json_line(log) } else { line(log) });
        }
    });
    let ready = |address: SocketAddr, first: &Model| {
        let _ = writeln!(std::io::stderr(), "{}", welcome(&names, address, first, args.api_key.is_some()));
    };
    Ok(ptero_server::run(config, ready)?)
}

/// Returns the models with their names, and checks that they are there; none is opened.
fn models(args: &ServeArgs) -> Result<Vec<ModelSource>> {
    let message = "a tokenizer, a chat template or tensor data are those of one model, and there are several";
    ensure!(args.models.len() < 2 || !args.files.are_given(), message);
    let options = args.files.apply(args.device.options()).full_sampler(true).progress(terminal(args.quiet));
    let named =
        args.models.iter().map(|model| split(model)).chain(args.source.iter().map(|path| (None, path.as_str())));
    let named = named.map(|(name, path)| {
        let found = name_of(Path::new(path))?;
        let name = name.map_or(found, str::to_owned);
        let (options, path) = (options.clone().name(&name), path.to_owned());
        Ok(ModelSource::new(name, move || options.open_model(&path)))
    });
    let mut models = named.collect::<Result<Vec<_>>>()?;
    if models.is_empty() {
        models.push(ModelSource::new(INCLUDED, move || options.included_model()));
    }
    Ok(models)
}

/// Splits `NAME=MODEL`. What exists as it is written is a path.
fn split(model: &str) -> (Option<&str>, &str) {
    let named = model.split_once('=').filter(|_| !Path::new(model).exists());
    named.map_or((None, model), |(name, path)| (Some(name), path))
}

/// Tells where the server is, and how to try it.
fn welcome(names: &[String], address: SocketAddr, first: &Model, has_key: bool) -> String {
    let (name, device) = (names.join(", "), first.device());
    let path = if first.has_chat_template() { "chat/completions" } else { "completions" };
    let content = if path == "completions" {
        r#""prompt": "Once upon a time", "max_tokens": 60"#
    } else {
        r#""messages": [{"role": "user", "content": "Why is the sky blue?"}]"#
    };
    let key = if has_key { " -H \"Authorization: Bearer $KEY\"" } else { "" };
    format!(
        "serving {name} on {device} (Ctrl-C ends)\npage: http://{address}/\nOpenAI's API: http://{address}/v1\ntry: curl http://{address}/v1/{path} -H 'Content-Type: application/json'{key} -d '{{{content}}}'"
    )
}

fn line(log: &RequestLog) -> String {
    let status = log.status.map_or_else(|| "left".to_owned(), |status| status.as_u16().to_string());
    let mut line = format!("{} {} {} {status} {:.3} s", log.id, log.method, log.path, log.time.as_secs_f64());
    log.model.iter().for_each(|model| line += &format!(", {model}"));
    if log.prompt_tokens > 0 {
        line += &format!(", {} + {} tokens", log.prompt_tokens, log.new_tokens);
    }
    // What a client sent may be in the message.
    log.trouble.iter().for_each(|trouble| line += &format!(", {}", trouble.escape_debug()));
    line
}

fn json_line(log: &RequestLog) -> String {
    let RequestLog { id, method, path, model, status, prompt_tokens, new_tokens, trouble, time } = log;
    json!({
        "id": id,
        "method": method.as_str(),
        "path": path,
        "model": model,
        "status": status.map(|status| status.as_u16()),
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "trouble": trouble,
        "seconds": time.as_secs_f64(),
    })
    .to_string()
}
