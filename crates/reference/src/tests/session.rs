use super::*;
use ptero_plan::host::Check;

/// Adds an input of `[h0, 2]` to a state of `[2]`, row by row, and an integer input to that.
fn accumulator() -> Builder {
    let mut b = Builder::new();
    let rows = b.given();
    let x = b.input(DType::F32, &[rows.clone(), Dim::fixed(2)]);
    let bias = b.int_input();
    let total = b.state(DType::F32, &[2]);
    let sums = b.value(DType::F32, &[1, 2]);
    b.device(Prim::Reduce { out: sums, x, axes: vec![0], fold: ptero_plan::prim::Fold::Sum });
    let (sums, old) = (b.strided(sums, &[2], &[1], 0), b.load(total));
    let sum = b.add(old, sums);
    b.store(total, sum);
    let biases = b.value(DType::F32, &[2]);
    b.op(fill(biases, DType::F32, &bias));
    let old = b.load(total);
    let sum = b.add(old, biases);
    b.store(total, sum);
    b.output(sum);
    b.graph.outputs.push(Output::Int(&rows * &bias));
    b
}

fn give(state: &mut dyn State, rows: u64, values: &[f64], bias: i64) {
    write(state, 0, DType::F32, &[rows, 2], values);
    state.write(1, InputValue::Int(bias)).unwrap();
}

#[test]
fn what_is_kept_survives_runs_and_ends_with_reset() {
    let mut state = accumulator().start();
    give(&mut *state, 2, &[1.0, 2.0, 3.0, 4.0], 100);
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [104.0, 106.0]);
    assert_eq!(state.read(1).unwrap(), OutputValue::Int(200));
    // Inputs stay given; sizes may change.
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [208.0, 212.0]);
    give(&mut *state, 1, &[0.5, 0.0], -208);
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [0.5, 4.0]);
    give(&mut *state, 0, &[], 1);
    state.reset().unwrap();
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [1.0, 1.0]);
    let expected = OutputValue::Tensor { dtype: DType::F32, shape: vec![2], bytes: encode(DType::F32, &[1.0, 1.0]) };
    assert_eq!(state.read(0).unwrap(), expected);
}

#[test]
fn states_do_not_influence_each_other() {
    let executable = Arc::from(accumulator().compile().unwrap());
    let (mut one, mut two) = (RunningGraph::new(&executable, 0), RunningGraph::new(&executable, 0));
    give(&mut *one, 1, &[1.0, 1.0], 0);
    give(&mut *two, 1, &[20.0, 20.0], 0);
    one.run().unwrap();
    two.run().unwrap();
    one.run().unwrap();
    two.reset().unwrap();
    one.run().unwrap();
    assert_eq!(numbers(&*one, 0), [3.0, 3.0]);
    two.run().unwrap();
    assert_eq!(numbers(&*two, 0), [20.0, 20.0]);
}

#[test]
fn inputs_that_do_not_fit_are_refused_and_change_nothing() {
    let mut state = accumulator().start();
    give(&mut *state, 1, &[1.0, 2.0], 0);
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
    assert_eq!(numbers(&*state, 0), [1.0, 2.0]);
}

#[test]
fn nothing_runs_before_all_inputs_and_nothing_is_read_before_a_run() {
    let mut state = accumulator().start();
    let unread = "output 0: can be read only after a successful run";
    assert_eq!(state.run().unwrap_err().to_string(), "input 0: was never written");
    write(&mut *state, 0, DType::F32, &[1, 2], &[1.0, 2.0]);
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
    let rows = b.given();
    let (left, right) = (b.input(DType::F32, std::slice::from_ref(&rows)), b.input(DType::F32, &[rows]));
    b.output(left);
    b.output(right);
    let mut state = b.start();
    write(&mut *state, 0, DType::F32, &[2], &[1.0, 2.0]);
    write(&mut *state, 1, DType::F32, &[3], &[1.0, 2.0, 3.0]);
    assert_eq!(state.run().unwrap_err().to_string(), "input 1: gives 3 for h0, which another input gives as 2");
    write(&mut *state, 0, DType::F32, &[3], &[4.0, 5.0, 6.0]);
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [4.0, 5.0, 6.0]);
}

#[test]
fn after_a_failed_run_earlier_operations_stay_done_and_the_next_run_works() {
    let mut b = Builder::new();
    let divisor = b.input(DType::I32, &dims(&[1]));
    let (one, count) = (b.constant(DType::I32, &[1], &[1.0]), b.state(DType::I32, &[1]));
    let old = b.load(count);
    let new = b.add(old, one);
    b.store(count, new);
    let divisor = b.host(HostOp::Item(divisor));
    b.op(Op::Check(Check::NotZero(divisor)));
    let last = b.add(new, one);
    b.store(count, last);
    b.output(last);
    let mut state = b.start();
    write(&mut *state, 0, DType::I32, &[1], &[0.0]);
    assert_eq!(state.run().unwrap_err().to_string(), "instruction 3.2 (check): an integer divided by zero");
    assert!(state.read(0).is_err());
    write(&mut *state, 0, DType::I32, &[1], &[2.0]);
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [3.0]);
}

