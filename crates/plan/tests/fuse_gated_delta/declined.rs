//! Why the pass declines loops: a test for each reason.

use super::delta::*;
use super::{SIZES, fuse, new, operations, unchanged};
use expect_test::{Expect, expect};
use ptero_plan::dim::{Dim, Var};
use ptero_plan::graph::{Graph, Node, Op, StateId, ViewOp};
use ptero_plan::host::Check;
use ptero_pte::DType;
use ptero_pte::field::{Collected, Dst, Int, Src};
use ptero_pte::nodes::{Exp, Max, Neg, Node as Instruction, Noop, RandomBits};

/// Checks why the pass declines, without its name and the words `not fused`.
#[track_caller]
fn declined(graph: Graph, wanted: Expect) {
    unchanged::declined(graph, fuse, "fuse-gated-delta", wanted);
}

/// The rule with some nodes of its body replaced.
fn with(changes: &[(usize, Instruction)]) -> Graph {
    new(|delta| changes.iter().for_each(|(at, node)| delta.body[*at] = node.clone())).graph()
}

fn noop() -> Instruction {
    Noop {}.into()
}

#[test]
fn loops_that_collect_or_carry_something_else_are_left() {
    let two = new(|delta| {
        delta.body.push(add(OUT, OUT, FREE));
        delta.scan.outputs.push(Collected(FREE));
        delta.outputs.push(FREE);
    });
    declined(two.graph(), expect!["0.1: the loop does not collect one result per token"]);
    // A state that no round changes, and two of them.
    declined(
        with(&[
            (2, multiply(CARRY, 8, FREE)),
            (12, add(FREE, 8, FREE)),
            (4, multiply(FREE, 8, 9)),
            (14, multiply(FREE, 8, 8)),
        ]),
        expect!["0.1: the loop does not carry over one state"],
    );
    let two = new(|delta| {
        delta.before.push(copy(STATE, FREE));
        delta.scan.carry.push(Src(FREE));
        delta.body.push(add(FREE, FREE, FREE));
        delta.outputs.push(FREE);
    });
    declined(two.graph(), expect!["0.2: the loop does not carry over one state"]);
    // One matrix for all heads.
    let flat = new(|delta| {
        for meta in &mut delta.metas[..7] {
            meta.shape.remove(0);
        }
        delta.scan.scan_axis = 0;
    });
    declined(flat.graph(), expect!["0.1: the state is not one matrix per head and batch"]);
    // A result that is not what was summed.
    let negated = new(|delta| {
        delta.body[15] = sum(8, -1, false, FREE);
        delta.body.push(Neg { x: Src(FREE), out: Dst(OUT) }.into());
    });
    declined(
        negated.graph(),
        expect!["1.16: the result is not a sum over the last axis of the new state times the query"],
    );
}

#[test]
fn loops_that_learn_otherwise_are_left() {
    let [k, v] = [K, V].map(|input| PART + input);
    // The new state is a difference.
    declined(
        with(&[(12, subtract(CARRY, 8, CARRY))]),
        expect!["1.12: the new state is not the decayed one and what is learnt"],
    );
    // Nothing decays.
    declined(with(&[(2, noop())]), expect!["1.12: the new state is not the decayed one and what is learnt"]);
    // Each row decays by itself.
    declined(with(&[(0, copy(v, 8))]), expect!["1.2: the state does not decay by one factor per head"]);
    // The decay is computed for each token.
    let computed = new(|delta| {
        delta.body[0] = expand(FREE, -1, 8);
        delta.body.insert(0, Exp { x: Src(PART + G), out: Dst(FREE) }.into());
    });
    declined(computed.graph(), expect!["1.3: the state does not decay by one factor per head"]);
    // Values are added, not subtracted from; or the other way round.
    declined(
        with(&[(6, add(v, 9, 9))]),
        expect!["1.6: a difference is not the value less what the state gives for the key"],
    );
    declined(
        with(&[(6, subtract(9, v, 9))]),
        expect!["1.6: a difference is not the value less what the state gives for the key"],
    );
    // Learns as much of each row as its value says.
    declined(with(&[(7, copy(v, 8))]), expect!["1.8: differences are not scaled by one factor per head"]);
    // Learns the product of two operands.
    declined(with(&[(10, expand(v, -1, 9))]), expect!["1.11: what is learnt is not differences times the key"]);
    // Learns another key than it asked for.
    declined(
        with(&[(9, expand(PART + Q, -2, 8))]),
        expect!["1.4: the key that is asked for is not the key that is learnt"],
    );
    declined(
        with(&[(9, expand(k, -2, 8)), (11, add(8, 9, 8))]),
        expect!["1.11: what is learnt is not differences times the key"],
    );
}

