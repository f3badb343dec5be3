use super::*;
use ptero_plan::dim::Var;
use ptero_plan::graph::{Carried, Foreign, Loop, SessionInt, Stacked};
use ptero_plan::host::{Check, HostBinary};
use ptero_plan::prim::Fold;

#[test]
fn the_host_computes_as_documented() {
    let mut b = Builder::new();
    let wide = b.constant(DType::I64, &[1], &[1_099_511_627_781.0]);
    let negative = b.constant(DType::U32, &[], &[4_294_967_295.0]);
    let truth = b.constant(DType::Bool, &[1, 1], &[1.0]);
    let fixed = Dim::fixed;
    let binary = |op, a, b| HostOp::Binary(op, fixed(a), fixed(b));
    let mut ops = vec![
        (HostOp::Item(wide), 5),
        (HostOp::Item(negative), -1),
        (HostOp::Item(truth), 1),
        (binary(HostBinary::FloorDiv, -7, 2), -4),
        (binary(HostBinary::Mod, 7, -2), -1),
        (binary(HostBinary::Min, -7, 2), -7),
        (binary(HostBinary::Clamp, -1, 4), 3),
        (HostOp::Chosen(fixed(3), fixed(10), fixed(20)), 10),
        (HostOp::Chosen(fixed(0), fixed(10), fixed(20)), 20),
    ];
    // What follows from an item is computed where the block says so.
    ops.push((HostOp::Binary(HostBinary::Max, Dim::var(Var(0)), fixed(3)), 5));
    for (op, _) in &ops {
        let number = b.host(op.clone());
        b.graph.outputs.push(Output::Int(number));
    }
    let mut state = b.start();
    state.run().unwrap();
    for (output, (_, expected)) in ops.into_iter().enumerate() {
        assert_eq!(state.read(output).unwrap(), OutputValue::Int(expected), "output {output}");
    }
}

#[test]
fn conditions_that_do_not_hold_end_the_call() {
    let fails = |check: Check| {
        let mut b = Builder::new();
        b.op(Op::Check(check));
        b.run_error()
    };
    let fixed = Dim::fixed;
    let equal = Check::Equal(fixed(3), fixed(4), "sizes of an addition");
    assert_eq!(fails(equal), "instruction 3.0 (check): sizes of an addition: 3 and 4 differ");
    let within = |value| Check::Within { value: fixed(value), low: fixed(0), high: fixed(4), what: "position" };
    assert_eq!(fails(within(5)), "instruction 3.0 (check): position is 5, outside 0 to 4");
    assert_eq!(fails(within(-1)), "instruction 3.0 (check): position is -1, outside 0 to 4");
    assert_eq!(fails(Check::NotZero(fixed(0))), "instruction 3.0 (check): an integer divided by zero");
    let mut b = Builder::new();
    let checks = [within(0), within(4), Check::Equal(fixed(3), fixed(3), "sizes"), Check::NotZero(fixed(-1))];
    checks.into_iter().for_each(|check| b.op(Op::Check(check)));
    b.start().run().unwrap();
}

#[test]
fn what_is_known_early_is_checked_before_anything_runs() {
    let mut b = Builder::new();
    let (kept, position) = (b.state(DType::I32, &[1]), b.input(DType::I64, &dims(&[1])));
    let one = b.constant(DType::I32, &[1], &[1.0]);
    let start = b.graph.var(HostOp::Element { input: 0, at: 0.into() });
    let old = b.load(kept);
    let new = b.add(old, one);
    b.store(kept, new);
    b.op(Op::Check(Check::Within { value: Dim::var(start), low: 0.into(), high: 4.into(), what: "position" }));
    b.output(new);
    b.output(position);
    let mut state = b.start();
    write(&mut *state, 0, DType::I64, &[1], &[9.0]);
    assert_eq!(state.run().unwrap_err().to_string(), "instruction 3.1 (check): position is 9, outside 0 to 4");
    write(&mut *state, 0, DType::I64, &[1], &[4.0]);
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [1.0], "the call that failed changed nothing");
}

