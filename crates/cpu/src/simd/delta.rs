//! One token of the gated delta rule.

/// Sums run in so many lanes.
const LANES: usize = 16;

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        lanes.iter_mut().zip(a).zip(b).for_each(|((lane, a), b)| *lane = a.mul_add(*b, *lane));
    }
    lanes.iter_mut().zip(a_rest).zip(b_rest).for_each(|((lane, a), b)| *lane = a.mul_add(*b, *lane));
    let (low, high) = lanes.split_at(LANES / 2);
    let mut sums = [0.0; LANES / 2];
    sums.iter_mut().zip(low).zip(high).for_each(|((sum, low), high)| *sum = low + high);
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

kernel! {
    /// For one row of a head's state: `s *= g; d = (v - s k) * beta; s += d k; out = s q`.
    pub fn step(state: &mut [f32], q: &[f32], k: &[f32], v: f32, g: f32, beta: f32) -> f32 {
        state.iter_mut().for_each(|s| *s *= g);
        let difference = (v - dot(state, k)) * beta;
        state.iter_mut().zip(k).for_each(|(s, k)| *s = difference.mul_add(*k, *s));
        dot(state, q)
    }
}
