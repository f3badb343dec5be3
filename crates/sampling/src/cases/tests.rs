use super::*;

/// What a case may be.
type Predicate = fn(&Case) -> bool;

fn has(case: &Case, kind: Kind) -> bool {
    case.kinds.contains(&kind)
}

fn any_settings(case: &Case, holds: impl Fn(&Settings) -> bool) -> bool {
    case.settings.iter().any(holds)
}

fn any_seed(case: &Case, seed: i64) -> bool {
    match &case.seeds {
        Seeds::Shared(shared) => *shared == seed,
        Seeds::PerRow(seeds) => seeds.contains(&seed),
    }
}

const LISTED: &[(&str, Predicate)] = &[
    ("one token", |case| case.vocabulary == 1),
    ("a small vocabulary", |case| (2..64).contains(&case.vocabulary)),
    ("a middling vocabulary", |case| (64..32_000).contains(&case.vocabulary)),
    ("32,000", |case| case.vocabulary == 32_000),
    ("49,152", |case| case.vocabulary == 49_152),
    ("128,256", |case| case.vocabulary == 128_256),
    ("151,936", |case| case.vocabulary == 151_936),
    ("248,320", |case| case.vocabulary == 248_320),
    ("262,144", |case| case.vocabulary == 262_144),
    ("one row", |case| case.rows == 1),
    ("many rows", |case| case.rows > 100),
    ("the most rows", |case| case.rows == MOST_ROWS),
    ("many logits", |case| case.logits.len() > MOST_LOGITS / 2),
    ("an odd number of logits", |case| case.logits.len() % 2 == 1 && case.rows > 1),
    ("f32", |case| case.dtype == DType::F32),
    ("f16", |case| case.dtype == DType::F16),
    ("bf16", |case| case.dtype == DType::Bf16),
    ("one settings for many rows", |case| case.rows > 1 && case.settings.len() == 1),
    ("settings for each row", |case| case.rows > 1 && case.settings.len() == case.rows),
    ("greedy", |case| any_settings(case, |settings| settings.temperature == 0.0)),
    ("the least temperature", |case| any_settings(case, |settings| settings.temperature == 1e-4)),
    ("cold", |case| any_settings(case, |settings| (1e-4..1e-2).contains(&settings.temperature))),
    ("mild", |case| any_settings(case, |settings| (0.5..2.0).contains(&settings.temperature))),
    ("hot", |case| any_settings(case, |settings| settings.temperature > 10.0)),
    ("top-k 1", |case| any_settings(case, |settings| settings.top_k == 1)),
    ("top-k within", |case| {
        any_settings(case, |settings| (2..case.vocabulary).contains(&settings.kept_of(usize::MAX)))
    }),
    ("top-k all", |case| any_settings(case, |settings| settings.top_k == case.vocabulary.try_into().unwrap())),
    ("top-k above", |case| any_settings(case, |settings| settings.top_k == i64::MAX)),
    ("top-p 1", |case| any_settings(case, |settings| settings.top_p == 1.0)),
    ("top-p just below 1", |case| any_settings(case, |settings| settings.top_p == 1.0 - f32::EPSILON / 2.0)),
    ("top-p usual", |case| any_settings(case, |settings| (0.5..1.0).contains(&settings.top_p))),
    ("top-p small", |case| any_settings(case, |settings| settings.top_p < 1e-3)),
    ("top-p least", |case| any_settings(case, |settings| settings.top_p == 1e-6)),
    ("both filters", |case| {
        any_settings(case, |settings| settings.top_p < 1.0 && settings.kept_of(usize::MAX) < case.vocabulary)
    }),
    ("an exact tail", |case| any_settings(case, |settings| settings.exact_tail)),
    ("an exact tail of all", |case| {
        let is_all =
            |settings: &Settings| settings.kept_of(case.vocabulary) == case.vocabulary && settings.top_p == 1.0;
        case.vocabulary > 2048 && any_settings(case, |settings| settings.exact_tail && is_all(settings))
    }),
    ("a shared seed", |case| case.rows > 1 && matches!(case.seeds, Seeds::Shared(_))),
    ("a seed per row", |case| case.rows > 1 && matches!(case.seeds, Seeds::PerRow(_))),
    ("seed 0", |case| any_seed(case, 0)),
    ("seed -1", |case| any_seed(case, -1)),
    ("seed 2^31", |case| any_seed(case, 1 << 31)),
    ("seed 2^40", |case| any_seed(case, 1 << 40)),
    ("masked", |case| case.vocabulary > 1 && case.logits.contains(&f32::NEG_INFINITY)),
    ("not a number", |case| case.logits.iter().any(|logit| logit.is_nan())),
    ("infinite", |case| case.logits.contains(&f32::INFINITY)),
    ("infinite after the division", |case| {
        let rows = case.logits.chunks(case.vocabulary).zip(case.settings_of_rows());
        rows.filter(|(_, settings)| settings.temperature > 0.0).any(|(row, settings)| {
            row.iter().any(|logit| logit.is_finite() && (logit / settings.temperature).is_infinite())
        })
    }),
    ("subnormal", |case| case.dtype != DType::F16 && case.logits.iter().any(|logit| logit.is_subnormal())),
    ("both zeros", |case| [0, 1 << 31].iter().all(|zero| case.logits.iter().any(|logit| logit.to_bits() == *zero))),
];