#[test]
fn an_item_is_the_only_element() {
    let mut b = Builder::new();
    let two = b.constant(DType::I32, &[2], &[1.0, 2.0]);
    b.host(HostOp::Item(two));
    assert!(
        b.run_error().ends_with("(item): the graph breaks its contract: an item is the only element of its tensor")
    );
    let mut b = Builder::new();
    let float = b.constant(DType::F32, &[1], &[1.0]);
    b.host(HostOp::Item(float));
    assert!(b.compile_error().ends_with("an item is an integer or a bool"));
}

#[test]
fn an_integer_that_is_kept_has_one_number_while_a_call_runs_and_another_after() {
    let mut b = Builder::new();
    let size = b.int_input();
    let kept = b.graph.var(HostOp::SessionInt(0));
    // Told again within the block, it is still what it was before the call.
    b.op(Op::Host(kept));
    let next = &Dim::var(kept) + &size;
    b.graph.session_ints.push(SessionInt { at_start: Dim::fixed(-100), at_end: next.clone() });
    let item = b.constant(DType::I32, &[1], &[0.0]);
    let zero = b.host(HostOp::Item(item));
    let sum = b.host(HostOp::Binary(HostBinary::FloorDiv, Dim::fixed(6), &size + &zero));
    b.op(Op::Check(Check::NotZero(&size + &zero)));
    b.graph.outputs.extend([Output::Int(Dim::var(kept)), Output::Int(sum)]);
    let mut state = b.start();
    let run = |state: &mut RunningGraph, size| {
        state.write(0, InputValue::Int(size)).unwrap();
        state.run().map(|()| state.read(0).unwrap()).map_err(|error| error.to_string())
    };
    assert_eq!(run(&mut state, 2), Ok(OutputValue::Int(0)));
    assert_eq!(run(&mut state, 3), Ok(OutputValue::Int(2)));
    assert!(run(&mut state, 0).is_err());
    assert_eq!(run(&mut state, 1), Ok(OutputValue::Int(-100)), "a call that fails leaves what it had at its start");
    state.reset().unwrap();
    assert_eq!(run(&mut state, 1), Ok(OutputValue::Int(0)));
}

#[test]
fn one_of_two_blocks_runs() {
    let mut b = Builder::new();
    let condition = b.int_input();
    let [yes, no, out] = [0; 3].map(|_| b.value(DType::I32, &[1]));
    let then = b.block(vec![fill(yes, DType::I32, &Dim::fixed(10))], &[yes]);
    let otherwise = b.block(vec![fill(no, DType::I32, &Dim::fixed(20))], &[no]);
    b.op(Op::If { condition, then, otherwise, outs: vec![out] });
    b.output(out);
    let mut state = b.start();
    for (condition, expected) in [(1, 10.0), (0, 20.0), (-3, 10.0)] {
        state.write(0, InputValue::Int(condition)).unwrap();
        state.run().unwrap();
        assert_eq!(numbers(&*state, 0), [expected]);
    }
}

/// A loop that stacks the squares of its index, and carries the sum of them.
fn squares() -> Builder {
    let mut b = Builder::new();
    let count = b.int_input();
    let index = b.graph.var(HostOp::Index { count: count.clone() });
    let init = b.constant(DType::I32, &[1], &[100.0]);
    let [param, square, sum, total] = [0; 4].map(|_| b.value(DType::I32, &[1]));
    let all = b.graph.value(DType::I32, vec![1.into(), count.clone()]);
    let load = |index| Step { op: Scalar::Load(index), args: [0; 3], dtype: DType::I32 };
    let add = Step { op: Scalar::Binary(Binary::Add), args: [0, 1, 0], dtype: DType::I32 };
    let steps = vec![load(0), load(1), add];
    let add = Op::Prim(Prim::Map { out: sum, ins: vec![param, square], expr: Expr { steps } });
    let turn = Dim::var(index);
    let body = b.block(vec![fill(square, DType::I32, &(&turn * &turn)), add], &[sum, square]);
    let (carried, stacked) = (vec![Carried { init, param, out: total }], vec![Stacked { out: all, axis: 1 }]);
    b.op(Op::Loop(Box::new(Loop { index, count, body, carried, stacked })));
    b.output(total);
    b.output(all);
    b
}

