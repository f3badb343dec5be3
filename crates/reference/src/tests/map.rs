use super::*;
use ptero_plan::expr::{Compare, Unary};

/// Steps of one type; a `Load` per operand comes first.
fn function(dtypes: &[DType], steps: Vec<(Scalar, [u16; 3], DType)>) -> Expr {
    let loads = (0..).zip(dtypes).map(|(index, &dtype)| Step { op: Scalar::Load(index), args: [0; 3], dtype });
    let rest = steps.into_iter().map(|(op, args, dtype)| Step { op, args, dtype });
    Expr { steps: loads.chain(rest).collect() }
}

fn unary(op: Unary, dtype: DType, values: &[f64]) -> Vec<f64> {
    let mut b = Builder::new();
    let shape = [i64::try_from(values.len()).unwrap()];
    let x = b.constant(dtype, &shape, values);
    let expr = function(&[dtype], vec![(Scalar::Unary(op), [0; 3], dtype)]);
    b.result(dtype, &shape, |out| Prim::Map { out, ins: vec![x], expr })
}

fn binary(op: Scalar, from: DType, to: DType, left: &[f64], right: &[f64]) -> Vec<f64> {
    let mut b = Builder::new();
    let shape = [i64::try_from(left.len()).unwrap()];
    let ins = vec![b.constant(from, &shape, left), b.constant(from, &shape, right)];
    let expr = function(&[from, from], vec![(op, [0, 1, 0], to)]);
    b.result(to, &shape, |out| Prim::Map { out, ins, expr })
}

fn arithmetic(op: Binary, dtype: DType, left: &[f64], right: &[f64]) -> Vec<f64> {
    binary(Scalar::Binary(op), dtype, dtype, left, right)
}

#[test]
fn every_unary_function_of_floats_gives_a_known_value() {
    use std::f64::consts::{E, FRAC_PI_2, FRAC_PI_4, LN_2, PI};
    let known = [
        (Unary::Neg, 1.5, -1.5),
        (Unary::Abs, -1.5, 1.5),
        (Unary::Sign, -3.0, -1.0),
        (Unary::Square, -3.0, 9.0),
        (Unary::Sqrt, 9.0, 3.0),
        (Unary::Rsqrt, 4.0, 0.5),
        (Unary::Reciprocal, 4.0, 0.25),
        (Unary::Exp, 1.0, E),
        (Unary::Expm1, LN_2, 1.0),
        (Unary::Log, E, 1.0),
        (Unary::Log2, 8.0, 3.0),
        (Unary::Log10, 1000.0, 3.0),
        (Unary::Log1p, 1.0, LN_2),
        (Unary::Sin, FRAC_PI_2, 1.0),
        (Unary::Cos, PI, -1.0),
        (Unary::Tan, FRAC_PI_4, 1.0),
        (Unary::Arcsin, 1.0, FRAC_PI_2),
        (Unary::Arccos, -1.0, PI),
        (Unary::Arctan, 1.0, FRAC_PI_4),
        (Unary::Sinh, LN_2, 0.75),
        (Unary::Cosh, LN_2, 1.25),
        (Unary::Tanh, LN_2, 0.6),
        (Unary::Arcsinh, 0.75, LN_2),
        (Unary::Arccosh, 1.25, LN_2),
        (Unary::Arctanh, 0.6, LN_2),
        (Unary::Erf, 1.0, 0.842_700_792_949_714_9),
        (Unary::Sigmoid, LN_2, 2.0 / 3.0),
        (Unary::Floor, -1.5, -2.0),
        (Unary::Ceil, -1.5, -1.0),
        (Unary::Round, 2.5, 2.0),
        (Unary::Trunc, -1.5, -1.0),
    ];
    for (op, x, expected) in known {
        let found = unary(op, DType::F32, &[x]);
        assert!((found[0] - expected).abs() < 4e-7, "{op:?} of {x}: {found:?}, not {expected}");
    }
}

