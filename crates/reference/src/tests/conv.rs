use super::*;

/// A convolution with f32 operands, given as shape and elements.
struct Case<'a> {
    x: (&'a [i64], &'a [f64]),
    w: (&'a [i64], &'a [f64]),
    out: &'a [i64],
    stride: &'a [i64],
    padding: &'a [i64],
    dilation: &'a [i64],
    groups: i64,
    transposed: bool,
}

impl Case<'_> {
    fn convolve(&self) -> Vec<f64> {
        let mut b = Builder::new();
        let (x, w) = (b.constant(DType::F32, self.x.0, self.x.1), b.constant(DType::F32, self.w.0, self.w.1));
        let (stride, padding, dilation) = (self.stride.to_vec(), self.padding.to_vec(), self.dilation.to_vec());
        let (groups, transposed) = (self.groups, self.transposed);
        b.result(DType::F32, self.out, |out| Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed })
    }
}

/// Five samples, one channel, one filter of two taps: 10 and 1.
const LINE: Case<'_> = Case {
    x: (&[1, 5, 1], &[1.0, 2.0, 3.0, 4.0, 5.0]),
    w: (&[1, 2, 1], &[10.0, 1.0]),
    out: &[1, 4, 1],
    stride: &[1],
    padding: &[0],
    dilation: &[1],
    groups: 1,
    transposed: false,
};

#[test]
fn a_filter_slides_with_stride_padding_and_dilation() {
    assert_eq!(LINE.convolve(), [12.0, 23.0, 34.0, 45.0]);
    assert_eq!(Case { out: &[1, 2, 1], stride: &[2], ..LINE }.convolve(), [12.0, 34.0]);
    assert_eq!(Case { out: &[1, 6, 1], padding: &[1], ..LINE }.convolve(), [1.0, 12.0, 23.0, 34.0, 45.0, 50.0]);
    assert_eq!(Case { out: &[1, 3, 1], dilation: &[2], ..LINE }.convolve(), [13.0, 24.0, 35.0]);
    assert_eq!(Case { out: &[1, 0, 1], ..LINE }.convolve(), [0.0; 0]);
}

#[test]
fn channels_are_summed_and_groups_are_apart() {
    let x: (&[i64], &[f64]) = (&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let one = Case { x, w: (&[2, 1, 2], &[1.0, 10.0, 100.0, 1000.0]), out: &[2, 1, 2], ..LINE };
    assert_eq!(one.convolve(), [21.0, 2100.0, 43.0, 4300.0]);
    let two = Case { x, w: (&[4, 1, 1], &[1.0, 10.0, 100.0, 1000.0]), out: &[2, 1, 4], groups: 2, ..LINE };
    assert_eq!(two.convolve(), [1.0, 10.0, 200.0, 2000.0, 3.0, 30.0, 400.0, 4000.0]);
}

#[test]
fn two_axes_have_their_own_parameters() {
    let image: Vec<f64> = (1..=12).map(f64::from).collect();
    let case = Case {
        x: (&[1, 3, 4, 1], &image),
        w: (&[1, 2, 2, 1], &[1000.0, 100.0, 10.0, 1.0]),
        out: &[1, 2, 2, 1],
        stride: &[1, 2],
        padding: &[0, 1],
        dilation: &[1, 2],
        ..LINE
    };
    // Rows i and i + 1, columns 2j - 1 and 2j + 1 of 1..4, 5..8, 9..12.
    assert_eq!(case.convolve(), [206.0, 2468.0, 610.0, 6000.0 + 800.0 + 100.0 + 12.0]);
}

#[test]
fn transposed_convolutions_spread_what_convolutions_gather() {
    let spread = Case { x: (&[1, 3, 1], &[1.0, 2.0, 3.0]), transposed: true, ..LINE };
    assert_eq!(spread.convolve(), [10.0, 21.0, 32.0, 3.0]);
    assert_eq!(Case { out: &[1, 6, 1], stride: &[2], ..spread }.convolve(), [10.0, 1.0, 20.0, 2.0, 30.0, 3.0]);
    let spread = Case { x: (&[1, 3, 1], &[1.0, 2.0, 3.0]), transposed: true, ..LINE };
    assert_eq!(Case { out: &[1, 2, 1], padding: &[1], ..spread }.convolve(), [21.0, 32.0]);
    let spread = Case { x: (&[1, 3, 1], &[1.0, 2.0, 3.0]), transposed: true, ..LINE };
    assert_eq!(Case { out: &[1, 5, 1], dilation: &[2], ..spread }.convolve(), [10.0, 20.0, 31.0, 2.0, 3.0]);
}

#[test]
fn transposed_groups_are_apart_too() {
    let case = Case {
        x: (&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]),
        w: (&[2, 2, 1], &[1.0, 10.0, 100.0, 1000.0]),
        out: &[1, 3, 2],
        groups: 2,
        transposed: true,
        ..LINE
    };
    assert_eq!(case.convolve(), [1.0, 200.0, 13.0, 2400.0, 30.0, 4000.0]);
}

#[test]
fn shapes_that_do_not_fit_are_an_error_and_not_a_panic() {
    let fails = |x: &[i64], w: &[i64], out: &[i64], groups| {
        let mut b = Builder::new();
        let ones = |shape: &[i64]| vec![1.0; usize::try_from(shape.iter().product::<i64>()).unwrap()];
        let (x, w) = (b.constant(DType::F32, x, &ones(x)), b.constant(DType::F32, w, &ones(w)));
        let (out, one) = (b.value(DType::F32, out), vec![1]);
        let (stride, dilation) = (one.clone(), one);
        b.device(Prim::Conv { out, x, w, stride, padding: vec![0], dilation, groups, transposed: false });
        assert!(b.run_error().ends_with("filters, channels and batches of a convolution fit each other"));
    };
    fails(&[1, 1, 2], &[1, 1, 1], &[1, 1, 1], 1);
    fails(&[1, 1, 2], &[3, 1, 1], &[1, 1, 3], 2);
    fails(&[1, 1, 1], &[1, 1, 1], &[1, 1, 2], 1);
    fails(&[1, 1, 1], &[1, 1, 1], &[2, 1, 1], 1);
    fails(&[1, 1, 1], &[1, 1, 1], &[1, 1, 1], i64::MAX);
}

#[test]
fn parameters_that_make_no_sense_are_refused_at_compile() {
    let refused = |stride: &[i64], groups| {
        let mut b = Builder::new();
        let (x, w) = (b.constant(DType::F32, &[1, 1, 1], &[1.0]), b.constant(DType::F32, &[1, 1, 1], &[1.0]));
        let (out, stride) = (b.value(DType::F32, &[1, 1, 1]), stride.to_vec());
        b.device(Prim::Conv { out, x, w, stride, padding: vec![0], dilation: vec![1], groups, transposed: true });
        b.compile_error()
    };
    assert!(refused(&[0], 1).ends_with("strides and groups of a convolution are positive"));
    assert!(refused(&[1], 0).ends_with("strides and groups of a convolution are positive"));
    assert!(refused(&[1, 1], 1).ends_with("one number per axis"));
}
