use super::*;
use ptero_plan::prim::Axis;

fn at(index: Value) -> Axis<Value> {
    Axis { index: Some(index), coordinate: None }
}

fn along(axis: usize) -> Axis<Value> {
    Axis { index: None, coordinate: Some(axis) }
}

#[test]
fn rows_are_gathered_by_index_from_either_end() {
    let take = |indices: &[f64]| {
        let mut b = Builder::new();
        let x = b.constant(DType::F32, &[3, 2], &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
        let index = b.constant(DType::I64, &[2], indices);
        let out = b.value(DType::F32, &[2, 2]);
        let index = b.strided(index, &[2, 2], &[1, 0], 0);
        b.device(Prim::Gather { out, x, axes: vec![at(index), along(1)] });
        (b, out)
    };
    let read = |(b, out): (Builder, Value)| b.read(out);
    assert_eq!(read(take(&[2.0, 0.0])), [20.0, 21.0, 0.0, 1.0]);
    assert_eq!(read(take(&[-1.0, -3.0])), [20.0, 21.0, 0.0, 1.0]);
    assert_eq!(take(&[0.0, 3.0]).0.run_error(), "instruction 3.0 (gather): index 3 is outside an axis of 3");
    assert_eq!(take(&[-4.0, 0.0]).0.run_error(), "instruction 3.0 (gather): index -4 is outside an axis of 3");
}

#[test]
fn an_index_and_a_coordinate_add_up_to_slices() {
    let slice = |start: f64| {
        let mut b = Builder::new();
        let x = b.constant(DType::I32, &[4], &[5.0, 6.0, 7.0, 8.0]);
        let index = b.constant(DType::U32, &[1], &[start]);
        let out = b.value(DType::I32, &[2]);
        let axis = Axis { index: Some(b.broadcast(index, &[2])), coordinate: Some(0) };
        b.device(Prim::Gather { out, x, axes: vec![axis] });
        (b, out)
    };
    let (b, out) = slice(2.0);
    assert_eq!(b.read(out), [7.0, 8.0]);
    assert_eq!(slice(3.0).0.run_error(), "instruction 3.0 (gather): index 4 is outside an axis of 4");
}

#[test]
fn nothing_is_gathered_from_nothing_but_something_is_not() {
    let gather = |count: i64| {
        let mut b = Builder::new();
        let x = b.constant(DType::F32, &[0], &[]);
        let index = b.constant(DType::I32, &[1], &[0.0]);
        let out = b.value(DType::F32, &[count]);
        let index = b.strided(index, &[count], &[0], 0);
        b.device(Prim::Gather { out, x, axes: vec![at(index)] });
        (b, out)
    };
    let (b, out) = gather(0);
    assert_eq!(b.read(out), [0.0; 0]);
    assert_eq!(gather(1).0.run_error(), "instruction 3.0 (gather): index 0 is outside an axis of 0");
}

fn scatter(dtype: DType, add: bool, indices: &[f64], updates: &[f64]) -> (Builder, Value) {
    let mut b = Builder::new();
    let count = i64::try_from(updates.len()).unwrap();
    let (index, updates) = (b.constant(DType::I32, &[count], indices), b.constant(dtype, &[count], updates));
    let (base, out) = (b.constant(dtype, &[3], &[0.0; 3]), b.value(dtype, &[3]));
    b.device(Prim::Scatter { out, base, updates, axes: vec![at(index)], add });
    (b, out)
}

#[test]
fn updates_replace_or_add_in_order_and_the_rest_stays() {
    let read = |(b, out): (Builder, Value)| b.read(out);
    assert_eq!(read(scatter(DType::F32, false, &[2.0, 0.0, -1.0], &[1.0, 2.0, 3.0])), [2.0, 0.0, 3.0]);
    assert_eq!(read(scatter(DType::F32, true, &[2.0, 0.0, -1.0], &[1.0, 2.0, 3.0])), [2.0, 0.0, 4.0]);
    // Each sum is rounded: in bf16, 256 and 1 make 256, as often as one likes.
    assert_eq!(read(scatter(DType::Bf16, true, &[1.0; 3], &[256.0, 1.0, 1.0])), [0.0, 256.0, 0.0]);
    assert_eq!(read(scatter(DType::U8, true, &[1.0, 1.0], &[255.0, 2.0])), [0.0, 1.0, 0.0]);
}

#[test]
fn a_scatter_that_fails_writes_nothing() {
    let mut b = Builder::new();
    let (index, updates) = (b.input(DType::I32, &dims(&[2])), b.constant(DType::F32, &[2], &[1.0, 2.0]));
    let (kept, out) = (b.state(DType::F32, &[3]), b.value(DType::F32, &[3]));
    let base = b.load(kept);
    b.device(Prim::Scatter { out, base, updates, axes: vec![at(index)], add: false });
    b.store(kept, out);
    b.output(out);
    let mut state = b.start();
    write(&mut *state, 0, DType::I32, &[2], &[0.0, 3.0]);
    let error = state.run().unwrap_err().to_string();
    assert_eq!(error, "instruction 3.0 (scatter): index 3 is outside an axis of 3");
    write(&mut *state, 0, DType::I32, &[2], &[1.0, 2.0]);
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [0.0, 1.0, 2.0]);
}