#[test]
fn halves_round_to_even_and_signs_keep_what_has_none() {
    assert_eq!(unary(Unary::Round, DType::F32, &[0.5, 1.5, -2.5, -0.4, 3.7]), [0.0, 2.0, -2.0, 0.0, 4.0]);
    assert_close(&unary(Unary::Sign, DType::F32, &[2.0, 0.0, -7.0, NAN]), &[1.0, 0.0, -1.0, NAN], 0.0);
}

#[test]
fn integers_have_their_own_functions_and_wrap() {
    assert_eq!(unary(Unary::Neg, DType::I8, &[-128.0, 5.0]), [-128.0, -5.0]);
    assert_eq!(unary(Unary::Abs, DType::I32, &[-2147483648.0, -5.0]), [-2147483648.0, 5.0]);
    assert_eq!(unary(Unary::Neg, DType::U8, &[1.0, 0.0]), [255.0, 0.0]);
    assert_eq!(unary(Unary::Square, DType::I16, &[256.0, -3.0]), [0.0, 9.0]);
    assert_eq!(unary(Unary::Sign, DType::I64, &[-9.0, 0.0, 4.0]), [-1.0, 0.0, 1.0]);
    assert_eq!(unary(Unary::BitNot, DType::U32, &[0.0]), [4294967295.0]);
    assert_eq!(unary(Unary::BitNot, DType::I32, &[5.0]), [-6.0]);
    assert_eq!(unary(Unary::BitNot, DType::Bool, &[0.0, 1.0]), [1.0, 0.0]);
    assert_eq!(unary(Unary::Not, DType::Bool, &[0.0, 1.0]), [1.0, 0.0]);
}

