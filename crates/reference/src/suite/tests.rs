//! The reference passes its own suite; backends with a fault do not, whatever the primitive.

mod coverage;
mod faulty;
mod forking;
mod lanes;

use super::*;
use faulty::{Faulty, Wrong};

#[test]
fn the_reference_agrees_with_itself() {
    for primitive in PRIMITIVES.iter().chain(CHAINS) {
        check(&Reference, primitive, 60, 1).unwrap();
    }
}

/// How the suite sees a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Nothing,
    /// An element that the tested operation makes.
    Written,
    /// An element that it does not make.
    Untouched,
    /// That they do not fail alike.
    Fault,
    /// Anything else: the faulty graph is one that the reference does not take.
    Other,
}

fn report(case: &Case, wrong: Wrong) -> Report {
    match case.run(&Faulty::new(wrong, &case.finished)).map_err(|failure| failure.difference) {
        Ok(()) => Report::Nothing,
        Err(Difference::Element { element, .. }) if element.rule.is_some() => Report::Written,
        Err(Difference::Element { .. }) => Report::Untouched,
        Err(Difference::Fault { expected: Some(_), .. }) => Report::Fault,
        Err(_) => Report::Other,
    }
}

/// Asserts that of sixty cases of each primitive at least `least` show the fault in this way.
fn assert_seen(primitives: &[&str], wrong: Wrong, expected: &[Report], least: usize) {
    let shows = |primitive: &str, number: u64| expected.contains(&report(&Case::new(primitive, 2, number), wrong));
    let counts = primitives.iter().map(|&name| (name, (0..60).filter(|&number| shows(name, number)).count()));
    let counts: Vec<(&str, usize)> = counts.collect();
    assert!(counts.iter().all(|(_, count)| *count >= least), "{wrong:?} shows in less than {least} of 60: {counts:?}");
}

/// Those that read something themselves; the blocks of a branch do.
fn readers() -> Vec<&'static str> {
    PRIMITIVES.iter().copied().filter(|primitive| !["random-bits", "if"].contains(primitive)).collect()
}

#[test]
fn one_element_off_by_a_hundredth_is_noticed() {
    assert_seen(PRIMITIVES, Wrong::FirstElement, &[Report::Written], 35);
}

#[test]
fn ignored_strides_are_noticed() {
    assert_seen(&readers(), Wrong::Strides, &[Report::Written], 7);
}

#[test]
fn a_last_element_that_is_not_read_is_noticed() {
    assert_seen(&readers(), Wrong::LastOperand, &[Report::Written], 12);
}

#[test]
fn writes_beside_the_window_are_noticed() {
    assert_seen(PRIMITIVES, Wrong::Beside, &[Report::Untouched], 3);
}

#[test]
fn another_parameter_is_noticed() {
    let with_parameters =
        ["reduce", "arg-reduce", "norm", "rope", "attention", "conv", "scatter", "cumsum", "random-bits", "sample"];
    assert_seen(&with_parameters, Wrong::Parameter, &[Report::Written], 20);
}

#[test]
fn inputs_of_the_first_call_in_the_second_are_noticed() {
    assert_seen(&readers(), Wrong::OldInputs, &[Report::Written], 1);
}

#[test]
fn an_index_outside_that_passes_is_noticed() {
    assert_seen(&["gather", "scatter"], Wrong::NeverFails, &[Report::Fault], 2);
}

#[test]
fn a_fault_of_another_instruction_is_noticed() {
    assert_seen(&["gather", "scatter"], Wrong::FailsElsewhere, &[Report::Fault], 2);
}

#[test]
fn a_product_summed_in_another_order_is_noticed_unless_the_device_says_that_it_is_inexact() {
    assert_seen(&["matmul"], Wrong::Backwards, &[Report::Written], 10);
    let passes = |number: &u64| {
        let case = Case::new("matmul", 2, *number);
        case.run(&Faulty::new(Wrong::Backwards, &case.finished).inexact()).is_ok()
    };
    assert_eq!((0..200).filter(passes).count(), 200);
}

#[test]
fn a_product_without_its_function_is_noticed() {
    assert_seen(&["matmul", "quant-matmul"], Wrong::Unfused, &[Report::Written], 6);
}

#[test]
fn a_state_that_is_read_too_late_is_noticed() {
    // What is random is not so often written to a state that holds something else.
    assert_seen(
        &["map", "softmax", "norm", "gated-delta", "scatter", "update"],
        Wrong::LateRead,
        &[Report::Untouched],
        2,
    );
}

#[test]
fn lanes_of_the_reference_are_as_each_alone() {
    check_lanes(&Reference).unwrap();
}

#[test]
fn a_scatter_that_fails_half_way_is_noticed() {
    assert_seen(&["scatter"], Wrong::HalfDone, &[Report::Written, Report::Untouched], 2);
}

#[test]
fn a_failure_tells_how_to_make_it_again_and_what_differs() {
    let failing = (0..).map(|number| Case::new("matmul", 2, number));
    let failure = failing
        .filter_map(|case| case.run(&Faulty::new(Wrong::FirstElement, &case.finished).inexact()).err())
        .find(|failure| matches!(failure.difference, Difference::Element { .. }))
        .unwrap();
    let text = format!("{failure:?}");
    let first = format!("`matmul`, case {} of seed 2, on `faulty`\ncall ", failure.number);
    assert!(text.starts_with(&first), "{text}");
    for part in ["where the reference has", "off by", "Relative(0.0001)", "= matmul(v"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(Case::new("matmul", 2, failure.number).run(&Reference).is_ok());
}
