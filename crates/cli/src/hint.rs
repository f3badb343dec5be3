//! Errors for people, with a hint if an option of this command helps: libraries do not know the options.

use ptero::Error;
use ptero_engine::Error as EngineError;
use ptero_export::GraftError;
use ptero_plan::{Fault, PlanError};
use ptero_server::ServeError;
use std::io::{self, Write};

/// Prints an error on standard error.
pub fn print(error: &anyhow::Error) {
    // If standard error is closed, the exit status still reports the error.
    let _ = writeln!(anstream::stderr(), "\x1b[31merror\x1b[0m: {}", text(error));
}

/// Returns `true` if the reader of the output has closed it.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}

/// Returns an error with all its causes, and a hint on its own line.
pub fn text(error: &anyhow::Error) -> String {
    let hint = error.chain().find_map(|cause| {
        let library = cause.downcast_ref().and_then(of_library);
        let graft = || cause.downcast_ref().and_then(of_graft);
        let plan = || cause.downcast_ref().and_then(of_plan);
        let program = || cause.downcast_ref().and_then(of_program);
        let server = || cause.downcast_ref().and_then(of_server);
        library.or_else(graft).or_else(plan).or_else(program).or_else(server)
    });
    hint.map_or_else(|| format!("{error:#}"), |hint| format!("{error:#}\nhint: {hint}"))
}

fn of_library(error: &Error) -> Option<&'static str> {
    match error.innermost() {
        Error::Plan(error) | Error::Engine(EngineError::Plan(error)) => of_plan(error),
        Error::Program(error) => of_program(error),
        Error::UnknownCacheLayers => Some("give them with --kv-cache capacity,layers,kv_heads,head_dim"),
        Error::Engine(EngineError::NeedsSampling(_)) => {
            Some("export it with `--sample`, or let the host sample with `--host-sampling`")
        }
        Error::Engine(EngineError::NeedsFullSampler(_)) => {
            Some("export it with `--sample=full`, or upgrade it with `ptero graft-sampler --full`")
        }
        Error::Engine(EngineError::TakesNoSeed) => Some("export it again with `--sample`"),
        Error::Device(error) | Error::Engine(EngineError::Backend(error)) => of_device(error),
        // Most people did not choose the device: `auto` did.
        Error::NoDevice { .. } => Some("`ptero devices` lists what there is; `--device cpu` needs nothing else"),
        Error::NotInBuild { .. } => {
            Some("docs/DEVICES.md says how to build with it; `ptero devices` lists what there is")
        }
        Error::NoTokenizer => Some("give one with `--tokenizer FILE`, or a prompt of token ids with `--tokens`"),
        Error::NoBeginning => Some("give a prompt with `-p`"),
        _ => None,
    }
}

fn of_plan(error: &PlanError) -> Option<&'static str> {
    (error.fault == Fault::NoCache).then_some("give its size with --kv-cache")
}

fn of_device(error: &ptero_backend::Error) -> Option<&'static str> {
    match error.fault() {
        ptero_backend::Fault::Foreign { .. } => Some(
            "on an Apple GPU, `--device mlx --allow-foreign-kernels` runs what the program brings; only if you trust it",
        ),
        ptero_backend::Fault::DoesNotFit { .. } => Some("`--device cpu` runs it in the memory of the machine"),
        _ => None,
    }
}

fn of_program(error: &ptero_pte::Error) -> Option<&'static str> {
    let is_data = matches!(error.fault(), ptero_pte::Fault::IsTensorData);
    is_data.then_some("pass the program and name this file with --data")
}

fn of_server(error: &ServeError) -> Option<&'static str> {
    match error {
        ServeError::Model(error) => of_library(error),
        ServeError::ModelName(_) | ServeError::SameName(_) => Some("give it another with `--model NAME=MODEL`"),
        _ => None,
    }
}

fn of_graft(error: &GraftError) -> Option<&'static str> {
    match error {
        GraftError::SeveralOutputs { .. } | GraftError::NoTensor { .. } => {
            Some("--output N says which one holds the logits")
        }
        GraftError::NotFloat(_) => Some("--output N says which one does"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_hint_is_found_through_contexts_and_is_the_last_line() {
        let plan = || PlanError { chain: 0, index: 1, node: "UpdateAndAttend", fault: Fault::NoCache };
        let wanted = "instruction 0.1 (UpdateAndAttend): needs a key-value cache outside the graph, and none was \
                      described\nhint: give its size with --kv-cache";
        let context = |error: anyhow::Error| text(&error.context("method `forward`").context("a.pte"));
        assert_eq!(context(plan().into()), format!("a.pte: method `forward`: {wanted}"));
        assert_eq!(context(Error::from(plan()).into()), format!("a.pte: method `forward`: {wanted}"));
        assert_eq!(
            context(Error::from(EngineError::from(plan())).into()),
            format!("a.pte: method `forward`: {wanted}")
        );
        let none = Err::<(), _>(GraftError::UsesSampling).context("a.pte").unwrap_err();
        assert_eq!(text(&none), "a.pte: already samples: the program's metadata says `use_sampling`");
    }

    #[test]
    fn a_program_that_does_not_fit_a_gpu_names_the_device_and_the_cpu() {
        let (weights, state, arena, free) = (8 << 30, 3 << 20, 1, 6 << 30);
        let fault = ptero_backend::Fault::DoesNotFit { device: "cuda", weights, state, arena, free };
        let error = EngineError::from(ptero_backend::Error::from(fault));
        assert_eq!(
            text(&anyhow::Error::from(Error::from(error))),
            "the program does not fit the device `cuda`: weights 8192 MiB, and for each session 3 MiB of state and 1 MiB of \
             working memory; 6144 MiB are free\nhint: `--device cpu` runs it in the memory of the machine"
        );
    }

    #[test]
    fn a_program_with_code_of_its_own_is_refused_with_a_hint_for_those_who_trust_it() {
        let (name, source_hash, header_hash) = ("warp".to_owned(), 1, 2);
        let fault = ptero_backend::Fault::Foreign { name, source_hash, header_hash };
        let error = ptero_backend::Error::from(fault);
        let wanted = "Metal kernel `warp` (source 0000000000000001, header 0000000000000002) has no equivalent here\nhint: \
                      on an Apple GPU, `--device mlx --allow-foreign-kernels` runs what the program brings; only if you trust it";
        assert_eq!(text(&anyhow::Error::from(Error::from(error))), wanted);
    }
}
