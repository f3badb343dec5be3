//! What to do about an error, where an option of this command is the answer: libraries do not know the options.

use ptero_engine::Error as Engine;
use ptero_export::GraftError;
use ptero_plan::{Fault, PlanError};

/// An error with all its causes, and what to do about it on a line of its own.
pub fn text(error: &anyhow::Error) -> String {
    match hint(error) {
        Some(hint) => format!("{error:#}\nhint: {hint}"),
        None => format!("{error:#}"),
    }
}

/// What to do about an error.
pub fn hint(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        let engine = cause.downcast_ref().and_then(of_engine);
        let plan = || cause.downcast_ref().and_then(of_plan);
        let graft = || cause.downcast_ref().and_then(of_graft);
        let program = || cause.downcast_ref().and_then(of_program);
        engine.or_else(plan).or_else(graft).or_else(program)
    })
}

fn of_engine(error: &Engine) -> Option<&'static str> {
    if let Engine::Plan(error) = error {
        return of_plan(error);
    }
    let needs_sampling = "export it with `--sample`, or let the host draw with `--host-sampling`";
    let needs_sampling = matches!(error, Engine::NeedsSampling(_)).then_some(needs_sampling);
    needs_sampling.or(matches!(error, Engine::TakesNoSeed).then_some("export it again with `--sample`"))
}

fn of_plan(error: &PlanError) -> Option<&'static str> {
    (error.fault == Fault::NoCache).then_some("give its size with --kv-cache")
}

fn of_program(error: &ptero_pte::Error) -> Option<&'static str> {
    let is_data = matches!(error.fault(), ptero_pte::Fault::IsTensorData);
    is_data.then_some("pass the program and name this file with --data")
}

fn of_graft(error: &GraftError) -> Option<&'static str> {
    let is_unclear = matches!(error, GraftError::SeveralOutputs { .. } | GraftError::NoTensor { .. });
    let is_wrong = matches!(error, GraftError::NotFloat(_));
    let holds_logits = is_unclear.then_some("--output N says which one holds the logits");
    holds_logits.or(is_wrong.then_some("--output N says which one does"))
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
        assert_eq!(context(Engine::from(plan()).into()), format!("a.pte: method `forward`: {wanted}"));
        let none = Err::<(), _>(GraftError::UsesSampling).context("a.pte").unwrap_err();
        assert_eq!(text(&none), "a.pte: already samples: the program's metadata says `use_sampling`");
    }
}
