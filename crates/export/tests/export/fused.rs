//! What the pass `fuse-sampler` makes of the full head, and why it leaves heads that are a little different.

use crate::draw::{Given, Session, f32s, i64s};
use crate::full::{Rng, Step, head_program};
use expect_test::{Expect, expect};
use ptero_backend::Backend;
use ptero_plan::graph::{Graph, Op};
use ptero_plan::prim::Prim;
use ptero_plan::{Options, lower, passes};
use ptero_pte::field::{Float, Int};
use ptero_pte::nodes::{Abs, Add, Divide, Equal, Expm1, GreaterEqual, Less, Log, Minimum, Multiply, Subtract};
use ptero_pte::{DType, Delegate, Limits, Node, Payload, Program, ShapeDim, Verified};
use ptero_reference::Reference;

const VOCABULARY: usize = 50;

/// The input that is the mask.
const MASK: usize = 14;

/// Runs only this pass, and returns its notes.
fn fuse(graph: &mut Graph) -> String {
    passes::run(graph, &Reference.capabilities(), &["fuse-maps".to_owned()]).lines.join("\n")
}

fn lowered(program: &Verified) -> Graph {
    let (_, delegate) = program.delegates("forward").next().unwrap();
    lower(delegate, &Options::default()).unwrap()
}

/// The full head with a changed graph.
fn changed(change: impl FnOnce(&mut Delegate)) -> Verified {
    let mut program: Program = head_program(DType::F32, 1, 50).unwrap().into_program();
    let Payload::Mlx(graph) = &mut program.methods[0].delegates[0].payload else { panic!() };
    change(graph);
    Verified::new(program, &Limits::DEFAULT).unwrap()
}

/// The nodes of a type, in the order of chains.
fn nodes<'a>(graph: &'a mut Delegate, name: &str) -> Vec<&'a mut Node> {
    graph.instruction_chains.0.iter_mut().flatten().filter(|node| node.name() == name).collect()
}

/// Inputs of a call, with a mask of that many words.
fn given(rng: &mut Rng, words: i32) -> Vec<Given> {
    let logits: Vec<f32> = (0..VOCABULARY).map(|_| rng.between(-4.0, 4.0)).collect();
    let mut given = vec![i64s(&[1, 3], &[3, 7, 7]), i64s(&[3], &[0, 1, 2]), f32s(&[1, VOCABULARY as u64], &logits)];
    given.extend(Step::random(rng, VOCABULARY).given());
    let words = usize::try_from(words).unwrap();
    given[MASK].1 = vec![words as u64];
    given[MASK].2.resize(words * 4, 0xff);
    given
}

/// Checks why a head is left, and that it still runs.
#[track_caller]
fn declined(program: &Verified, wanted: Expect) {
    let mut graph = lowered(program);
    let notes = fuse(&mut graph);
    wanted.assert_eq(&notes.replace("fuse-sampler: ", "").replace("not fused: ", ""));
    let is_sample = |op: &Op| matches!(op, Op::Prim(Prim::Sample(_)));
    assert!(!graph.blocks.iter().flat_map(|block| &block.nodes).any(|node| is_sample(&node.op)));
    let mut sessions =
        [[].as_slice(), &["fuse-sampler".to_owned()]].map(|skip| Session::without(program, &Reference, skip));
    let (_, delegate) = program.methods[0].mlx_delegates().next().unwrap();
    let words = delegate.meta(delegate.input_map[MASK].idx).unwrap().shape[0].value;
    let mut rng = Rng(3);
    for _ in 0..4 {
        let given = given(&mut rng, words);
        let [one, other] = sessions.each_mut().map(|session| session.call(&given));
        assert_eq!(one, other);
    }
}

