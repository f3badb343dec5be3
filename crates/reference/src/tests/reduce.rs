use super::*;
use ptero_plan::prim::Fold;

fn reduce(fold: Fold, from: DType, to: DType, values: &[f64]) -> f64 {
    let mut b = Builder::new();
    let x = b.constant(from, &[i64::try_from(values.len()).unwrap()], values);
    b.result(to, &[1], |out| Prim::Reduce { out, x, axes: vec![0], fold })[0]
}

fn floats(fold: Fold, values: &[f64]) -> f64 {
    reduce(fold, DType::F32, DType::F32, values)
}

#[test]
fn each_fold_gives_a_known_value() {
    let values = [3.0, -1.0, 4.0, 2.0];
    assert_eq!((floats(Fold::Sum, &values), floats(Fold::Prod, &values)), (8.0, -24.0));
    assert_eq!((floats(Fold::Max, &values), floats(Fold::Min, &values)), (4.0, -1.0));
    assert_eq!(floats(Fold::Mean, &values), 2.0);
    assert_eq!(floats(Fold::Var { ddof: 0 }, &values), 3.5);
    assert!((floats(Fold::Var { ddof: 1 }, &values) - 14.0 / 3.0).abs() < 1e-6);
    assert!((floats(Fold::LogSumExp, &[1000.0, 1000.0]) - 1000.693147).abs() < 1e-4);
    let bools = |fold, values: &[f64]| reduce(fold, DType::F32, DType::Bool, values);
    assert_eq!((bools(Fold::Any, &[0.0, 0.0]), bools(Fold::Any, &[0.0, NAN])), (0.0, 1.0));
    assert_eq!((bools(Fold::All, &[1.0, 0.0]), bools(Fold::All, &[1.0, -2.0])), (0.0, 1.0));
}

#[test]
fn nothing_has_a_sum_but_no_maximum() {
    assert_eq!((floats(Fold::Sum, &[]), floats(Fold::Prod, &[])), (0.0, 1.0));
    assert!(floats(Fold::Mean, &[]).is_nan() && floats(Fold::Var { ddof: 0 }, &[]).is_nan());
    assert_eq!(floats(Fold::LogSumExp, &[]), -INF);
    assert_eq!(reduce(Fold::Any, DType::I32, DType::Bool, &[]), 0.0);
    assert_eq!(reduce(Fold::All, DType::I32, DType::Bool, &[]), 1.0);
    let mut b = Builder::new();
    let (x, out) = (b.constant(DType::F32, &[0], &[]), b.value(DType::F32, &[1]));
    b.device(Prim::Reduce { out, x, axes: vec![0], fold: Fold::Max });
    let expected =
        "instruction 3.0 (reduce): the graph breaks its contract: nothing has no largest or smallest element";
    assert_eq!(b.run_error(), expected);
}

#[test]
fn not_a_number_wins_and_infinities_stay() {
    for fold in [Fold::Max, Fold::Min, Fold::LogSumExp, Fold::Sum] {
        assert!(floats(fold, &[1.0, NAN, INF]).is_nan(), "{fold:?}");
    }
    assert_eq!(floats(Fold::LogSumExp, &[-INF, -INF]), -INF);
    assert_eq!(floats(Fold::LogSumExp, &[INF, 0.0]), INF);
    assert!(floats(Fold::Var { ddof: 1 }, &[5.0]).is_nan());
    assert_eq!(floats(Fold::Var { ddof: 3 }, &[4.0, 6.0]), INF);
}

#[test]
fn integers_are_summed_in_64_bits_and_wrap_to_the_result() {
    let ints = |to, values: &[f64]| reduce(Fold::Sum, DType::I32, to, values);
    assert_eq!(ints(DType::I64, &[2147483647.0, 1.0]), 2147483648.0);
    assert_eq!(ints(DType::I32, &[2147483647.0, 1.0]), -2147483648.0);
    assert_eq!(reduce(Fold::Sum, DType::Bool, DType::I32, &[1.0, 1.0, 1.0]), 3.0);
    assert_eq!(reduce(Fold::Prod, DType::U8, DType::U32, &[255.0, 255.0]), 65025.0);
    assert_eq!(
        reduce(Fold::Max, DType::I64, DType::I64, &[9007199254740991.0, 9007199254740990.0]),
        9007199254740991.0
    );
    assert_eq!(reduce(Fold::Mean, DType::I32, DType::F32, &[1.0, 2.0]), 1.5);
}

#[test]
fn sums_are_rounded_once() {
    // In bf16 steps, 256 + 1 + 1 would stay 256.
    assert_eq!(reduce(Fold::Sum, DType::Bf16, DType::Bf16, &[256.0, 1.0, 1.0]), 258.0);
}

#[test]
fn any_axes_may_be_combined_whatever_the_strides() {
    let values: Vec<f64> = (0..12).map(f64::from).collect();
    let sums = |axes: &[usize], shape: &[i64], strides: &[i64], out: &[i64]| {
        let mut b = Builder::new();
        let x = b.constant(DType::F32, &[12], &values);
        let x = b.strided(x, shape, strides, 0);
        b.result(DType::F32, out, |out| Prim::Reduce { out, x, axes: axes.to_vec(), fold: Fold::Sum })
    };
    assert_eq!(sums(&[1], &[2, 3, 2], &[6, 2, 1], &[2, 1, 2]), [6.0, 9.0, 24.0, 27.0]);
    assert_eq!(sums(&[0, 2], &[2, 3, 2], &[6, 2, 1], &[1, 3, 1]), [14.0, 22.0, 30.0]);
    assert_eq!(sums(&[0, 1, 2], &[2, 3, 2], &[6, 2, 1], &[1, 1, 1]), [66.0]);
    assert_eq!(sums(&[], &[2, 2], &[6, 1], &[2, 2]), [0.0, 1.0, 6.0, 7.0]);
    assert_eq!(sums(&[0], &[3, 2], &[0, 5], &[1, 2]), [0.0, 15.0]);
}

#[test]
fn the_first_of_equals_and_not_a_number_are_found() {
    let find = |largest, values: &[f64]| {
        let mut b = Builder::new();
        let x = b.constant(DType::F32, &[i64::try_from(values.len()).unwrap()], values);
        b.result(DType::U32, &[1], |out| Prim::ArgReduce { out, x, axis: 0, largest })[0]
    };
    assert_eq!((find(true, &[1.0, 3.0, 3.0, 0.0]), find(false, &[1.0, 0.0, 3.0, 0.0])), (1.0, 1.0));
    assert_eq!((find(true, &[1.0, NAN, 3.0, NAN]), find(false, &[1.0, NAN, 0.0, NAN])), (1.0, 1.0));
    assert_eq!((find(true, &[-INF]), find(false, &[0.0, -0.0])), (0.0, 0.0));
    let mut b = Builder::new();
    let x = b.constant(DType::I64, &[2, 3], &[1.0, 5.0, 3.0, 9.0, 5.0, 4.0]);
    assert_eq!(
        b.result(DType::U32, &[1, 3], |out| Prim::ArgReduce { out, x, axis: 0, largest: true }),
        [1.0, 0.0, 1.0]
    );
}
