//! Tests of distributions: how likely it is that draws differ from what is expected as much as they do.

/// The logarithm of the gamma function, by Lanczos' approximation (g = 7, nine terms).
fn ln_gamma(a: f64) -> f64 {
    const FIRST: f64 = 0.999_999_999_999_809_9;
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = a - 1.0;
    let sum = (1..).map(f64::from).zip(TERMS).fold(FIRST, |sum, (at, term)| sum + term / (x + at));
    let t = x + 7.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// The regularized upper incomplete gamma function Q(a, x).
pub fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        // The series of the lower function.
        let (mut term, mut sum, mut next) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-16 {
            next += 1.0;
            term *= x / next;
            sum += term;
        }
        return 1.0 - front * sum;
    }
    // The continued fraction of the upper one, by Lentz' rule.
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1e300, 1.0 / b);
    let mut fraction = d;
    for step in (1..10_000).map(f64::from) {
        let numerator = step * (a - step);
        b += 2.0;
        d = 1.0 / (numerator * d + b);
        c = b + numerator / c;
        fraction *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// The p-value of Pearson's test that counts come from probabilities; 1 where there is but one cell. Cells that expect fewer than
/// ten are taken together.
pub fn chi_square(counts: &[u64], probabilities: &[f64]) -> f64 {
    const FEW: f64 = 10.0;
    let draws = counts.iter().sum::<u64>() as f64;
    let mut cells: Vec<(f64, f64)> = Vec::new();
    let mut few = (0.0, 0.0);
    for (&count, probability) in counts.iter().zip(probabilities) {
        let (count, expected) = (count as f64, probability * draws);
        if expected < FEW {
            few = (few.0 + count, few.1 + expected);
        } else {
            cells.push((count, expected));
        }
    }
    match cells.iter_mut().min_by(|a, b| a.1.total_cmp(&b.1)) {
        Some(smallest) if few.1 < FEW => *smallest = (smallest.0 + few.0, smallest.1 + few.1),
        _ => cells.push(few),
    }
    if cells.len() < 2 {
        return 1.0;
    }
    let distance: f64 = cells.iter().map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    upper_gamma((cells.len() - 1) as f64 / 2.0, distance / 2.0)
}

/// The p-value of Kolmogorov's and Smirnov's test that numbers are uniform in [0, 1], with Stephens' correction for few of them.
pub fn kolmogorov_smirnov(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let distances = (0..).map(f64::from).zip(&sorted);
    let largest =
        distances.map(|(at, number)| (number - at / count).max((at + 1.0) / count - number)).fold(0.0, f64::max);
    let scaled = (count.sqrt() + 0.12 + 0.11 / count.sqrt()) * largest;
    if scaled < 0.3 {
        return 1.0;
    }
    let term = |j: i32| (-2.0 * f64::from(j * j) * scaled * scaled).exp();
    2.0 * (1..100).map(|j| if j % 2 == 1 { term(j) } else { -term(j) }).sum::<f64>()
}

/// Half the sum of the distances between frequencies and probabilities.
pub fn total_variation(counts: &[u64], probabilities: &[f64]) -> f64 {
    let draws = counts.iter().sum::<u64>() as f64;
    let distances =
        counts.iter().zip(probabilities).map(|(&count, probability)| (count as f64 / draws - probability).abs());
    distances.sum::<f64>() / 2.0
}

#[test]
fn the_incomplete_gamma_function_has_its_known_values() {
    // Exact sums for whole `a`, the error function for halves, percentiles of chi-square from tables.
    let known = [
        (1.0, 1.0, 0.367_879_441_171_442_33),
        (5.0, 5.0, 0.440_493_285_065_212_6),
        (10.0, 5.0, 0.968_171_942_693_795_4),
        (10.0, 30.0, 7.121_750_862_815_577e-6),
        (100.0, 100.0, 0.486_701_201_720_851_5),
        (0.5, 0.5, 0.317_310_507_862_914_1),
        (0.5, 4.0, 0.004_677_734_981_047_266),
        (1.5, 2.0, 0.261_464_129_949_110_6),
        (31.5, 41.264_363_270_735_906, 0.05),
        (127.5, 146.623_917_540_350_6, 0.05),
    ];
    for (a, x, value) in known {
        let ours = upper_gamma(a, x);
        assert!((ours / value - 1.0).abs() < 1e-6, "Q({a}, {x}) is {ours}, not {value}");
    }
    assert_eq!(upper_gamma(3.0, 0.0), 1.0);
    for half in 1..200 {
        // Both sides of where the series hands over to the fraction.
        let a = f64::from(half) / 2.0;
        let (below, above) = (upper_gamma(a, (a + 1.0) * (1.0 - 1e-9)), upper_gamma(a, (a + 1.0) * (1.0 + 1e-9)));
        assert!(below > above && below - above < 1e-7, "a = {a}");
    }
}

#[test]
fn the_test_of_uniformity_tells_uniform_from_bent() {
    let even: Vec<f64> = (0..50).map(|at| (f64::from(at) + 0.5) / 50.0).collect();
    assert!(kolmogorov_smirnov(&even) > 0.999);
    let bent: Vec<f64> = even.iter().map(|x| x * x).collect();
    assert!(kolmogorov_smirnov(&bent) < 0.01);
    // Critical distance for 20 numbers at 5 %: 0.29408.
    let twenty: Vec<f64> = (0..20).map(|at| (f64::from(at) / 20.0 + 0.294_08).min(1.0)).collect();
    let p = kolmogorov_smirnov(&twenty);
    assert!((0.045..0.055).contains(&p), "{p}");
}

#[test]
fn chi_square_and_total_variation_of_small_examples() {
    // (60 - 50)² / 50 twice: 4 with one degree of freedom.
    assert!((chi_square(&[60, 40], &[0.5, 0.5]) - 0.045_500_263_896_358_4).abs() < 1e-9);
    assert!((total_variation(&[60, 40], &[0.5, 0.5]) - 0.1).abs() < 1e-12);
    assert_eq!(chi_square(&[100, 0], &[1.0, 0.0]), 1.0);
    // A draw where none is expected counts against its neighbour, not as infinity.
    assert_eq!(chi_square(&[60, 39, 1], &[0.51, 0.49, 0.0]), chi_square(&[60, 40], &[0.51, 0.49]));
}
