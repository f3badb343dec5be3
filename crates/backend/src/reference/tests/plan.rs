use super::*;
use ptero_plan::plan::Check;

#[test]
fn the_host_computes_as_documented() {
    let mut b = Builder::new();
    let wide = b.constant(DType::I64, &[1], &[1_099_511_627_781.0]);
    let negative = b.constant(DType::U32, &[], &[4_294_967_295.0]);
    let truth = b.constant(DType::Bool, &[1, 1], &[1.0]);
    let fixed = Dim::fixed;
    let mut ops = vec![
        (HostOp::Item(wide), 5),
        (HostOp::Item(negative), -1),
        (HostOp::Item(truth), 1),
        (HostOp::Copy(fixed(7)), 7),
        (HostOp::FloorDiv(fixed(-7), fixed(2)), -4),
        (HostOp::Mod(fixed(-7), fixed(2)), 1),
        (HostOp::Mod(fixed(7), fixed(-2)), -1),
        (HostOp::Min(fixed(-7), fixed(2)), -7),
        (HostOp::Max(fixed(-7), fixed(2)), 2),
    ];
    for (at, forward, backward) in [(-9, 0, -1), (-4, 0, 0), (-1, 3, 3), (0, 0, 0), (3, 3, 3), (4, 4, 3), (9, 4, 3)] {
        ops.push((HostOp::Clamp(fixed(at), fixed(4)), forward));
        ops.push((HostOp::ClampBackward(fixed(at), fixed(4)), backward));
    }
    ops.push((HostOp::Clamp(fixed(5), fixed(0)), 0));
    ops.push((HostOp::ClampBackward(fixed(5), fixed(0)), -1));
    let (ops, expected): (Vec<HostOp>, Vec<i64>) = ops.into_iter().unzip();
    for op in ops {
        let dim = b.host(op);
        b.plan.outputs.push(Output::Int(dim));
    }
    let mut state = b.start();
    state.run().unwrap();
    for (output, value) in expected.into_iter().enumerate() {
        assert_eq!(state.read(output).unwrap(), OutputValue::Int(value), "output {output}");
    }
}

#[test]
fn conditions_that_do_not_hold_end_the_call() {
    let fails = |step: PlanStep| {
        let mut b = Builder::new();
        b.step(step);
        b.run_error()
    };
    let fixed = Dim::fixed;
    let equal = PlanStep::Check(Check::Equal(fixed(3), fixed(4), "sizes of an addition"));
    assert_eq!(fails(equal), "instruction 3.0 (check): sizes of an addition: 3 and 4 differ");
    let within = |value| Check::Within { value: fixed(value), low: fixed(0), high: fixed(4), what: "position" };
    assert_eq!(fails(PlanStep::Check(within(5))), "instruction 3.0 (check): position is 5, outside 0 to 4");
    assert_eq!(fails(PlanStep::Check(within(-1))), "instruction 3.0 (check): position is -1, outside 0 to 4");
    let by_zero = PlanStep::Host { out: Var(0), op: HostOp::Mod(fixed(5), fixed(0)) };
    let mut b = Builder::new();
    b.var();
    b.step(by_zero);
    assert_eq!(b.run_error(), "instruction 3.0 (mod): 5 divided by zero");
    let mut b = Builder::new();
    for value in [0, 4] {
        b.step(PlanStep::Check(within(value)));
    }
    b.step(PlanStep::Check(Check::Equal(fixed(3), fixed(3), "sizes")));
    b.start().run().unwrap();
}

#[test]
fn an_item_is_the_only_element() {
    let mut b = Builder::new();
    let two = b.constant(DType::I32, &[2], &[1.0, 2.0]);
    b.host(HostOp::Item(two));
    assert!(b.run_error().ends_with("(item): the plan breaks its contract: an item is the only element of its tensor"));
    let mut b = Builder::new();
    let float = b.constant(DType::F32, &[1], &[1.0]);
    b.host(HostOp::Item(float));
    assert!(b.compile_error().ends_with("an item is an integer or a bool"));
}

