//! Qwen3.5: what only its layers can get wrong. Its logits are compared in `tiny`.

use crate::draw::{Session, backends};
use crate::tiny::{CLOSE, Golden, distance, exact, feed, folder, goldens, open, program};
use ptero_backend::Backend;
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_cpu::Cpu;
use ptero_export::{Recipe, Storage, export};
use ptero_plan::plan::{BufferKind, PlanStep};
use ptero_plan::prim::Prim;
use ptero_plan::{Arena, Options, bufferize, lower, passes};
use ptero_pte::{DType, Delegate, Node, Slot, Verified};

/// The error of a model whose configuration has this instead of that, and in whose table of contents a name is another.
fn refusal(model: &str, [from, to]: [&str; 2], [name, other]: [&str; 2]) -> String {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let changed = std::env::temp_dir().join(format!("ptero-qwen3-5-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&changed).unwrap();
    let config = std::fs::read_to_string(folder(model).join("config.json")).unwrap();
    assert!(config.contains(from), "{from}");
    std::fs::write(changed.join("config.json"), config.replace(from, to)).unwrap();
    let mut weights = std::fs::read(folder(model).join("model.safetensors")).unwrap();
    assert_eq!(name.len(), other.len());
    if !name.is_empty() {
        let at = weights.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
        weights[at..at + name.len()].copy_from_slice(other.as_bytes());
    }
    std::fs::write(changed.join("model.safetensors"), weights).unwrap();
    let error = export(&Checkpoint::open(&changed, &Limits::default()).unwrap(), &exact()).unwrap_err();
    std::fs::remove_dir_all(&changed).unwrap();
    error.to_string()
}

const SAME: [&str; 2] = ["", ""];

fn graph(program: &Verified) -> &Delegate {
    program.method("forward").unwrap().mlx_delegates().next().unwrap().1
}

/// The type of the tensor of that name.
fn dtype(program: &Verified, name: &str) -> DType {
    let named = graph(program).named_slots.iter().find(|named| named.name == name);
    let Slot::Tensor(slot) = named.unwrap_or_else(|| panic!("no {name}")).slot.slot() else { panic!("{name}") };
    graph(program).meta(slot).unwrap().scalar_type
}

/// How often the graph has the node, in all chains.
fn count(program: &Verified, is_it: impl Fn(&Node) -> bool) -> usize {
    graph(program).instruction_chains.iter().flatten().filter(|node| is_it(node)).count()
}

#[test]
fn s1_8_a_text_that_starts_over_finds_nothing_of_the_one_before() {
    for (name, folder) in goldens().into_iter().filter(|(name, _)| name.starts_with("qwen3_5")) {
        let (program, golden) = (program(&open(&folder), &exact()), Golden::read(&folder));
        let other: Vec<i64> = golden.tokens.iter().rev().copied().collect();
        for backend in backends() {
            let mut session = Session::new(&program, backend.as_ref());
            for first in [1, 3, golden.tokens.len()] {
                feed(&mut session, &other, 0, other.len(), None);
                let mut from = 0;
                for end in [first, golden.tokens.len()] {
                    if from < end {
                        let far =
                            distance(&feed(&mut session, &golden.tokens, from, end, None), &golden.logits[end - 1]);
                        assert!(far <= CLOSE, "{name} on {}: {far:e} away at {end}", backend.name());
                        from = end;
                    }
                }
            }
        }
    }
}

#[test]
fn experts_are_quantized_and_what_chooses_them_is_not() {
    let checkpoint = open(&folder("qwen3_5_moe_groups"));
    for storage in [Storage::Int4, Storage::Int8] {
        let program = program(&checkpoint, &Recipe { linear: storage, embedding: storage, ..exact() });
        for (name, wanted) in [
            ("mlp.experts.gate_up_proj", DType::U32),
            ("mlp.experts.down_proj", DType::U32),
            ("mlp.shared_expert.down_proj.weight", DType::U32),
            ("linear_attn.in_proj.weight", DType::U32),
            ("linear_attn.out_proj.weight", DType::U32),
            ("mlp.gate.weight", DType::F32),
            ("mlp.shared_expert_gate.weight", DType::F32),
            ("linear_attn.in_proj_a.weight", DType::F32),
            ("linear_attn.in_proj_b.weight", DType::F32),
            ("linear_attn.conv1d.weight", DType::F32),
        ] {
            assert_eq!(dtype(&program, &format!("model.layers.0.{name}")), wanted, "{name}");
        }
        assert_eq!(count(&program, |node| matches!(node, Node::GatherQmm(_))), 4);
        assert_eq!(count(&program, |node| matches!(node, Node::GatherMm(_))), 0);
    }
}

#[test]
fn eight_bits_change_the_logits_by_a_few_hundredths() {
    let folder = folder("qwen3_5_moe_groups");
    let (checkpoint, golden) = (open(&folder), Golden::read(&folder));
    let program = program(&checkpoint, &Recipe { linear: Storage::Int8, embedding: Storage::Int8, ..exact() });
    for backend in backends() {
        let mut session = Session::new(&program, backend.as_ref());
        let far = golden.logits.iter().enumerate().map(|(at, wanted)| {
            let got = feed(&mut session, &golden.tokens, at, at + 1, None);
            distance(&got, wanted)
        });
        let mean = far.sum::<f32>() / golden.logits.len() as f32;
        assert!(mean > 1e-3 && mean < 0.05, "{mean} on {}", backend.name());
    }
}

#[test]
fn the_state_of_the_delta_rule_is_f32_whatever_the_activations_are() {
    let program = program(&open(&folder("qwen3_5_moe")), &Recipe::default());
    assert_eq!(dtype(&program, "model.layers.0.linear_attn.recurrent_state"), DType::F32);
    assert_eq!(dtype(&program, "model.layers.0.linear_attn.conv_state"), DType::Bf16);
    assert_eq!(dtype(&program, "model.layers.3.self_attn.k_cache"), DType::Bf16);
}

#[test]
fn queries_and_keys_are_divided_by_their_lengths_as_the_model_does() {
    let program = program(&open(&folder("qwen3_5_moe")), &exact());
    // A millionth beside the sum of 8 squares, not beside their mean: two norms in each of three layers.
    assert_eq!(count(&program, |node| matches!(node, Node::RMSNorm(norm) if norm.eps == 1e-6 / 8.0)), 6);
}

#[test]
fn every_delta_rule_becomes_one_step_that_changes_its_state_where_it_lies() {
    for recipe in [exact(), Recipe::default()] {
        let program = program(&open(&folder("qwen3_5_moe")), &recipe);
        let (_, delegate) = program.delegates("forward").next().unwrap();
        let mut graph = lower(delegate, &Options::default()).unwrap();
        passes::run(&mut graph, &Cpu::new().capabilities(), &[]);
        let plan = bufferize(&graph, Arena::aligned(64)).unwrap();
        let steps: Vec<&PlanStep> = plan.blocks.iter().flat_map(|block| &block.steps).collect();
        assert!(!steps.iter().any(|step| matches!(step, PlanStep::Loop { .. })));
        let rules = steps.iter().filter_map(|step| match step {
            PlanStep::Device(Prim::GatedDelta(rule)) => Some(rule),
            _ => None,
        });
        let states: Vec<_> = rules
            .map(|rule| {
                assert_eq!(rule.state, rule.state_out);
                let buf = plan.views[rule.state.0 as usize].buf;
                assert!(matches!(plan.buffers[buf.0 as usize].kind, BufferKind::State));
                buf
            })
            .collect();
        assert!(states.len() == 3 && states.is_sorted_by(|one, other| one < other), "{states:?}");
    }
}

#[test]
fn tensors_that_are_missing_misshapen_or_surplus_are_named() {
    let error = refusal("qwen3_5_moe", SAME, ["0.linear_attn.A_log", "0.linear_attn.B_log"]);
    assert!(error.contains("1 missing:\n  `model.layers.0.linear_attn.A_log` of shape [4]"), "{error}");
    assert!(error.contains("1 not wanted:\n  `model.layers.0.linear_attn.B_log` of shape [4]"), "{error}");
    let narrow = ["\"moe_intermediate_size\": 8", "\"moe_intermediate_size\": 4"];
    let error = refusal("qwen3_5_moe", narrow, SAME);
    let wanted = "`model.layers.0.mlp.experts.gate_up_proj` is [4, 16, 32], wanted [4, 8, 32]";
    assert!(error.contains("8 of another shape:") && error.contains(wanted), "{error}");
    let error = refusal("qwen3_5_moe_split", SAME, ["0.mlp.experts.4.up_proj", "0.mlp.experts.5.up_proj"]);
    assert!(error.contains("`model.layers.0.mlp.experts.4.up_proj.weight` of shape [8, 32]"), "{error}");
    assert!(error.contains("1 not wanted:"), "{error}");
    let error = refusal("qwen3_5_moe_vision", SAME, ["model.visual.pos_embed", "model.vizual.pos_embed"]);
    assert!(error.contains("`model.vizual.pos_embed.weight`"), "{error}");
}

#[test]
fn configurations_of_other_models_are_refused_by_their_settings() {
    for (change, wanted) in [
        (["\"silu\"", "\"gelu\""], "`hidden_act` is `gelu`"),
        (["\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5"], "`num_experts_per_tok` is 5"),
        (["\"num_experts\": 4", "\"num_experts\": 5000"], "`num_experts` is 5000"),
        (
            ["\"num_hidden_layers\": 4", "\"num_hidden_layers\": 1000, \"num_experts\": 4000"],
            "`num_experts` is 4000000 in all layers",
        ),
        (["\"num_experts\": 4", "\"attn_output_gate\": false"], "`attn_output_gate` is false"),
        (["\"moe_intermediate_size\": 8,", ""], "`moe_intermediate_size` is missing"),
        (["\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"], "`num_key_value_heads` is 3 for 4"),
        (["\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 3"], "`linear_num_key_heads` is 3 for 4"),
        (["\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.2"], "`partial_rotary_factor` is 0.2"),
        (["\"full_attention_interval\": 4", "\"layer_types\": [\"full_attention\"]"], "`layer_types` is a list of 1"),
        (["\"full_attention_interval\": 4", "\"layer_types\": [\"mamba\"]"], "`layer_types` is `mamba`"),
    ] {
        let error = refusal("qwen3_5_moe", change, SAME);
        assert!(error.contains(wanted), "{error}\nwanted: {wanted}");
    }
}
