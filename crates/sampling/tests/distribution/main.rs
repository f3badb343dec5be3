//! The distribution of what the reference draws, and proof that these tests would find a sampler that is wrong.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    missing_docs,
    unreachable_pub,
    reason = "a test, whose counts are far below 2^53"
)]

mod checks;
mod inverse;
mod statistics;
mod targets;
mod wrong;

use checks::{
    Draws, Figures, Keying, Sampler, Wrong, draws_follow, greedy_takes_the_first, neighbours_are_independent,
    nothing_is_poisoned, seeds_repeat,
};
use ptero_sampling::reference::{Keys, sample};
use ptero_sampling::settings::Settings;
use statistics::kolmogorov_smirnov;
use targets::{ADJUSTMENTS, FILTERS, adjusted, filter, shape, shapes};
use wrong::Fault;

const REFERENCE: Sampler<'_> = &|logits, vocabulary, settings: &Settings, keys: Keys<'_>| {
    sample(logits, vocabulary, std::slice::from_ref(settings), keys)
};

/// Runs the reference, prints what it found and gives it back.
fn passes(shape: &targets::Shape, (name, settings): (&str, Settings), draws: Draws) -> Figures {
    let what = format!("{} {name} {:?} {}", shape.name, draws.keying, draws.groups * draws.draws);
    let figures = draws_follow(REFERENCE, shape, &settings, draws).unwrap_or_else(|wrong| panic!("{what}: {wrong:?}"));
    let least = figures.p_values.iter().copied().fold(1.0, f64::min);
    println!(
        "{what}: p {:.3}, of groups at least {least:.4}, uniform {:.3}, total variation {:.5}",
        figures.p_value, figures.uniformity, figures.variation
    );
    figures
}

/// The p-values of many tests are uniform, too.
fn all_are_uniform(figures: &[Figures]) {
    let drawn = figures.iter().filter(|figures| figures.p_values.iter().any(|p| *p < 1.0));
    let p_values: Vec<f64> = drawn.flat_map(|figures| figures.p_values.iter().copied()).collect();
    let uniformity = kolmogorov_smirnov(&p_values);
    println!("{} p-values: uniform {uniformity:.4}", p_values.len());
    assert!(uniformity > 1e-3, "{uniformity}");
}

#[test]
fn s0_8_a_million_rows_of_a_batch_follow_softmax() {
    let figures = (100..)
        .zip(shapes())
        .map(|(stream, shape)| passes(&shape, ("none", Settings::PLAIN), Draws::million(Keying::Batch, stream)));
    all_are_uniform(&figures.collect::<Vec<_>>());
}

#[test]
fn s0_8_a_million_seeds_follow_softmax() {
    let figures = (0..)
        .zip(["zipf", "realistic"])
        .map(|(stream, name)| passes(&shape(name), ("none", Settings::PLAIN), Draws::million(Keying::Seeds, stream)));
    all_are_uniform(&figures.collect::<Vec<_>>());
}

#[test]
fn s0_8_a_million_draws_with_each_filter_follow_what_it_leaves() {
    let filters = (200..).zip(FILTERS).skip(1);
    let figures =
        filters.map(|(stream, filter)| passes(&shape("realistic"), filter, Draws::million(Keying::Batch, stream)));
    all_are_uniform(&figures.collect::<Vec<_>>());
}

#[test]
fn s0_8_every_distribution_with_each_filter_follows_what_it_leaves() {
    let both =
        shapes().into_iter().flat_map(|shape| FILTERS.into_iter().skip(1).map(move |filter| (shape.clone(), filter)));
    let figures = (1000..).zip(both).map(|(stream, (shape, filter))| {
        passes(&shape, filter, Draws { keying: Keying::Seeds, stream, groups: 20, draws: 2500 })
    });
    all_are_uniform(&figures.collect::<Vec<_>>());
}

#[test]
fn s0_8_a_million_draws_after_penalties_biases_and_a_mask_follow_what_these_leave() {
    let shape = shape("realistic");
    let sampler: Sampler<'_> = &|logits, vocabulary, settings: &Settings, keys: Keys<'_>| {
        let mut logits: Vec<f32> = shape.logits.iter().copied().cycle().take(logits.len()).collect();
        logits.chunks_exact_mut(vocabulary).for_each(|row| ADJUSTMENTS.apply(row));
        sample(&logits, vocabulary, std::slice::from_ref(settings), keys)
    };
    for (stream, (name, settings)) in (500..).zip([FILTERS[0], FILTERS[7]]) {
        let draws = Draws::million(Keying::Batch, stream);
        let figures =
            draws_follow(sampler, &adjusted(&shape), &settings, draws).unwrap_or_else(|wrong| panic!("{wrong:?}"));
        println!("adjusted {name}: p {:.3}, total variation {:.5}", figures.p_value, figures.variation);
    }
}

