use super::*;

/// One batch; the sizes follow from the lengths.
struct Case {
    heads: i64,
    groups: i64,
    queries: i64,
    keys: i64,
    mask: Option<(DType, Vec<f64>)>,
    first: i64,
    causal: bool,
    window: Option<i64>,
}

const PLAIN: Case =
    Case { heads: 1, groups: 1, queries: 1, keys: 2, mask: None, first: 0, causal: false, window: None };

impl Case {
    /// Queries and keys have one element, values two.
    fn attend(&self, q: &[f64], k: &[f64], v: &[f64], scale: f32) -> Vec<f64> {
        let mut b = Builder::new();
        let Case { heads, groups, queries, keys, causal, window, .. } = *self;
        let q = b.constant(DType::F32, &[1, heads, queries, 1], q);
        let k = b.constant(DType::F32, &[1, groups, keys, 1], k);
        let v = b.constant(DType::F32, &[1, groups, keys, 2], v);
        let mask = self.mask.as_ref().map(|(dtype, values)| b.constant(*dtype, &[1, heads, queries, keys], values));
        b.result(DType::F32, &[1, heads, queries, 2], |out| Prim::Attention {
            out,
            q,
            k,
            v,
            mask,
            first: Dim::fixed(self.first),
            causal,
            window,
            scale,
        })
    }
}

const VALUES: [f64; 4] = [1.0, 10.0, 2.0, 20.0];

#[test]
fn values_are_mixed_by_the_softmax_of_the_products() {
    let three = 3.0_f64.ln();
    // Scores 0 and ln 3: weights 1/4 and 3/4.
    assert_close(&PLAIN.attend(&[2.0], &[0.0, three], &VALUES, 0.5), &[1.75, 17.5], 1e-6);
}

#[test]
fn heads_share_the_keys_of_their_group() {
    let case = Case { heads: 4, groups: 2, keys: 1, ..PLAIN };
    let found = case.attend(&[1.0; 4], &[1.0; 2], &VALUES, 1.0);
    assert_eq!(found, [1.0, 10.0, 1.0, 10.0, 2.0, 20.0, 2.0, 20.0]);
}

#[test]
fn a_causal_query_sees_keys_up_to_its_own_counted_from_the_end() {
    let values = [3.0, 0.0, 6.0, 0.0, 12.0, 0.0];
    let case = Case { queries: 2, keys: 3, causal: true, ..PLAIN };
    let found = case.attend(&[0.0; 2], &[0.0; 3], &values, 1.0);
    assert_close(&found, &[4.5, 0.0, 7.0, 0.0], 1e-6);
    let windowed = Case { window: Some(1), ..case }.attend(&[0.0; 2], &[0.0; 3], &values, 1.0);
    assert_close(&windowed, &[6.0, 0.0, 12.0, 0.0], 1e-6);
}

#[test]
fn a_query_before_all_keys_sees_nothing() {
    let case = Case { queries: 3, keys: 2, causal: true, ..PLAIN };
    let found = case.attend(&[0.0; 3], &[0.0; 2], &VALUES, 1.0);
    assert_close(&found, &[NAN, NAN, 1.0, 10.0, 1.5, 15.0], 1e-6);
}

#[test]
fn masks_forbid_or_add() {
    let bools = |mask: &[f64]| Case { mask: Some((DType::Bool, mask.to_vec())), ..PLAIN };
    assert_eq!(bools(&[0.0, 1.0]).attend(&[1.0], &[9.0, 0.0], &VALUES, 1.0), [2.0, 20.0]);
    assert_close(&bools(&[0.0, 0.0]).attend(&[1.0], &[0.0, 0.0], &VALUES, 1.0), &[NAN, NAN], 0.0);
    // What is forbidden is not looked at.
    assert_eq!(bools(&[0.0, 1.0]).attend(&[1.0], &[NAN, 0.0], &[NAN, INF, 2.0, 20.0], 1.0), [2.0, 20.0]);
    let floats = |mask: &[f64]| Case { mask: Some((DType::F32, mask.to_vec())), ..PLAIN };
    let three = 3.0_f64.ln();
    assert_close(&floats(&[0.0, three]).attend(&[1.0], &[0.0; 2], &VALUES, 1.0), &[1.75, 17.5], 1e-6);
    assert_close(&floats(&[-INF, -INF]).attend(&[1.0], &[0.0; 2], &VALUES, 1.0), &[NAN, NAN], 0.0);
    let both = Case { causal: true, queries: 2, mask: Some((DType::Bool, vec![1.0, 1.0, 0.0, 1.0])), ..PLAIN };
    assert_eq!(both.attend(&[0.0; 2], &[0.0; 2], &VALUES, 1.0), [1.0, 10.0, 2.0, 20.0]);
}

#[test]
fn without_keys_there_is_nothing_to_attend_to() {
    let found = Case { keys: 0, ..PLAIN }.attend(&[1.0], &[], &[], 1.0);
    assert_close(&found, &[NAN, NAN], 0.0);
}

#[test]
fn a_mask_of_another_shape_is_an_error_and_not_a_panic() {
    let mut b = Builder::new();
    let (q, k) = (b.constant(DType::F32, &[1, 1, 1, 1], &[0.0]), b.constant(DType::F32, &[1, 1, 2, 1], &[0.0; 2]));
    let (mask, out) = (Some(b.constant(DType::Bool, &[1, 1, 1, 1], &[1.0])), b.value(DType::F32, &[1, 1, 1, 1]));
    let first = Dim::fixed(0);
    b.device(Prim::Attention { out, q, k, v: k, mask, first, causal: false, window: None, scale: 1.0 });
    assert!(b.run_error().ends_with("a mask has an element for each query and key"));
}

#[test]
fn the_position_of_the_first_key_decides_which_keys_are_one_block() {
    // 1 + 2^-24 is 1: what is added to the large weight of its own block or strand is lost, what comes as a sum is not.
    let keys: i64 = 400;
    let scores: Vec<f64> = (0..keys).map(|key| if key == 0 { 0.0 } else { -16.0 - 0.01 * key as f64 }).collect();
    let values: Vec<f64> = (0..2 * keys).map(|at| 1.0 / (1.0 + at as f64)).collect();
    let found = |first| Case { keys, first, ..PLAIN }.attend(&[1.0], &scores, &values, 1.0);
    let zero = found(0);
    assert_close(&zero, &found(77), 1e-6);
    assert_ne!(zero, found(77));
    // Only the remainder counts, whatever the number.
    assert_eq!(zero, found(256));
    assert_eq!(zero, found(i64::MIN));
    assert_eq!(found(255), found(i64::MAX));
}

#[test]
fn keys_that_are_left_out_and_keys_that_are_hidden_give_the_same_bits() {
    let (keys, hidden) = (700_i64, 90_i64);
    let number = |at: i64| f64::from(((at * 37 % 101) as f32 - 50.0) / 16.0);
    let scores = |from: i64| (from..keys).map(number).collect::<Vec<f64>>();
    let values = |from: i64| (2 * from..2 * keys).map(|at| number(at + 13)).collect::<Vec<f64>>();
    let mask = (0..keys).map(|key| f64::from(u8::from(key >= hidden))).collect();
    let all = Case { keys, mask: Some((DType::Bool, mask)), ..PLAIN }.attend(&[0.7], &scores(0), &values(0), 1.0);
    let fewer = Case { keys: keys - hidden, first: hidden, ..PLAIN };
    assert_eq!(all, fewer.attend(&[0.7], &scores(hidden), &values(hidden), 1.0));
}