#[test]
fn a_loop_carries_and_stacks() {
    let mut state = squares().start();
    let cases: [(i64, f64, &[f64]); 4] =
        [(4, 114.0, &[0.0, 1.0, 4.0, 9.0]), (2, 101.0, &[0.0, 1.0]), (0, 100.0, &[]), (1, 100.0, &[0.0])];
    for (count, total, all) in cases {
        state.write(0, InputValue::Int(count)).unwrap();
        state.run().unwrap();
        assert_eq!((numbers(&*state, 0), numbers(&*state, 1)), (vec![total], all.to_vec()));
    }
    state.write(0, InputValue::Int(-1)).unwrap();
    assert_eq!(state.run().unwrap_err().to_string(), "instruction 3.0 (loop): size -1 is negative");
}

#[test]
fn a_fault_within_a_loop_is_told_at_its_own_instruction() {
    let mut b = squares();
    let Op::Prim(Prim::Map { expr, .. }) = &b.graph.blocks[1].nodes[0].op else { panic!("a map") };
    let index = expr.numbers().next().unwrap().clone();
    let check = Check::Within { value: index, low: 0.into(), high: 4.into(), what: "square" };
    b.graph.blocks[1].nodes.push(Node { op: Op::Check(check), origin: (7, 8) });
    let mut state = b.start();
    state.write(0, InputValue::Int(4)).unwrap();
    assert_eq!(state.run().unwrap_err().to_string(), "instruction 7.8 (check): square is 9, outside 0 to 4");
}

#[test]
fn what_init_makes_is_there_for_every_state() {
    let mut b = Builder::new();
    let x = b.constant(DType::F32, &[2], &[1.0, 2.0]);
    let twice = b.add(x, x);
    let sum = b.value(DType::F32, &[1]);
    let item = b.constant(DType::I32, &[], &[7.0]);
    let seven = b.host(HostOp::Item(item));
    // All so far is the init block's.
    let nodes = std::mem::take(&mut b.graph.blocks[0].nodes);
    let init = b.block(Vec::new(), &[]);
    b.graph.block_mut(init).nodes = nodes;
    b.graph.init = Some(init);
    b.device(Prim::Reduce { out: sum, x: twice, axes: vec![0], fold: Fold::Sum });
    b.output(sum);
    b.graph.outputs.push(Output::Int(seven));
    let executable = Arc::from(b.compile().unwrap());
    for _ in 0..2 {
        let mut state = RunningGraph::new(&executable, 0);
        state.run().unwrap();
        state.reset().unwrap();
        state.run().unwrap();
        assert_eq!(numbers(&*state, 0), [6.0]);
        assert_eq!(state.read(1).unwrap(), OutputValue::Int(7));
    }
}

#[test]
fn a_failing_init_is_a_failing_compile() {
    let mut b = Builder::new();
    let check = Check::Equal(Dim::fixed(1), Dim::fixed(2), "sizes");
    b.graph.init = Some(b.block(vec![Op::Check(check)], &[]));
    assert_eq!(b.compile_error(), "instruction 4.0 (check): sizes: 1 and 2 differ");
}

#[test]
fn init_knows_no_input_and_no_state() {
    let message = "the graph breaks its contract: the init block uses no input and no state";
    let mut b = Builder::new();
    let (state, out) = (b.state(DType::F32, &[2]), b.value(DType::F32, &[2]));
    b.graph.init = Some(b.block(vec![Op::Read { out, state }], &[]));
    assert_eq!(b.compile_error(), format!("instruction 4.0 (read): {message}"));
    let mut b = Builder::new();
    let (x, out) = (b.input(DType::F32, &dims(&[2])), b.value(DType::F32, &[2]));
    b.graph.init = Some(b.block(vec![Op::View { out, x, how: ViewOp::Reshape }], &[]));
    assert_eq!(b.compile_error(), format!("instruction 4.0 (reshape): {message}"));
}