#[test]
fn every_binary_function_gives_a_known_value() {
    let floats = |op, a, b| arithmetic(op, DType::F32, &[a], &[b])[0];
    assert_eq!(floats(Binary::Add, 1.0, 2.5), 3.5);
    assert_eq!(floats(Binary::Sub, 1.0, 2.5), -1.5);
    assert_eq!(floats(Binary::Mul, 3.0, 2.5), 7.5);
    assert_eq!(floats(Binary::Div, 1.0, 4.0), 0.25);
    assert_eq!(floats(Binary::FloorDiv, -7.0, 2.0), -4.0);
    assert_eq!(floats(Binary::Remainder, -7.0, 2.0), 1.0);
    assert_eq!(floats(Binary::Power, 2.0, -2.0), 0.25);
    assert_eq!((floats(Binary::Max, 1.0, 2.0), floats(Binary::Min, 1.0, 2.0)), (2.0, 1.0));
    assert!((floats(Binary::Atan2, 1.0, -1.0) - 0.75 * std::f64::consts::PI).abs() < 1e-6);
    assert!((floats(Binary::LogAddExp, 0.0, 0.0) - std::f64::consts::LN_2).abs() < 1e-6);
    for op in [Binary::Max, Binary::Min] {
        assert!(floats(op, NAN, 1.0).is_nan() && floats(op, 1.0, NAN).is_nan());
    }

    let ints = |op, a, b| arithmetic(op, DType::I32, &[a], &[b])[0];
    assert_eq!(ints(Binary::Add, 2147483647.0, 1.0), -2147483648.0);
    assert_eq!(ints(Binary::Mul, 65536.0, 65537.0), 65536.0);
    assert_eq!((ints(Binary::FloorDiv, -7.0, 2.0), ints(Binary::FloorDiv, 7.0, 0.0)), (-4.0, 0.0));
    assert_eq!((ints(Binary::Remainder, -7.0, 2.0), ints(Binary::Remainder, 7.0, 0.0)), (1.0, 0.0));
    assert_eq!((ints(Binary::Power, 3.0, 4.0), ints(Binary::Power, 3.0, -1.0)), (81.0, 0.0));
    assert_eq!(
        (ints(Binary::BitAnd, 6.0, 3.0), ints(Binary::BitOr, 6.0, 3.0), ints(Binary::BitXor, 6.0, 3.0)),
        (2.0, 7.0, 5.0)
    );
    assert_eq!(arithmetic(Binary::Sub, DType::U8, &[1.0], &[2.0]), [255.0]);

    let truth = [0.0, 0.0, 1.0, 1.0];
    assert_eq!(arithmetic(Binary::And, DType::Bool, &truth, &[0.0, 1.0, 0.0, 1.0]), [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(arithmetic(Binary::Or, DType::Bool, &truth, &[0.0, 1.0, 0.0, 1.0]), [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(arithmetic(Binary::BitXor, DType::Bool, &truth, &[0.0, 1.0, 0.0, 1.0]), [0.0, 1.0, 1.0, 0.0]);
}

#[test]
fn comparisons_are_false_beside_not_a_number_but_for_unequal() {
    let compare =
        |op| binary(Scalar::Compare(op), DType::F32, DType::Bool, &[1.0, 2.0, 2.0, NAN], &[2.0, 2.0, 1.0, NAN]);
    assert_eq!(compare(Compare::Less), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(compare(Compare::LessEqual), [1.0, 1.0, 0.0, 0.0]);
    assert_eq!(compare(Compare::Greater), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(compare(Compare::GreaterEqual), [0.0, 1.0, 1.0, 0.0]);
    assert_eq!(compare(Compare::Equal), [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(compare(Compare::NotEqual), [1.0, 0.0, 1.0, 1.0]);
}

#[test]
fn large_integers_compare_exactly() {
    let big = 9_007_199_254_740_992.0;
    let less = Scalar::Compare(Compare::Less);
    assert_eq!(binary(less, DType::I64, DType::Bool, &[big - 1.0, big], &[big, big - 1.0]), [1.0, 0.0]);
}

#[test]
fn each_step_rounds_to_its_own_type() {
    // 256 + 1 is 256 in bf16 (ties to even), 257 in f32; then less 256.
    for (middle, expected) in [(DType::Bf16, 0.0), (DType::F32, 1.0), (DType::F16, 1.0)] {
        let mut b = Builder::new();
        let x = b.constant(DType::Bf16, &[1], &[256.0]);
        let steps = vec![
            (Scalar::Cast, [0; 3], middle),
            (Scalar::Float(1.0), [0; 3], middle),
            (Scalar::Binary(Binary::Add), [1, 2, 0], middle),
            (Scalar::Cast, [3, 0, 0], DType::F32),
            (Scalar::Float(256.0), [0; 3], DType::F32),
            (Scalar::Binary(Binary::Sub), [4, 5, 0], DType::F32),
        ];
        let expr = function(&[DType::Bf16], steps);
        assert_eq!(b.result(DType::F32, &[1], |out| Prim::Map { out, ins: vec![x], expr }), [expected], "{middle}");
    }
}

#[test]
fn select_takes_the_second_where_the_first_is_true() {
    let mut b = Builder::new();
    let dtypes = [DType::Bool, DType::I32, DType::I32];
    let condition = b.constant(dtypes[0], &[2], &[1.0, 0.0]);
    let (yes, no) = (b.constant(dtypes[1], &[2], &[10.0, 11.0]), b.constant(dtypes[2], &[2], &[20.0, 21.0]));
    let expr = function(&dtypes, vec![(Scalar::Select, [0, 1, 2], DType::I32)]);
    let ins = vec![condition, yes, no];
    assert_eq!(b.result(DType::I32, &[2], |out| Prim::Map { out, ins, expr }), [10.0, 21.0]);
}

#[test]
fn indices_and_values_of_the_call_can_be_computed_with() {
    let b = Builder::new();
    let steps = vec![
        (Scalar::Index(0), [0; 3], DType::I32),
        (Scalar::Int(Dim::fixed(10)), [0; 3], DType::I32),
        (Scalar::Binary(Binary::Mul), [0, 1, 0], DType::I32),
        (Scalar::Index(1), [0; 3], DType::I32),
        (Scalar::Binary(Binary::Add), [2, 3, 0], DType::I32),
    ];
    let expr = function(&[], steps);
    let found = b.result(DType::I32, &[2, 3], |out| Prim::Map { out, ins: vec![], expr });
    assert_eq!(found, [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
}

#[test]
fn operands_may_be_broadcast_reversed_or_absent() {
    let add = |dtype| function(&[dtype, dtype], vec![(Scalar::Binary(Binary::Add), [0, 1, 0], dtype)]);
    let mut b = Builder::new();
    let row = b.constant(DType::F32, &[3], &[1.0, 2.0, 3.0]);
    let column = b.constant(DType::F32, &[2], &[10.0, 20.0]);
    let ins = vec![b.strided(row, &[2, 3], &[0, -1], 2), b.strided(column, &[2, 3], &[1, 0], 0)];
    let found = b.result(DType::F32, &[2, 3], |out| Prim::Map { out, ins, expr: add(DType::F32) });
    assert_eq!(found, [13.0, 12.0, 11.0, 23.0, 22.0, 21.0]);

    let mut b = Builder::new();
    let ins = vec![b.constant(DType::F32, &[0, 3], &[]), b.constant(DType::F32, &[0, 3], &[])];
    assert_eq!(b.result(DType::F32, &[0, 3], |out| Prim::Map { out, ins, expr: add(DType::F32) }), [0.0; 0]);

    let mut b = Builder::new();
    let ins = vec![b.constant(DType::F32, &[], &[1.0]), b.constant(DType::F32, &[], &[2.0])];
    assert_eq!(b.result(DType::F32, &[], |out| Prim::Map { out, ins, expr: add(DType::F32) }), [3.0]);
}

#[test]
fn functions_that_make_no_sense_are_refused_at_compile() {
    let refused = |dtype, steps| {
        let mut b = Builder::new();
        let (x, out) = (b.constant(dtype, &[1], &[1.0]), b.value(dtype, &[1]));
        b.device(Prim::Map { out, ins: vec![x], expr: function(&[dtype], steps) });
        b.compile_error()
    };
    let sqrt = vec![(Scalar::Unary(Unary::Sqrt), [0; 3], DType::I32)];
    assert_eq!(refused(DType::I32, sqrt), "instruction 3.0 (map): `Sqrt` does not exist for elements of type i32");
    let div = vec![(Scalar::Binary(Binary::Div), [0; 3], DType::I64)];
    assert_eq!(refused(DType::I64, div), "instruction 3.0 (map): `Div` does not exist for elements of type i64");
    let and = vec![(Scalar::Binary(Binary::And), [0; 3], DType::F32)];
    assert_eq!(refused(DType::F32, and), "instruction 3.0 (map): `And` does not exist for elements of type f32");
    let later = vec![(Scalar::Cast, [1, 0, 0], DType::F32)];
    assert_eq!(
        refused(DType::F32, later),
        "instruction 3.0 (map): no earlier step of the function 1; there are only 1"
    );
    let load = vec![(Scalar::Load(3), [0; 3], DType::F32)];
    assert_eq!(refused(DType::F32, load), "instruction 3.0 (map): no operand 3; there are only 1");
    let index = vec![(Scalar::Index(1), [0; 3], DType::F32)];
    assert_eq!(refused(DType::F32, index), "instruction 3.0 (map): no axis 1; there are only 1");
    let other = vec![(Scalar::Cast, [0; 3], DType::F16)];
    assert!(refused(DType::F32, other).ends_with("the last step of a function has the type of its result"));
    let f64s = vec![(Scalar::Cast, [0; 3], DType::F64), (Scalar::Cast, [1, 0, 0], DType::F32)];
    assert!(refused(DType::F32, f64s).ends_with("(map): element type f64 is not one that ptero computes with"));
}