#[test]
fn one_of_two_blocks_runs() {
    let mut b = Builder::new();
    let condition = b.int_input();
    let out = b.temporary(DType::I32, &[1]);
    let then = b.add_block(vec![PlanStep::Device(fill(&out, &Dim::fixed(10)))]);
    let otherwise = b.add_block(vec![PlanStep::Device(fill(&out, &Dim::fixed(20)))]);
    b.step(PlanStep::If { condition, then, otherwise });
    b.output(&out);
    let mut state = b.start();
    for (condition, expected) in [(1, 10.0), (0, 20.0), (-3, 10.0)] {
        state.write(0, InputValue::Int(condition)).unwrap();
        state.run().unwrap();
        assert_eq!(numbers(state.as_ref(), 0), [expected]);
    }
}

#[test]
fn a_block_runs_as_often_as_told_and_knows_how_often_it_did() {
    let mut b = Builder::new();
    let count = b.int_input();
    let index = b.var();
    let (squares, turn) = (b.temporary(DType::I32, &[4]), Dim::var(index));
    let place = View { shape: dims(&[1]), offset: turn.clone(), ..squares.clone() };
    let body = b.add_block(vec![PlanStep::Device(fill(&place, &(&turn * &turn)))]);
    b.device(fill(&squares, &Dim::fixed(-1)));
    b.step(PlanStep::Loop { index, count, body });
    b.output(&squares);
    let mut state = b.start();
    let cases = [(4, [0.0, 1.0, 4.0, 9.0]), (2, [0.0, 1.0, -1.0, -1.0]), (0, [-1.0; 4]), (-1, [-1.0; 4])];
    for (count, expected) in cases {
        state.write(0, InputValue::Int(count)).unwrap();
        state.run().unwrap();
        assert_eq!(numbers(state.as_ref(), 0), expected);
    }
    state.write(0, InputValue::Int(5)).unwrap();
    // The body has no origins, so its own place is named.
    let expected = "block 1, step 0 (map): a view from element 4 to 4 of a buffer of 4 elements";
    assert_eq!(state.run().unwrap_err().to_string(), expected);
}

/// A plan whose init block doubles a constant into a derived buffer.
fn derived() -> (Builder, View) {
    let mut b = Builder::new();
    let x = b.constant(DType::F32, &[2], &[1.0, 2.0]);
    let twice = b.buffer(DType::F32, &dims(&[2]), BufferKind::Derived);
    let scratch = b.temporary(DType::F32, &[2]);
    let steps = [copy(&x, &scratch), add(&scratch, &scratch), copy(&scratch, &twice)];
    b.plan.init = Some(b.add_block(steps.into_iter().map(PlanStep::Device).collect()));
    (b, twice)
}

#[test]
fn what_init_derives_is_there_for_every_state() {
    let (mut b, twice) = derived();
    b.output(&twice);
    let executable = b.compile().unwrap();
    for _ in 0..2 {
        let mut state = executable.state(0).unwrap();
        state.run().unwrap();
        state.reset();
        state.run().unwrap();
        assert_eq!(numbers(state.as_ref(), 0), [2.0, 4.0]);
    }
}

#[test]
fn a_failing_init_is_a_failing_compile() {
    let mut b = Builder::new();
    let check = Check::Equal(Dim::fixed(1), Dim::fixed(2), "sizes");
    b.plan.init = Some(b.add_block(vec![PlanStep::Check(check)]));
    assert_eq!(b.compile_error(), "block 1, step 0 (check): sizes: 1 and 2 differ");
}