#[test]
fn sums_over_another_axis_or_of_another_state_are_left() {
    let k = PART + K;
    let square = |changes: &[(usize, Instruction)]| {
        let mut delta = Delta::new(DType::F32, DType::F32, Sizes { width: 16, ..SIZES });
        changes.iter().for_each(|(at, node)| delta.body[*at] = node.clone());
        delta.graph()
    };
    declined(
        square(&[(5, sum(9, -2, false, 9))]),
        expect!["1.5: what the state gives for the key is not a sum over the last axis of the decayed state"],
    );
    declined(
        square(&[(15, sum(8, -2, false, OUT))]),
        expect!["1.15: the result is not a sum over the last axis of the new state times the query"],
    );
    let largest = Max { x: Src(8), out: Dst(OUT), axes: Some(vec![-1]), keepdims: false };
    declined(
        square(&[(15, largest.into())]),
        expect!["1.15: the result is not a sum over the last axis of the new state times the query"],
    );
    // The result is read from the state before it learns.
    declined(
        square(&[
            (12, noop()),
            (13, expand(PART + Q, -2, FREE)),
            (14, multiply(CARRY, FREE, FREE)),
            (15, sum(FREE, -1, false, OUT)),
        ]),
        expect!["1.2: the new state is not the decayed one and what is learnt"],
    );
    let early = new(|delta| {
        let learn = delta.body.remove(12);
        delta.body[12] = expand(PART + Q, -2, FREE);
        delta.body[13] = multiply(CARRY, FREE, FREE);
        delta.body[14] = sum(FREE, -1, false, OUT);
        delta.body.push(learn);
    });
    declined(
        early.graph(),
        expect!["1.13: the result is not a sum over the last axis of the new state times the query"],
    );
    // A query per row.
    declined(
        square(&[(13, expand(PART + Q, -1, 8))]),
        expect!["1.14: the result is not a sum over the last axis of the new state times the query"],
    );
    declined(
        square(&[(9, expand(k, -1, 8)), (3, expand(k, -1, 8))]),
        expect!["1.11: what is learnt is not differences times the key"],
    );
}

#[test]
fn loops_that_do_more_are_left() {
    // A state that is written beside the one that is carried.
    let written = new(|delta| delta.body.push(add(CARRY, CARRY, STATE)));
    declined(written.graph(), expect!["0.1: the loop does not carry over one state"]);
    // A state that is read again after it was written.
    let mut again = in_the_buffer(SIZES).graph();
    let value = again.value(DType::F32, again.states[0].shape.clone());
    let read = Op::Read { out: value, state: StateId(0) };
    let write = Op::Write { state: StateId(0), x: value };
    again.blocks[1].nodes.extend([read, write].map(|op| Node { op, origin: (1, 15) }));
    declined(again, expect!["0.0: the loop does not carry over one state"]);
    // The next key of the session's sequence is taken for each token.
    let random = RandomBits { out: Dst(FREE), shape: vec![Int::Literal(3)], seed: None, width: 4 };
    let drawn = new(|delta| delta.body.push(random.into()));
    declined(drawn.graph(), expect!["1.16: the loop does more than the gated delta rule"]);
    // A check per token.
    let mut checked = new(|_| {}).graph();
    let check = Check::Equal(Dim::var(index(&checked)), Dim::fixed(0), "the only token");
    checked.blocks[1].nodes.push(Node { op: Op::Check(check), origin: (1, 15) });
    declined(checked, expect!["1.15: the loop does more than the gated delta rule"]);
}

/// What the loop counts with.
fn index(graph: &Graph) -> Var {
    let rounds =
        graph.blocks[0].nodes.iter().find_map(|node| if let Op::Loop(round) = &node.op { Some(round) } else { None });
    rounds.unwrap().index
}

#[test]
fn operands_that_lie_otherwise_from_token_to_token_are_left() {
    let mut graph = new(|_| {}).graph();
    let index = Dim::var(index(&graph));
    for node in &mut graph.blocks[1].nodes {
        if let Op::View { how: ViewOp::Slice { start, .. }, .. } = &mut node.op {
            *start = &index * &index;
        }
    }
    declined(graph, expect!["1.2: an operand is not the part of a tensor that belongs to the token"]);
}

#[test]
fn checks_that_every_token_repeats_are_made_once() {
    let mut graph = new(|_| {}).graph();
    let check = Check::Equal(Dim::fixed(1), Dim::fixed(1), "one");
    graph.blocks[1].nodes.insert(3, Node { op: Op::Check(check), origin: (1, 3) });
    fuse(&mut graph);
    expect![[r#"
        block, runs at every call
          0.0      v5 f32[1, 2, 8, 16] = read(s0)
          1.3      check 1 == 1: one
          0.1      v41 f32[1, 5, 2, 8], v42 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
          0.2      write(s0, v42)
        output 0: v41 f32[1, 5, 2, 8]
    "#]]
    .assert_eq(&operations(&graph));
}