#[test]
fn s0_7_the_first_10000_cases_are_of_every_kind() {
    let mut counts = vec![0; LISTED.len()];
    let mut kinds: Vec<(Kind, usize)> = Kind::ALL.iter().map(|kind| (*kind, 0)).collect();
    for case in (0..10_000).map(Case::number) {
        for (count, (_, holds)) in counts.iter_mut().zip(LISTED) {
            *count += usize::from(holds(&case));
        }
        for (kind, count) in &mut kinds {
            *count += usize::from(has(&case, *kind) && case.vocabulary > 1);
        }
        assert_eq!(case.logits.len(), case.rows * case.vocabulary);
        assert!(case.logits.len() <= MOST_LOGITS && case.rows <= MOST_ROWS, "case {}", case.number);
        assert!(case.settings.iter().all(|settings| settings.check().is_ok()), "case {}", case.number);
    }
    for ((name, _), count) in LISTED.iter().zip(counts) {
        println!("{count:5} {name}");
        assert!(count >= 3, "{count} cases with {name}");
    }
    for (kind, count) in kinds {
        println!("{count:5} {kind:?}");
        assert!(count >= 300, "{count} cases with a row that is {kind:?}");
    }
}

#[test]
fn s0_7_every_logit_is_a_number_of_its_type() {
    for case in (0..2000).map(Case::number) {
        let bytes = case.bytes();
        let read: Vec<f32> = match case.dtype {
            DType::F16 => bytes.chunks(2).map(|two| f16::from_le_bytes([two[0], two[1]]).to_f32()).collect(),
            DType::Bf16 => bytes.chunks(2).map(|two| bf16::from_le_bytes([two[0], two[1]]).to_f32()).collect(),
            _ => bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect(),
        };
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        assert!(read.len() == case.logits.len() && read.iter().zip(&case.logits).all(same), "case {}", case.number);
    }
}

#[test]
fn s0_7_a_case_is_a_function_of_its_number() {
    // What every machine finds: a sum over the tokens and the bytes of a few cases.
    let digest = |case: Case| {
        let bytes = case.bytes();
        let tokens = case.expected();
        assert!(tokens.len() == case.rows && tokens.iter().all(|&token| (token as usize) < case.vocabulary));
        let numbers = bytes.iter().map(|&byte| u32::from(byte)).chain(tokens);
        numbers.fold(17_u32, |sum, number| sum.wrapping_mul(31).wrapping_add(number))
    };
    let sum = |make: fn(u64) -> Case| {
        (0..500).map(|number| digest(make(number))).fold(0_u32, |sum, digest| sum.rotate_left(1) ^ digest)
    };
    assert_eq!((sum(Case::number), sum(Case::without_meaning)), (4_184_947_903, 524_099_225));
}

#[test]
fn settings_without_meaning_are_refused() {
    for case in (0..500).map(Case::without_meaning) {
        assert!(case.settings.iter().all(|settings| settings.check().is_err()), "case {}", case.number);
    }
}
