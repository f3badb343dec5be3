use super::*;

/// Adds an input of `[h0, 2]` to a state of `[2]`, row by row, and an integer input to that.
fn accumulator() -> (Builder, View) {
    let mut b = Builder::new();
    let rows = Dim::var(b.var());
    let x = b.input(DType::F32, &[rows.clone(), Dim::fixed(2)]);
    let bias = b.int_input();
    let total = b.state(DType::F32, &[2]);
    let sums = b.temporary(DType::F32, &[1, 2]);
    b.device(Prim::Reduce { out: sums.clone(), x, axes: vec![0], fold: ptero_plan::prim::Fold::Sum });
    b.device(add(&window(&sums, &[2], &[1], 0), &total));
    let biases = b.temporary(DType::F32, &[2]);
    b.device(fill(&biases, &bias));
    b.device(add(&biases, &total));
    b.output(&total);
    b.plan.outputs.push(Output::Int(&rows * &bias));
    (b, total)
}

fn give(state: &mut dyn State, rows: u64, values: &[f64], bias: i64) {
    write(state, 0, DType::F32, &[rows, 2], values);
    state.write(1, InputValue::Int(bias)).unwrap();
}

#[test]
fn what_is_kept_survives_runs_and_ends_with_reset() {
    let mut state = accumulator().0.start();
    give(state.as_mut(), 2, &[1.0, 2.0, 3.0, 4.0], 100);
    state.run().unwrap();
    assert_eq!(numbers(state.as_ref(), 0), [104.0, 106.0]);
    assert_eq!(state.read(1).unwrap(), OutputValue::Int(200));
    // Inputs stay given; sizes may change.
    state.run().unwrap();
    assert_eq!(numbers(state.as_ref(), 0), [208.0, 212.0]);
    give(state.as_mut(), 1, &[0.5, 0.0], -208);
    state.run().unwrap();
    assert_eq!(numbers(state.as_ref(), 0), [0.5, 4.0]);
    give(state.as_mut(), 0, &[], 1);
    state.reset();
    state.run().unwrap();
    assert_eq!(numbers(state.as_ref(), 0), [1.0, 1.0]);
    let expected = OutputValue::Tensor { dtype: DType::F32, shape: vec![2], bytes: encode(DType::F32, &[1.0, 1.0]) };
    assert_eq!(state.read(0).unwrap(), expected);
}

#[test]
fn states_do_not_influence_each_other() {
    let executable = accumulator().0.compile().unwrap();
    let (mut one, mut two) = (executable.state(0).unwrap(), executable.state(0).unwrap());
    drop(executable);
    give(one.as_mut(), 1, &[1.0, 1.0], 0);
    give(two.as_mut(), 1, &[20.0, 20.0], 0);
    one.run().unwrap();
    two.run().unwrap();
    one.run().unwrap();
    two.reset();
    one.run().unwrap();
    assert_eq!(numbers(one.as_ref(), 0), [3.0, 3.0]);
    two.run().unwrap();
    assert_eq!(numbers(two.as_ref(), 0), [20.0, 20.0]);
}

#[test]
fn inputs_that_do_not_fit_are_refused_and_change_nothing() {
    let mut state = accumulator().0.start();
    give(state.as_mut(), 1, &[1.0, 2.0], 0);
    let mut refuse = |input, value| state.write(input, value).unwrap_err().to_string();
    let tensor = |dtype, shape, bytes| InputValue::Tensor { dtype, shape, bytes };
    assert_eq!(refuse(2, InputValue::Int(0)), "no input 2; there are only 2");
    assert_eq!(refuse(0, InputValue::Int(0)), "input 0: an integer where a tensor is wanted");
    assert_eq!(refuse(1, tensor(DType::F32, &[], &[0; 4])), "input 1: a tensor where an integer is wanted");
    assert_eq!(refuse(0, tensor(DType::F16, &[1, 2], &[0; 4])), "input 0: element type f16 where f32 is wanted");
    assert_eq!(refuse(0, tensor(DType::F32, &[2], &[0; 8])), "input 0: 1 axes where 2 are wanted");
    assert_eq!(refuse(0, tensor(DType::F32, &[1, 3], &[0; 12])), "input 0: size 3 along axis 1 where 2 is wanted");
    assert_eq!(refuse(0, tensor(DType::F32, &[1, 2], &[0; 12])), "input 0: 12 bytes where 8 are wanted");
    assert_eq!(refuse(0, tensor(DType::F32, &[1 << 31, 2], &[])), "input 0: 2147483648 does not fit 32 bits");
    assert_eq!(refuse(1, InputValue::Int(1 << 31)), "input 1: 2147483648 does not fit 32 bits");
    state.run().unwrap();
    assert_eq!(numbers(state.as_ref(), 0), [1.0, 2.0]);
}

#[test]
fn nothing_runs_before_all_inputs_and_nothing_is_read_before_a_run() {
    let mut state = accumulator().0.start();
    let unread = "output 0: can be read only after a successful run";
    assert_eq!(state.run().unwrap_err().to_string(), "input 0: was never written");
    write(state.as_mut(), 0, DType::F32, &[1, 2], &[1.0, 2.0]);
    assert_eq!(state.run().unwrap_err().to_string(), "input 1: was never written");
    assert_eq!(state.read(0).unwrap_err().to_string(), unread);
    state.write(1, InputValue::Int(0)).unwrap();
    assert_eq!(state.read(0).unwrap_err().to_string(), unread);
    state.run().unwrap();
    assert_eq!(state.read(2).unwrap_err().to_string(), "no output 2; there are only 2");
    assert!(state.read(0).is_ok());
    state.write(1, InputValue::Int(0)).unwrap();
    assert_eq!(state.read(0).unwrap_err().to_string(), unread);
}

