use super::*;

/// The elements of a view of `0, 1, 2, …` in the shape of `from`.
fn seen(from: &[i64], shape: &[i64], how: ViewOp) -> Vec<f64> {
    let (b, out) = view_of(from, shape, how);
    b.read(out)
}

fn view_of(from: &[i64], shape: &[i64], how: ViewOp) -> (Builder, Value) {
    let mut b = Builder::new();
    let count = i32::try_from(from.iter().product::<i64>()).unwrap();
    let values: Vec<f64> = (0..count).map(f64::from).collect();
    let x = b.constant(DType::I32, from, &values);
    let out = b.value(DType::I32, shape);
    b.op(Op::View { out, x, how });
    (b, out)
}

fn slice(axis: usize, start: i64, step: i64) -> ViewOp {
    ViewOp::Slice { axis, start: start.into(), step }
}

fn strided(strides: &[i64], offset: i64) -> ViewOp {
    ViewOp::Strided { strides: dims(strides), offset: offset.into() }
}

#[test]
fn views_show_the_elements_they_name() {
    assert_eq!(seen(&[2, 3], &[3, 2], ViewOp::Reshape), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(seen(&[2, 3], &[3, 2], ViewOp::Permute(vec![1, 0])), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_eq!(seen(&[2, 1], &[2, 2, 2], ViewOp::Broadcast), [0.0, 0.0, 1.0, 1.0].repeat(2));
    assert_eq!(seen(&[2, 3], &[2, 2], slice(1, 2, -2)), [2.0, 0.0, 5.0, 3.0]);
    assert_eq!(seen(&[2, 3], &[2, 2], strided(&[-1, 3], 1)), [1.0, 4.0, 0.0, 3.0]);
    assert_eq!(seen(&[2, 3], &[2, 0], slice(1, 77, 1)), [0.0; 0]);
}

#[test]
fn views_of_views_are_those_of_their_elements() {
    let (mut b, flipped) = view_of(&[2, 3], &[3, 2], ViewOp::Permute(vec![1, 0]));
    let (flat, last) = (b.value(DType::I32, &[6]), b.value(DType::I32, &[2]));
    b.op(Op::View { out: flat, x: flipped, how: ViewOp::Reshape });
    b.op(Op::View { out: last, x: flat, how: slice(0, 5, -1) });
    let every = b.strided(flipped, &[3], &[2], 0);
    b.output(last);
    b.output(every);
    let mut state = b.start();
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [5.0, 2.0]);
    assert_eq!(numbers(&*state, 1), [0.0, 1.0, 2.0]);
}

#[test]
fn views_that_reach_outside_are_refused_where_they_are_made() {
    let fault = |from: &[i64], shape: &[i64], how| view_of(from, shape, how).0.run_error();
    let error = fault(&[2, 3], &[2, 2], slice(1, 2, 1));
    assert_eq!(error, "instruction 3.0 (slice): a view from element 2 to 3 of a buffer of 3 elements");
    let error = fault(&[2, 3], &[2], strided(&[6], 0));
    assert_eq!(error, "instruction 3.0 (strided): a view from element 0 to 6 of a buffer of 6 elements");
    assert!(fault(&[2, 3], &[5], ViewOp::Reshape).ends_with("a reshape keeps the number of elements"));
    assert!(fault(&[2, 3], &[2, 2], ViewOp::Broadcast).ends_with("a size is kept or repeated"));
    assert_eq!(fault(&[1], &[-1], ViewOp::Broadcast), "instruction 3.0 (broadcast): size -1 is negative");
    let huge = fault(&[1], &[1 << 33], ViewOp::Broadcast);
    assert_eq!(huge, "instruction 3.0 (broadcast): over 17179869184 bytes in one buffer");
}

fn concat(shapes: &[&[i64]], axis: usize, shape: &[i64]) -> (Builder, Value) {
    let mut b = Builder::new();
    let mut next = 0..;
    let parts = shapes.iter().map(|shape| {
        let count = usize::try_from(shape.iter().product::<i64>()).unwrap();
        let values: Vec<f64> = next.by_ref().take(count).map(f64::from).collect();
        b.constant(DType::Bf16, shape, &values)
    });
    let parts = parts.collect();
    let out = b.value(DType::Bf16, shape);
    b.op(Op::Concat { out, parts, axis });
    (b, out)
}

#[test]
fn tensors_are_joined_along_an_axis() {
    let (b, out) = concat(&[&[2, 1], &[2, 0], &[2, 2]], 1, &[2, 3]);
    assert_eq!(b.read(out), [0.0, 2.0, 3.0, 1.0, 4.0, 5.0]);
    let (b, out) = concat(&[&[1, 2], &[2, 2]], 0, &[3, 2]);
    assert_eq!(b.read(out), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert!(concat(&[&[2, 1]], 1, &[2, 3]).0.run_error().ends_with("what is joined makes up the whole"));
    let error = concat(&[&[2, 1], &[2, 3]], 1, &[2, 3]).0.run_error();
    assert_eq!(error, "instruction 3.0 (concat): a view from element 1 to 3 of a buffer of 3 elements");
    let error = concat(&[&[2, 1], &[1, 2]], 1, &[2, 3]).0.run_error();
    assert!(error.ends_with("what is joined differs along one axis only"));
}

fn update(shape: &[i64], axis: usize, start: i64, step: i64) -> (Builder, Value, Value) {
    let mut b = Builder::new();
    let base = b.constant(DType::I64, &[2, 4], &[0.0; 8]);
    let count = i32::try_from(shape.iter().product::<i64>()).unwrap();
    let values: Vec<f64> = (1..=count).map(f64::from).collect();
    let (new, out) = (b.constant(DType::I64, shape, &values), b.value(DType::I64, &[2, 4]));
    b.op(Op::Update { out, base, new, axis, start: start.into(), step });
    (b, base, out)
}

#[test]
fn an_update_replaces_elements_and_leaves_what_it_was_made_of() {
    let (mut b, base, out) = update(&[2, 2], 1, 1, 2);
    b.output(base);
    b.output(out);
    let mut state = b.start();
    state.run().unwrap();
    assert_eq!(numbers(&*state, 0), [0.0; 8]);
    assert_eq!(numbers(&*state, 1), [0.0, 1.0, 0.0, 2.0, 0.0, 3.0, 0.0, 4.0]);
    let (b, _, out) = update(&[1, 4], 0, 1, 1);
    assert_eq!(b.read(out), [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
    let (b, _, out) = update(&[2, 0], 1, 99, 1);
    assert_eq!(b.read(out), [0.0; 8]);
}

#[test]
fn an_update_beyond_its_axis_is_refused() {
    for (start, step) in [(3, 1), (-1, 1), (0, 4)] {
        assert!(update(&[2, 2], 1, start, step).0.run_error().contains("(update): a view from element"));
    }
    let error = update(&[1, 2], 1, 0, 1).0.run_error();
    assert!(error.ends_with("an update differs from the whole along one axis only"));
}
