use super::{ALIGN, is_capturable};
use ptero_plan::plan::{Plan, PlanStep};
use ptero_plan::prim::Prim;
use ptero_plan::{Arena, Capabilities, bufferize, passes};
use ptero_pte::{Bytes, Limits, Program, Verified};
use std::path::Path;

/// The plan of a program that our exporter has made.
fn exported(name: &str) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/exported").join(name).join("model.pte");
    let bytes = Bytes::from(std::fs::read(path).unwrap());
    let program = Verified::new(Program::read(&bytes, &Limits::DEFAULT).unwrap(), &Limits::DEFAULT).unwrap();
    let (_, delegate) = program.delegates("forward").next().unwrap();
    let capabilities = Capabilities { epilogues: true, ..Capabilities::default() };
    let (graph, _) = passes::prepare(delegate, None, &capabilities, &[]).unwrap();
    bufferize(&graph, Arena::aligned(ALIGN)).unwrap()
}

#[test]
fn calls_of_exported_programs_are_captured_though_keys_are_rotated_into_the_cache() {
    for name in ["llama", "mistral", "gemma4_per_layer", "qwen3_5_moe"] {
        let plan = exported(name);
        let moves = |step: &PlanStep| match step {
            PlanStep::Device(Prim::Rope { out, .. }) => !plan.follows_sizes(&plan.view(*out).offset),
            _ => false,
        };
        assert!(plan.blocks.iter().flat_map(|block| &block.steps).any(moves), "{name}");
        assert!(is_capturable(&plan), "{name}");
    }
}