#[test]
fn element_types_that_nobody_computes_with_are_refused_by_name() {
    for dtype in [DType::F64, DType::U64, DType::Bits16, DType::QI8, DType::F8E4M3] {
        let refused = format!("element type {dtype} is not one that ptero computes with");
        let constant = |b: &mut Builder| b.graph.constant(dtype, dims(&[1]), Bytes::from(vec![0; 8]));
        let mut b = Builder::new();
        let (x, out) = (constant(&mut b), b.value(DType::F32, &[1]));
        b.device(Prim::Softmax { out, x, axis: 0 });
        assert_eq!(b.compile_error(), format!("instruction 3.0 (softmax): {refused}"));
        let mut b = Builder::new();
        b.input(dtype, &dims(&[1]));
        assert_eq!(b.compile_error(), format!("input 0: {refused}"));
        let mut b = Builder::new();
        b.state(dtype, &[1]);
        assert_eq!(b.compile_error(), format!("state 0: {refused}"));
        let mut b = Builder::new();
        let x = constant(&mut b);
        b.output(x);
        assert_eq!(b.compile_error(), format!("output 0: {refused}"));
        let mut b = Builder::new();
        constant(&mut b);
        assert!(b.compile().is_ok(), "nobody uses it");
    }
}

#[test]
fn graphs_that_do_not_hold_together_are_refused_at_compile() {
    let refused = |build: &dyn Fn(&mut Builder)| {
        let mut b = Builder::new();
        build(&mut b);
        b.compile_error()
    };
    assert!(refused(&|b| b.output(Value(0))).ends_with("a value is made before it is read"));
    let early = |b: &mut Builder| {
        let (x, out) = (b.value(DType::F32, &[1]), b.value(DType::F32, &[1]));
        b.device(Prim::Softmax { out, x, axis: 0 });
    };
    let message = "instruction 3.0 (softmax): the graph breaks its contract: a value is made before it is read";
    assert_eq!(refused(&early), message);
    let varying = |b: &mut Builder| {
        let size = b.int_input();
        b.graph.states.push(Type { dtype: DType::F32, shape: vec![size] });
    };
    assert!(refused(&varying).ends_with("a state has fixed sizes"));
    let computed = |b: &mut Builder| {
        let size = b.given();
        b.input(DType::F32, &[&size + &size]);
    };
    assert!(refused(&computed).ends_with("a size of an input is fixed or given"));
    assert!(refused(&|b| b.graph.main = BlockId(4)).ends_with("a block exists and is run from one place"));
    let short = |b: &mut Builder| {
        b.graph.constant(DType::F32, dims(&[2]), Bytes::from(vec![0; 7]));
    };
    assert_eq!(refused(&short), "7 bytes where 8 are wanted");
    let loose = |b: &mut Builder| {
        let size = b.int_input();
        b.graph.constant(DType::F32, vec![size], Bytes::default());
    };
    assert_eq!(refused(&loose), "the size h0 is known only when a call runs, where it must be fixed");
}

#[test]
fn kernels_that_a_program_brings_are_refused_by_name() {
    let mut b = Builder::new();
    let out = b.value(DType::F32, &[1]);
    let kernel = kernel("warp");
    let foreign = Foreign { kernel: Arc::new(kernel), hashes: [1, 2], ins: vec![], outs: vec![out], numbers: vec![] };
    b.op(Op::Foreign(Box::new(foreign)));
    let expected = "instruction 3.0 (MetalKernel): Metal kernel `warp` (source 0000000000000001, header 0000000000000002) has \
                    no equivalent here";
    assert_eq!(b.compile_error(), expected);
}

fn kernel(name: &str) -> ptero_pte::nodes::MetalKernel {
    ptero_pte::nodes::MetalKernel {
        name: name.to_owned(),
        source: String::new(),
        inputs: vec![],
        outputs: vec![],
        grid: vec![],
        threadgroup: vec![],
        header: None,
        input_names: None,
        output_names: None,
        ensure_row_contiguous: true,
        atomic_outputs: false,
        output_shapes_flat: None,
        output_shape_lengths: None,
        output_dtypes: None,
        template_arg_names: None,
        template_arg_kinds: None,
        template_arg_values: None,
        init_value: None,
    }
}