#[test]
fn rows_are_scattered_at_a_start_given_by_a_tensor() {
    let mut b = Builder::new();
    let (start, updates) =
        (b.constant(DType::I64, &[1], &[1.0]), b.constant(DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]));
    let (base, out) = (b.constant(DType::F32, &[2, 3], &[0.0; 6]), b.value(DType::F32, &[2, 3]));
    let axis = Axis { index: Some(b.broadcast(start, &[2, 2])), coordinate: Some(1) };
    b.device(Prim::Scatter { out, base, updates, axes: vec![along(0), axis], add: false });
    assert_eq!(b.read(out), [0.0, 1.0, 2.0, 0.0, 3.0, 4.0]);
}

fn sort(shape: &[i64], axis: usize, indices: bool, values: &[f64]) -> Vec<f64> {
    let mut b = Builder::new();
    let x = b.constant(DType::F32, shape, values);
    b.result(if indices { DType::U32 } else { DType::F32 }, shape, |out| Prim::Sort { out, x, axis, indices })
}

#[test]
fn sorting_is_stable_and_puts_not_a_number_last() {
    let values = [2.0, NAN, -INF, 1.0, INF, 1.0];
    assert_close(&sort(&[6], 0, false, &values), &[-INF, 1.0, 1.0, 2.0, INF, NAN], 0.0);
    assert_eq!(sort(&[6], 0, true, &values), [2.0, 3.0, 5.0, 0.0, 4.0, 1.0]);
    assert_eq!(sort(&[3], 0, true, &[0.0, -0.0, 0.0]), [0.0, 1.0, 2.0]);
    assert_eq!(sort(&[2, 2], 0, false, &[4.0, 1.0, 3.0, 2.0]), [3.0, 1.0, 4.0, 2.0]);
    assert_eq!(sort(&[2, 2], 1, true, &[4.0, 1.0, 3.0, 5.0]), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(sort(&[1], 0, true, &[9.0]), [0.0]);
    assert_eq!(sort(&[2, 0], 1, false, &[]), [0.0; 0]);
}

#[test]
fn sums_run_forwards_or_backwards_with_or_without_the_element() {
    let cumsum = |reverse, inclusive| {
        let mut b = Builder::new();
        let x = b.constant(DType::I32, &[2, 3], &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
        b.result(DType::I32, &[2, 3], |out| Prim::Cumsum { out, x, axis: 1, reverse, inclusive })
    };
    assert_eq!(cumsum(false, true), [1.0, 3.0, 6.0, 10.0, 30.0, 60.0]);
    assert_eq!(cumsum(false, false), [0.0, 1.0, 3.0, 0.0, 10.0, 30.0]);
    assert_eq!(cumsum(true, true), [6.0, 5.0, 3.0, 60.0, 50.0, 30.0]);
    assert_eq!(cumsum(true, false), [5.0, 3.0, 0.0, 50.0, 30.0, 0.0]);
}

#[test]
fn running_sums_are_not_rounded_on_the_way() {
    let mut b = Builder::new();
    let x = b.constant(DType::Bf16, &[3, 1], &[256.0, 1.0, 1.0]);
    let found = b.result(DType::Bf16, &[3, 1], |out| Prim::Cumsum { out, x, axis: 0, reverse: false, inclusive: true });
    assert_eq!(found, [256.0, 256.0, 258.0]);
}