#[test]
fn each_block_writes_only_what_it_may() {
    let (mut b, twice) = derived();
    let x = b.constant(DType::F32, &[2], &[0.0, 0.0]);
    b.device(copy(&x, &twice));
    assert_eq!(b.compile_error(), "instruction 3.0 (map): buffer 1 (derived) may not be written there");
    let mut b = Builder::new();
    let x = b.constant(DType::F32, &[2], &[0.0, 0.0]);
    b.device(copy(&x, &x));
    assert_eq!(b.compile_error(), "instruction 3.0 (map): buffer 0 (constant) may not be written there");
    let mut b = Builder::new();
    let x = b.input(DType::F32, &dims(&[2]));
    b.device(copy(&x, &x));
    assert_eq!(b.compile_error(), "instruction 3.0 (map): buffer 0 (an input) may not be written there");
    let mut b = Builder::new();
    let (kept, derived) = (b.state(DType::F32, &[2]), b.buffer(DType::F32, &dims(&[2]), BufferKind::Derived));
    b.plan.init = Some(b.add_block(vec![PlanStep::Device(copy(&kept, &derived))]));
    assert_eq!(b.compile_error(), "block 1, step 0 (map): buffer 0 (state) may not be read there");
}

#[test]
fn element_types_that_nobody_computes_with_are_refused_by_name() {
    for dtype in [DType::F64, DType::U64, DType::Bits16, DType::QI8, DType::F8E4M3] {
        let refused = format!("element type {dtype} is not one that ptero computes with");
        let mut b = Builder::new();
        let (x, out) = (b.buffer(dtype, &dims(&[1]), BufferKind::State), b.temporary(DType::F32, &[1]));
        b.device(Prim::Softmax { out, x: x.clone(), axis: 0 });
        assert_eq!(b.compile_error(), format!("instruction 3.0 (softmax): {refused}"));
        let mut b = Builder::new();
        let view = b.input(dtype, &dims(&[1]));
        assert_eq!(b.compile_error(), format!("input 0: {refused}"));
        let mut b = Builder::new();
        b.buffer(dtype, &dims(&[1]), BufferKind::State);
        b.output(&view);
        assert_eq!(b.compile_error(), format!("output 0: {refused}"));
    }
}

#[test]
fn plans_that_do_not_hold_together_are_refused_at_compile() {
    let refused = |build: &dyn Fn(&mut Builder)| {
        let mut b = Builder::new();
        build(&mut b);
        b.compile_error()
    };
    let float = contiguous(Buf(0), DType::F32, &dims(&[1]));
    assert_eq!(refused(&|b| b.output(&float)), "output 0: no buffer 0; there are only 0");
    let other_type = |b: &mut Builder| {
        b.state(DType::I32, &[1]);
        b.output(&float);
    };
    assert_eq!(refused(&other_type), "output 0: a view of f32 elements of a buffer of i32 elements");
    let varying = |b: &mut Builder| {
        let size = b.int_input();
        b.buffer(DType::F32, &[size], BufferKind::State);
    };
    assert_eq!(refused(&varying), "buffer 0: the size h0 is known only when a call runs, where it must be fixed");
    let computed = |b: &mut Builder| {
        let size = Dim::var(b.var());
        b.input(DType::F32, &[&size + &size]);
    };
    assert!(refused(&computed).ends_with("a size of an input is a number or a value"));
    assert_eq!(refused(&|b| b.plan.inputs.push(Input::Int(Var(2)))), "input 0: no host value 2; there are only 0");
    let unknown = |b: &mut Builder| b.step(PlanStep::Host { out: Var(1), op: HostOp::Copy(Dim::fixed(1)) });
    assert_eq!(refused(&unknown), "instruction 3.0 (copy): no host value 1; there are only 0");
    assert_eq!(refused(&|b| b.plan.main = 4), "no block 4; there are only 1");
}

#[test]
fn blocks_may_share_but_not_repeat_themselves() {
    let call = |then, otherwise| PlanStep::If { condition: Dim::fixed(0), then, otherwise };
    let mut b = Builder::new();
    b.step(call(1, 1));
    b.add_block(vec![call(0, 0)]);
    assert_eq!(b.compile_error(), "block 0 runs itself, directly or through others");

    // Each block calls the next twice: a walk that visits shared blocks again would not end.
    let chain = |length: usize| {
        let mut b = Builder::new();
        b.step(call(1, 1));
        for next in 2..=length {
            b.add_block(vec![call(next, next)]);
        }
        b.add_block(Vec::new());
        b
    };
    assert!(chain(200).compile().is_ok());
    assert_eq!(chain(300).compile_error(), "blocks nested over 256 deep");
}