#[test]
fn the_full_head_becomes_one_operation_beside_the_history() {
    let mut graph = lowered(&head_program(DType::Bf16, 1, 50).unwrap());
    passes::drop_unused(&mut graph);
    let count = |graph: &Graph| graph.blocks.iter().map(|block| block.nodes.len()).sum::<usize>();
    expect!["188"].assert_eq(&count(&graph).to_string());
    let notes = fuse(&mut graph);
    expect!["fuse-sampler: 0.54: the branches that draw a token, and log-probabilities, became one operation"]
        .assert_eq(&notes);
    let graph = graph.to_string();
    expect![[r#"
         runs at every call
          0.0      v31 i32[48] = read(s0)
          0.1      v32 i64[h0] = reshape(v14)
          0.2      v33 i32[h0] = map(v32) { i32(x0) }
          0.3      check h0 == h1: sizes that meet in one operation
          0.3      v34 i32[h1] = broadcast(v33)
          0.3      v35 i32[48] = scatter(v31, v34, v15)
          0.3      write(s0, v35)
          0.4      check -2147483648 <= h0 + -1 <= 2147483647: 32-bit integer
          0.5      check -1*h1 <= h0 + -1 <= h1 + -1: index along an axis
          0.5      check h1 != 0: a divisor
          0.54     v209 i64[] = strided(v15) [] from h2
          0.54     v186 u32[1], v206 f32[1], v207 i64[1, 20], v208 f32[1, 20] = sample(v16, temperature v17, top_k v18, top_p v19, min_p v21, seed v20, exact_tail v30, history v35, last v209, prompt_end v25, repetition v22, presence v23, frequency v24, bias_tokens v26, bias_values v27, mask v28, log_probabilities v29)
        output 0: v186 u32[1]
        output 1: v206 f32[1]
        output 2: v207 i64[1, 20]
        output 3: v208 f32[1, 20]
    "#]].assert_eq(graph.split_once("block,").unwrap().1);
}

#[test]
fn changed_logits_are_drawn_from_as_they_are_where_the_change_is_another() {
    let whole = changed(|_| {});
    let other = changed(|graph| {
        let mut masks = nodes(graph, "NotEqual");
        let Node::NotEqual(node) = &*masks[0] else { panic!() };
        let (a, b, out) = (node.a, node.b, node.out);
        *masks[0] = Equal { a, b, out }.into();
    });
    for (program, wanted) in [
        (
            whole,
            expect![
                "fuse-sampler: 0.54: the branches that draw a token, and what changes logits before, became one operation"
            ],
        ),
        (
            other,
            expect![[r#"
        fuse-sampler: 0.54: the branches that draw a token became one operation
        fuse-sampler: 0.48: not fused: logits become minus infinity, but not by a bit for each token"#]],
        ),
    ] {
        // Without log-probabilities, which need logits from before the change.
        let mut graph = lowered(&program);
        graph.outputs.truncate(1);
        let notes = fuse(&mut graph);
        wanted.assert_eq(&notes);
        let is_sample = |op: &Op| matches!(op, Op::Prim(Prim::Sample(_)));
        assert!(graph.block(graph.main).nodes.iter().any(|node| is_sample(&node.op)));
        assert!(Reference.compile(std::sync::Arc::new(graph)).is_ok());
    }
}

/// Replaces a node of a type by another with the same operands.
macro_rules! replaced {
    ($from:ident[$at:expr] => $to:ident) => {
        changed(|graph| {
            let mut found = nodes(graph, stringify!($from));
            let Node::$from(node) = &*found[$at] else { panic!() };
            let (a, b, out) = (node.a, node.b, node.out);
            *found[$at] = $to { a, b, out }.into();
        })
    };
}

#[test]
fn other_changes_of_logits_are_left() {
    declined(
        &replaced!(NotEqual[0] => Equal),
        expect!["0.48: logits become minus infinity, but not by a bit for each token"],
    );
    declined(&replaced!(Add[0] => Subtract), expect!["0.45: logits are masked, but no sum of biases is added before"]);
    declined(&replaced!(Subtract[0] => Add), expect!["0.34: no presence and frequency penalties before biases"]);
    declined(
        &replaced!(Divide[0] => Multiply),
        expect!["0.29: no repetition penalty before presence and frequency penalties"],
    );
    declined(
        &replaced!(LessEqual[0] => Less),
        expect!["0.7: penalties are not for tokens that a history has, up to a position"],
    );
    declined(
        &replaced!(GreaterEqual[0] => Less),
        expect!["0.8: penalties are not for tokens that a history has, up to a position"],
    );
}

#[test]
fn other_filters_and_log_probabilities_are_left() {
    let with = |name: &str, at: usize, change: &dyn Fn(&mut Node)| changed(|graph| change(nodes(graph, name)[at]));
    declined(
        &with("Exp", 0, &|node| {
            let Node::Exp(exp) = &*node else { panic!() };
            *node = Expm1 { x: exp.x, out: exp.out }.into();
        }),
        expect!["1.29: logits become minus infinity for another reason than top-k, top-p or min-p"],
    );
    declined(
        &with("Max", 0, &|node| {
            if let Node::Max(max) = node {
                max.axes = Some(vec![0]);
            }
        }),
        expect!["1.25: what is kept is not as likely as min-p asks, beside the likeliest"],
    );
    declined(
        &with("Neg", 9, &|node| {
            let Node::Neg(neg) = &*node else { panic!() };
            *node = Abs { x: neg.x, out: neg.out }.into();
        }),
        expect!["5.8: the likeliest tokens are not the indices of the largest scores"],
    );
    declined(
        &with("LogSumExp", 0, &|node| {
            if let Node::LogSumExp(sum) = node {
                sum.axes = Some(vec![0]);
            }
        }),
        expect!["5.3: log-probabilities are not scores minus the logarithm of the sum of their exponentials"],
    );
    declined(&with("If", 3, &swap), expect!["0.54: scores are used for something else than log-probabilities"]);
    declined(
        &with("Full", 3, &|node| {
            if let Node::Full(full) = node {
                full.v = Float::Literal(1.0);
            }
        }),
        expect!["0.57: log-probabilities that are not asked for are not zeros"],
    );
    declined(
        &replaced!(Greater[3] => GreaterEqual),
        expect!["0.57: log-probabilities are not computed where one element is above 0"],
    );
    declined(
        &replaced!(Greater[6] => GreaterEqual),
        expect!["5.2: log-probabilities are not of scores or logits, by one element"],
    );
}

#[test]
fn other_noise_is_left() {
    let with = |name: &str, at: usize, change: &dyn Fn(&mut Node)| changed(|graph| change(nodes(graph, name)[at]));
    declined(
        &with("Log1p", 0, &|node| {
            let Node::Log1p(log) = &*node else { panic!() };
            *node = Log { x: log.x, out: log.out }.into();
        }),
        expect!["2.11: the noise is not -log(-log1p(-v)), with v of 64 random bits between 2^-64 and one"],
    );
    declined(
        &replaced!(Maximum[0] => Minimum),
        expect!["2.8: the noise is not -log(-log1p(-v)), with v of 64 random bits between 2^-64 and one"],
    );
    declined(
        &replaced!(Multiply[2] => Divide),
        expect!["2.4: the noise is not -log(-log1p(-v)), with v of 64 random bits between 2^-64 and one"],
    );
    declined(
        &with("Slice", 2, &|node| {
            if let Node::Slice(slice) = node {
                (slice.start, slice.stop) = (Int::Literal(0), Int::Literal(1));
            }
        }),
        expect!["2.6: the noise is not -log(-log1p(-v)), with v of 64 random bits between 2^-64 and one"],
    );
    declined(
        &with("RandomBits", 0, &|node| {
            if let Node::RandomBits(bits) = node {
                bits.seed = None;
            }
        }),
        expect!["2.1: the noise is not chosen by one element above 0, with one seed"],
    );
    declined(
        &replaced!(Greater[4] => GreaterEqual),
        expect!["1.2: the noise is not chosen by one element above 0, with one seed"],
    );
    declined(
        &with("If", 2, &swap),
        expect!["3.5: the noise is not -log(-log1p(-v)), with v of 64 random bits between 2^-64 and one"],
    );
}

/// Takes each branch where the other one was taken.
fn swap(node: &mut Node) {
    if let Node::If(run) = node {
        let (then, otherwise) = (run.then_chain_idx, run.else_chain_idx);
        (run.then_chain_idx, run.else_chain_idx) = (otherwise, then);
    }
}

#[test]
fn odd_shapes_and_types_are_left() {
    declined(
        &history_of(DType::I64),
        expect!["0.14: penalties are not for tokens that a history has, up to a position"],
    );
    // The mask of later tokens.
    let later = |graph: &mut Delegate| {
        for node in nodes(graph, "Slice") {
            if let Node::Slice(slice) = node
                && slice.stop == Int::Literal(50)
            {
                (slice.start, slice.stop) = (Int::Literal(14), Int::Literal(64));
            }
        }
    };
    declined(&changed(later), expect!["0.51: logits become minus infinity, but not by a bit for each token"]);
    let longer = |graph: &mut Delegate| {
        let mask = usize::try_from(graph.input_map[MASK].idx).unwrap();
        graph.tensor_meta[mask].shape = vec![ShapeDim::fixed(3)];
    };
    declined(&changed(longer), expect!["0.51: logits become minus infinity, but not by a bit for each token"]);
}

/// The full head whose history has another type: what it writes is converted.
fn history_of(dtype: DType) -> Verified {
    changed(|graph| {
        let state = graph.mutable_buffer_map[0].idx;
        graph.tensor_meta[state as usize].scalar_type = dtype;
        for node in nodes(graph, "AsType") {
            if let Node::AsType(cast) = node
                && cast.scalar_type == DType::I32
            {
                cast.scalar_type = dtype;
            }
        }
    })
}
