//! The two products of attention, for one query and a block of keys and values whose rows follow each other.

/// Sums run in so many lanes.
const LANES: usize = 16;
/// So many elements of the mix are kept in registers.
const WIDTH: usize = 64;

kernel! {
    /// `out[j] = query · keys[j]`.
    pub fn scores(query: &[f32], keys: &[f32], out: &mut [f32]) {
        let (q, q_rest) = query.as_chunks::<LANES>();
        for (key, out) in keys.chunks_exact(query.len().max(1)).zip(out) {
            let (k, k_rest) = key.as_chunks::<LANES>();
            let mut lanes = [0.0_f32; LANES];
            for (q, k) in q.iter().zip(k) {
                for ((lane, q), k) in lanes.iter_mut().zip(q).zip(k) {
                    *lane = q.mul_add(*k, *lane);
                }
            }
            lanes.iter_mut().zip(q_rest).zip(k_rest).for_each(|((lane, q), k)| *lane = q.mul_add(*k, *lane));
            let (low, high) = lanes.split_at(LANES / 2);
            let mut sums = [0.0; LANES / 2];
            sums.iter_mut().zip(low).zip(high).for_each(|((sum, low), high)| *sum = low + high);
            let [a, b, c, d, e, f, g, h] = sums;
            *out = ((a + e) + (c + g)) + ((b + f) + (d + h));
        }
    }

    /// `mix += Σ weights[j] values[j]`.
    pub fn mix(weights: &[f32], values: &[f32], mix: &mut [f32]) {
        let width = mix.len();
        let (pieces, rest) = mix.as_chunks_mut::<WIDTH>();
        let done = pieces.len() * WIDTH;
        for (piece, sums) in pieces.iter_mut().enumerate() {
            let mut lanes = *sums;
            for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
                let value = value.as_chunks::<WIDTH>().0.get(piece).unwrap_or(&[0.0; WIDTH]);
                for (lane, value) in lanes.iter_mut().zip(value) {
                    *lane = weight.mul_add(*value, *lane);
                }
            }
            *sums = lanes;
        }
        if !rest.is_empty() {
            for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
                let value = value.get(done..).unwrap_or_default();
                rest.iter_mut().zip(value).for_each(|(sum, value)| *sum = weight.mul_add(*value, *sum));
            }
        }
    }
}