#[test]
fn s0_8_neighbouring_seeds_and_rows_are_independent() {
    for keying in [Keying::Seeds, Keying::Batch] {
        let p = neighbours_are_independent(REFERENCE, Draws::million(keying, 300));
        println!("pairs of neighbours, {keying:?}: p {:.3}", p.unwrap_or_else(|wrong| panic!("{keying:?}: {wrong:?}")));
    }
}

#[test]
fn s0_8_the_same_seed_gives_the_same_token() {
    assert_eq!(seeds_repeat(REFERENCE, &shape("realistic")), Ok(()));
}

#[test]
fn s0_4_and_s0_5_the_rare_cases_of_the_reference_are_right() {
    assert_eq!(greedy_takes_the_first(REFERENCE), Ok(()));
    assert_eq!(nothing_is_poisoned(REFERENCE), Ok(()));
}

/// Which check must find a fault, and what it must say.
fn found(fault: Fault) -> Wrong {
    let sampler = wrong::sampler(fault);
    let follows = |shape_name: &str, filter_name: &str| {
        let draws = Draws::million(Keying::Batch, 400);
        draws_follow(&sampler, &shape(shape_name), &filter(filter_name), draws).map(|_| ())
    };
    let result = match fault {
        Fault::None => panic!("nothing to find"),
        Fault::NoCap | Fault::HalfNoise => nothing_is_poisoned(&sampler),
        Fault::SixteenBits => follows("geometric", "none"),
        Fault::Sign => follows("realistic", "none"),
        Fault::CrossingDropped => follows("realistic", "top-p"),
        Fault::TiesDropped => follows("two-level", "top-k"),
        Fault::HalfMasses => follows("zipf", "top-p"),
        Fault::MinPOfAll => follows("zipf", "min-p"),
        Fault::Multiplied => follows("realistic", "hot"),
        Fault::LastOfTies => greedy_takes_the_first(&sampler),
        Fault::SeedBitLost => neighbours_are_independent(&sampler, Draws::million(Keying::Seeds, 400)).map(|_| ()),
        Fault::RowIgnored => neighbours_are_independent(&sampler, Draws::million(Keying::Batch, 400)).map(|_| ()),
        Fault::Stateful => seeds_repeat(&sampler, &shape("realistic")),
    };
    result.expect_err("the check must find the fault")
}

#[test]
fn s0_8_the_checks_find_every_fault() {
    let faults = [
        Fault::NoCap,
        Fault::SixteenBits,
        Fault::HalfNoise,
        Fault::Sign,
        Fault::CrossingDropped,
        Fault::TiesDropped,
        Fault::HalfMasses,
        Fault::MinPOfAll,
        Fault::Multiplied,
        Fault::LastOfTies,
        Fault::SeedBitLost,
        Fault::RowIgnored,
        Fault::Stateful,
    ];
    for fault in faults {
        println!("{fault:?}: {:?}", found(fault));
    }
}

#[test]
fn s0_8_an_independent_sampler_without_a_fault_draws_the_same_tokens() {
    // It takes its logarithms from the standard library and its masses in f64: at most the odd token may differ.
    let twin = wrong::sampler(Fault::None);
    let (mut draws, mut differ) = (0, 0);
    for shape in shapes() {
        for (_, settings) in FILTERS {
            let rows = shape.logits.repeat(3000);
            let (ours, theirs) = (
                REFERENCE(&rows, 64, &settings, Keys::Shared([0, 9])),
                twin(&rows, 64, &settings, Keys::Shared([0, 9])),
            );
            draws += ours.len();
            differ += ours.iter().zip(&theirs).filter(|(a, b)| a != b).count();
        }
    }
    println!("{differ} of {draws} differ");
    assert!(differ <= 2, "{differ} of {draws}");
    assert_eq!(greedy_takes_the_first(&twin), Ok(()));
    assert_eq!(nothing_is_poisoned(&twin), Ok(()));
    assert_eq!(seeds_repeat(&twin, &shape("realistic")), Ok(()));
}
