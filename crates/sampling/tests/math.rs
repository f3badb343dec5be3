//! `ln` and `exp` over every f32 there is.

use ptero_sampling::math::{ULPS, exp, ln};

/// The distance from the true value in units of the last place of the nearest f32.
fn ulps(ours: f32, truth: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation, reason = "the nearest f32")]
    let nearest = (truth as f32).abs();
    if f64::from(ours) == truth || (nearest == f32::INFINITY && ours == f32::INFINITY.copysign(ours)) {
        return 0.0;
    }
    let step = f64::from(nearest.next_up()) - f64::from(nearest);
    (f64::from(ours) - truth).abs() / step
}

/// The largest error over all bit patterns from `first` to `last`, and where.
fn worst(bits: std::ops::RangeInclusive<u32>, ours: fn(f32) -> f32, truth: fn(f64) -> f64) -> (f64, f32) {
    let threads = 8;
    let (first, last) = (u64::from(*bits.start()), u64::from(*bits.end()));
    let share = (last - first) / threads + 1;
    let parts = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let range = first + thread * share..=last.min(first + (thread + 1) * share - 1);
                    range
                        .map(|bits| f32::from_bits(u32::try_from(bits).expect("32 bits")))
                        .map(|x| (ulps(ours(x), truth(f64::from(x))), x))
                        .fold((0.0, 0.0), |worst, one| if one.0 > worst.0 { one } else { worst })
                })
            })
            .collect();
        parts.into_iter().map(|part| part.join().expect("no panic")).collect::<Vec<_>>()
    });
    parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("several parts")
}

#[test]
fn the_logarithm_of_every_positive_number_is_within_its_bound() {
    let (error, at) = worst(1..=f32::INFINITY.to_bits() - 1, ln, f64::ln);
    println!("ln: {error:.4} ulp at {at:e}");
    assert!(error <= ULPS, "{error} ulp at {at:e}");
}

#[test]
fn the_exponential_of_every_number_is_within_its_bound() {
    // Beyond these both are 0 or infinite.
    let positive = worst(0..=100.0_f32.to_bits(), exp, f64::exp);
    let negative = worst(0x8000_0000..=(-110.0_f32).to_bits(), exp, f64::exp);
    for (error, at) in [positive, negative] {
        println!("exp: {error:.4} ulp at {at:e}");
        assert!(error <= ULPS, "{error} ulp at {at:e}");
    }
}

#[test]
fn special_values_are_those_of_mathematics() {
    assert_eq!(ln(0.0), f32::NEG_INFINITY);
    assert_eq!(ln(-0.0), f32::NEG_INFINITY);
    assert_eq!(ln(1.0).to_bits(), 0);
    assert_eq!(ln(f32::INFINITY), f32::INFINITY);
    assert!(ln(-1.0).is_nan() && ln(f32::NEG_INFINITY).is_nan() && ln(f32::NAN).is_nan());
    assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
    assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
    assert_eq!((exp(89.0), exp(-104.5)), (f32::INFINITY, 0.0));
    assert!(exp(f32::NAN).is_nan());
}
