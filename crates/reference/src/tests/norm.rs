use super::*;
use ptero_plan::prim::{Angles, Normalize, Position};

fn softmax(shape: &[i64], axis: usize, values: &[f64]) -> Vec<f64> {
    let mut b = Builder::new();
    let x = b.constant(DType::F32, shape, values);
    b.result(DType::F32, shape, |out| Prim::Softmax { out, x, axis })
}

#[test]
fn softmax_sums_to_one_along_its_axis() {
    let ln = |x: f64| x.ln();
    let values = [ln(1.0), ln(3.0), ln(1.0), ln(1.0)];
    assert_close(&softmax(&[2, 2], 1, &values), &[0.25, 0.75, 0.5, 0.5], 1e-6);
    assert_close(&softmax(&[2, 2], 0, &values), &[0.5, 0.75, 0.5, 0.25], 1e-6);
    assert_close(&softmax(&[2], 0, &[1000.0, 1000.0]), &[0.5, 0.5], 0.0);
    assert_close(&softmax(&[3], 0, &[-INF, 0.0, -INF]), &[0.0, 1.0, 0.0], 0.0);
    assert_close(&softmax(&[2], 0, &[-INF, -INF]), &[NAN, NAN], 0.0);
    assert_eq!(softmax(&[2, 0], 1, &[]), [0.0; 0]);
}

fn norm(kind: Normalize, values: &[f64], weight: Option<&[f64]>, bias: Option<&[f64]>, eps: f32) -> Vec<f64> {
    let mut b = Builder::new();
    let x = b.constant(DType::F32, &[2, 2], values);
    let weight = weight.map(|weight| b.constant(DType::F32, &[2], weight));
    let bias = bias.map(|bias| b.constant(DType::F32, &[2], bias));
    b.result(DType::F32, &[2, 2], |out| Prim::Norm { out, x, weight, bias, eps, kind })
}

#[test]
fn norms_work_on_rows() {
    // Mean squares 12.5 and 25; with 11 more 23.5 and 36.
    let rms = norm(Normalize::Rms, &[3.0, 4.0, 1.0, 7.0], None, None, 0.0);
    assert_close(&rms, &[3.0 / 12.5_f64.sqrt(), 4.0 / 12.5_f64.sqrt(), 0.2, 1.4], 1e-6);
    let rms = norm(Normalize::Rms, &[3.0, 4.0, 1.0, 7.0], Some(&[2.0, -1.0]), None, 11.0);
    assert_close(&rms, &[6.0 / 23.5_f64.sqrt(), -4.0 / 23.5_f64.sqrt(), 2.0 / 6.0, -7.0 / 6.0], 1e-6);
    // Variances 4 and 0; with 5 under the root: 3.
    let layer = norm(Normalize::Layer, &[1.0, 5.0, 7.0, 7.0], Some(&[3.0, 6.0]), Some(&[10.0, 20.0]), 5.0);
    assert_close(&layer, &[8.0, 24.0, 10.0, 20.0], 1e-5);
    assert_close(&norm(Normalize::Layer, &[1.0, 5.0, 7.0, 9.0], None, None, 0.0), &[-1.0, 1.0, -1.0, 1.0], 1e-6);
}

struct Rotation<'a> {
    shape: &'a [i64],
    values: &'a [f64],
    dims: usize,
    interleaved: bool,
    scale: f32,
}

impl Rotation<'_> {
    fn rotate(
        &self,
        position: impl FnOnce(&mut Builder) -> Position<Value>,
        angles: impl FnOnce(&mut Builder) -> Angles<Value>,
    ) -> Vec<f64> {
        let mut b = Builder::new();
        let x = b.constant(DType::F32, self.shape, self.values);
        let (position, angles) = (position(&mut b), angles(&mut b));
        let (dims, interleaved, scale) = (self.dims, self.interleaved, self.scale);
        b.result(DType::F32, self.shape, |out| Prim::Rope { out, x, dims, interleaved, scale, position, angles })
    }
}

/// A quarter turn of the first pair per position, an eighth of the second.
fn quarter_and_eighth(b: &mut Builder) -> Angles<Value> {
    let quarter = 2.0 / std::f64::consts::PI;
    Angles::Periods(b.constant(DType::F32, &[2], &[quarter, 2.0 * quarter]))
}

fn from_zero(_: &mut Builder) -> Position<Value> {
    Position::Host(Dim::fixed(0))
}

#[test]
fn pairs_are_rotated_in_both_layouts_and_the_rest_is_copied() {
    let (half, values) = (0.5_f64.sqrt(), [1.0, 2.0, 3.0, 4.0, 9.0]);
    let rotation = Rotation { shape: &[1, 5], values: &values, dims: 4, interleaved: false, scale: 1.0 };
    let one = |_: &mut Builder| Position::Host(Dim::fixed(1));
    // (1, 3) by a quarter: (-3, 1); (2, 4) by an eighth: (-2, 6) / sqrt 2.
    let split = rotation.rotate(one, quarter_and_eighth);
    assert_close(&split, &[-3.0, -2.0 * half, 1.0, 6.0 * half, 9.0], 1e-6);
    // (1, 2) by a quarter: (-2, 1); (3, 4) by an eighth: (-1, 7) / sqrt 2.
    let interleaved = Rotation { interleaved: true, ..rotation }.rotate(one, quarter_and_eighth);
    assert_close(&interleaved, &[-2.0, 1.0, -half, 7.0 * half, 9.0], 1e-6);
}

#[test]
fn angles_grow_along_the_second_to_last_axis_and_with_the_scale() {
    let rotation = Rotation { shape: &[3, 2], values: &[1.0, 0.0].repeat(3), dims: 2, interleaved: false, scale: 0.5 };
    let period = |b: &mut Builder| Angles::Periods(b.constant(DType::F32, &[1], &[1.0 / std::f64::consts::PI]));
    assert_close(&rotation.rotate(from_zero, period), &[1.0, 0.0, 0.0, 1.0, -1.0, 0.0], 1e-6);
}

#[test]
fn a_base_gives_the_angles_of_the_formula() {
    let values = [1.0, 1.0, 0.0, 0.0];
    let rotation = Rotation { shape: &[1, 4], values: &values, dims: 4, interleaved: false, scale: 1.0 };
    let five = |_: &mut Builder| Position::Host(Dim::fixed(5));
    let found = rotation.rotate(five, |_| Angles::Base(10000.0));
    let (fast, slow) = (5.0_f64, 5.0 * 10000.0_f64.powf(-0.5));
    assert_close(&found, &[fast.cos(), slow.cos(), fast.sin(), slow.sin()], 1e-6);
}

#[test]
fn each_batch_may_have_its_own_position() {
    // Two batches of two heads with one token each.
    let rotation =
        Rotation { shape: &[2, 2, 1, 2], values: &[1.0, 0.0].repeat(4), dims: 2, interleaved: true, scale: 1.0 };
    let quarter = |b: &mut Builder| Angles::Periods(b.constant(DType::F32, &[1], &[2.0 / std::f64::consts::PI]));
    let each = |b: &mut Builder| Position::Tensor(b.constant(DType::I32, &[2], &[1.0, 2.0]));
    assert_close(&rotation.rotate(each, quarter), &[0.0, 1.0, 0.0, 1.0, -1.0, 0.0, -1.0, 0.0], 1e-6);
    let all = |b: &mut Builder| Position::Tensor(b.constant(DType::I64, &[], &[1.0]));
    assert_close(&rotation.rotate(all, quarter), &[0.0, 1.0].repeat(4), 1e-6);
}