#[test]
fn inputs_that_share_a_size_must_agree_on_it() {
    let mut b = Builder::new();
    let rows = Dim::var(b.var());
    let (left, right) = (b.input(DType::F32, std::slice::from_ref(&rows)), b.input(DType::F32, &[rows]));
    b.output(&left);
    b.output(&right);
    let mut state = b.start();
    write(state.as_mut(), 0, DType::F32, &[2], &[1.0, 2.0]);
    write(state.as_mut(), 1, DType::F32, &[3], &[1.0, 2.0, 3.0]);
    assert_eq!(state.run().unwrap_err().to_string(), "input 1: gives 3 for h0, which another input gives as 2");
    write(state.as_mut(), 0, DType::F32, &[3], &[4.0, 5.0, 6.0]);
    state.run().unwrap();
    assert_eq!(numbers(state.as_ref(), 0), [4.0, 5.0, 6.0]);
}

#[test]
fn after_a_failed_run_earlier_steps_stay_done_and_the_next_run_works() {
    let mut b = Builder::new();
    let divisor = b.int_input();
    let (one, count) = (b.constant(DType::I32, &[1], &[1.0]), b.state(DType::I32, &[1]));
    b.device(add(&one, &count));
    b.host(HostOp::FloorDiv(Dim::fixed(6), divisor));
    b.device(add(&one, &count));
    b.output(&count);
    let mut state = b.start();
    state.write(0, InputValue::Int(0)).unwrap();
    assert_eq!(state.run().unwrap_err().to_string(), "instruction 3.1 (floor-div): 6 divided by zero");
    assert!(state.read(0).is_err());
    state.write(0, InputValue::Int(2)).unwrap();
    state.run().unwrap();
    assert_eq!(numbers(state.as_ref(), 0), [3.0]);
}

#[test]
fn temporaries_are_sized_and_zeroed_anew_in_each_call() {
    let mut b = Builder::new();
    let size = b.int_input();
    let one = b.constant(DType::I32, &[1], &[1.0]);
    let line = b.buffer(DType::I32, std::slice::from_ref(&size), BufferKind::Temporary);
    // Adds one to each element without having written any.
    let ones = View { shape: vec![size.clone()], strides: dims(&[0]), ..one.clone() };
    let first = window(&line, &[1], &[1], 0);
    b.device(Prim::Scatter {
        out: first,
        updates: one,
        axes: vec![ptero_plan::prim::Axis { index: None, coordinate: None }],
        add: true,
    });
    b.device(add(&ones, &line));
    b.output(&line);
    let mut state = b.start();
    for size in [3, 3, 1, 4] {
        state.write(0, InputValue::Int(size)).unwrap();
        state.run().unwrap();
        let expected: Vec<f64> = (0..size).map(|place| if place == 0 { 2.0 } else { 1.0 }).collect();
        assert_eq!(numbers(state.as_ref(), 0), expected);
    }
    state.write(0, InputValue::Int(0)).unwrap();
    let expected = "instruction 3.0 (scatter): a view from element 0 to 0 of a buffer of 0 elements";
    assert_eq!(state.run().unwrap_err().to_string(), expected);
    state.write(0, InputValue::Int(-1)).unwrap();
    assert_eq!(state.run().unwrap_err().to_string(), "instruction 3.0 (scatter): size -1 is negative");
}

#[test]
fn a_buffer_over_the_limit_is_refused_before_it_is_allocated() {
    let mut b = Builder::new();
    let size = b.int_input();
    let cube = &size * &(&size * &size);
    let line = b.buffer(DType::I32, &[cube], BufferKind::Temporary);
    b.device(fill(&line, &size));
    b.output(&line);
    let mut state = b.start();
    state.write(0, InputValue::Int(1 << 20)).unwrap();
    let error = state.run().unwrap_err().to_string();
    assert_eq!(error, "instruction 3.0 (map): over 17179869184 bytes in one buffer");
}

#[test]
fn a_cancelled_run_says_so_and_the_next_one_works() {
    use std::sync::atomic::AtomicBool;
    let mut b = Builder::new();
    let (x, state) = (b.input(DType::F32, &dims(&[2])), b.state(DType::F32, &[2]));
    b.device(add(&x, &state));
    b.output(&state);
    let mut session = b.start();
    write(session.as_mut(), 0, DType::F32, &[2], &[1.0, 2.0]);
    let error = session.run_until(&AtomicBool::new(true)).unwrap_err();
    assert_eq!(error.to_string(), "instruction 3.0 (map): the run was cancelled");
    assert!(session.read(0).is_err());
    session.run().unwrap();
    assert_eq!(numbers(session.as_ref(), 0), [1.0, 2.0]);
}

#[test]
fn sizes_beyond_the_declared_largest_are_refused() {
    let mut b = Builder::new();
    let size = b.var();
    let x = b.input(DType::F32, &[Dim::var(size)]);
    b.plan.largest.push((size, 3));
    b.output(&x);
    let mut session = b.start();
    let bytes = encode(DType::F32, &[1.0; 4]);
    let value = InputValue::Tensor { dtype: DType::F32, shape: &[4], bytes: &bytes };
    let error = session.write(0, value).unwrap_err();
    assert_eq!(error.to_string(), "input 0: a size that varies is 4, outside 0 to 3");
    write(session.as_mut(), 0, DType::F32, &[3], &[1.0; 3]);
    session.run().unwrap();
}