#[test]
fn what_a_state_held_can_be_read_after_it_was_replaced() {
    let mut b = Builder::new();
    let (x, kept) = (b.input(DType::F32, &dims(&[2])), b.state(DType::F32, &[2]));
    let old = b.load(kept);
    b.store(kept, x);
    let new = b.load(kept);
    let sum = b.add(old, new);
    b.output(old);
    b.output(sum);
    let mut state = b.start();
    for (given, before) in [(1.0, 0.0), (2.0, 1.0), (5.0, 2.0)] {
        write(&mut *state, 0, DType::F32, &[2], &[given; 2]);
        state.run().unwrap();
        assert_eq!(numbers(&*state, 0), [before; 2]);
        assert_eq!(numbers(&*state, 1), [before + given; 2]);
    }
}

#[test]
fn a_result_of_another_shape_than_declared_is_refused() {
    let mut b = Builder::new();
    let size = b.int_input();
    let (x, out) = (b.constant(DType::F32, &[3], &[0.0; 3]), b.graph.value(DType::F32, vec![size]));
    b.device(Prim::Softmax { out, x, axis: 0 });
    let mut state = b.start();
    state.write(0, InputValue::Int(3)).unwrap();
    state.run().unwrap();
    state.write(0, InputValue::Int(4)).unwrap();
    let error = state.run().unwrap_err().to_string();
    assert!(error.ends_with("a result has the shape that is declared"), "{error}");
    state.write(0, InputValue::Int(-1)).unwrap();
    assert_eq!(state.run().unwrap_err().to_string(), "instruction 3.0 (softmax): size -1 is negative");
}

#[test]
fn a_tensor_over_the_limit_is_refused_before_it_is_computed() {
    let mut b = Builder::new();
    let size = b.int_input();
    let cube = &size * &(&size * &size);
    let line = b.graph.value(DType::I32, vec![cube]);
    b.op(fill(line, DType::I32, &size));
    b.output(line);
    let mut state = b.start();
    state.write(0, InputValue::Int(1 << 20)).unwrap();
    let error = state.run().unwrap_err().to_string();
    assert_eq!(error, "instruction 3.0 (map): over 17179869184 bytes in one buffer");
}

#[test]
fn empty_tensors_take_no_time_however_long_their_other_axes() {
    let mut b = Builder::new();
    let none = b.constant(DType::F32, &[0], &[]);
    let long = b.strided(none, &[1 << 40, 0], &[0, 0], 0);
    let out = b.value(DType::F32, &[1 << 40, 0]);
    b.device(Prim::Softmax { out, x: long, axis: 1 });
    let (stack, product) = (b.strided(none, &[1 << 40, 0, 1], &[0; 3], 0), b.value(DType::F32, &[1, 2, 1]));
    let (left, choice) = (b.strided(none, &[1, 2, 0], &[0; 3], 0), b.constant(DType::I32, &[1], &[5.0]));
    b.device(Prim::MatMul { out: product, a: left, b: stack, lhs: None, rhs: Some(choice), epilogue: None });
    b.output(product);
    let mut state = b.start();
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [0.0; 2]);
}

#[test]
fn a_cancelled_run_says_so_and_the_next_one_works() {
    let mut b = Builder::new();
    let (x, kept) = (b.input(DType::F32, &dims(&[2])), b.state(DType::F32, &[2]));
    let old = b.load(kept);
    let sum = b.add(old, x);
    b.store(kept, sum);
    b.output(sum);
    let mut session = b.start();
    write(&mut *session, 0, DType::F32, &[2], &[1.0, 2.0]);
    let error = run_once(&*session.executable, &mut *session.state, &AtomicBool::new(true)).unwrap_err();
    assert_eq!(*error.fault(), ptero_backend::Fault::Cancelled);
    assert!(session.read(0).is_err());
    session.run().unwrap();
    assert_eq!(numbers(&*session, 0), [1.0, 2.0]);
}

#[test]
fn sizes_beyond_the_declared_largest_are_refused() {
    let mut b = Builder::new();
    let size = Dim::var(b.graph.var(HostOp::Given { most: Some(3) }));
    let x = b.input(DType::F32, &[size]);
    b.output(x);
    let mut session = b.start();
    let bytes = encode(DType::F32, &[1.0; 4]);
    let value = InputValue::Tensor { dtype: DType::F32, shape: &[4], bytes: &bytes };
    let error = session.write(0, value).unwrap_err();
    assert_eq!(error.to_string(), "input 0: a size that varies is 4, outside 0 to 3");
    write(&mut *session, 0, DType::F32, &[3], &[1.0; 3]);
    session.run().unwrap();
}

#[test]
fn a_state_runs_only_where_it_was_made() {
    let (mut one, other) = (accumulator().start(), accumulator().start());
    let error = run_once(&*other.executable, &mut *one.state, &AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().ends_with("a lane is a state of the executable that runs it"));
}
