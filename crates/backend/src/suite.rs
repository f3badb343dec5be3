//! Random plans of one primitive each, run on a backend and on the reference, and compared under the primitive's tolerance.
//!
//! ```no_run
//! # let backend = ptero_backend::Reference;
//! ptero_backend::suite::check(&backend, "softmax", 100, 1).unwrap();
//! ```
//!
//! A case is a function of the primitive's name, a seed and a number: what a failure names can be made again. It runs twice on
//! one state, with other inputs and other sizes the second time, and every buffer that could change is compared whole.

mod attention;
mod compare;
mod conv;
mod data;
mod draft;
mod fork;
mod gated_delta;
mod index;
mod layout;
mod map;
mod matmul;
mod probe;
mod quant;
mod reduce;
mod rng;
mod rope;
mod rows;
mod sample;
#[cfg(test)]
mod tests;

pub use compare::Failure;
pub use fork::check_forks;
pub use layout::CALLS;

use crate::error::Error;
use crate::{Backend, InputValue, OutputValue, Reference, State};
use compare::{Rules, What};
use draft::{Draft, Finished, Given};
use probe::{Probe, Seen};
use ptero_plan::plan::Plan;
use ptero_plan::prim::Prim;
use rng::Rng;
use std::sync::Arc;

/// One row per primitive: its variant, its name, what makes a case of it, and what its results may be off by (the scale that a
/// relative tolerance is of, or what is added to one in units of the last place). A primitive without a row does not build.
macro_rules! primitives {
    ($( $variant:ident $name:literal $make:path, $slack:path; )*) => {
        /// The names of all primitives.
        pub const PRIMITIVES: &[&str] = &[$( $name ),*];

        fn maker(primitive: &str) -> Option<(&'static str, fn(&mut Draft))> {
            match primitive {
                $( $name => Some(($name, $make)), )*
                _ => None,
            }
        }

        /// For each view that it writes, a number per element.
        fn slack(prim: &Prim, seen: &Seen<'_>) -> Vec<Vec<f64>> {
            match prim {
                $( Prim::$variant { .. } => $slack(prim, seen), )*
            }
        }
    };
}

primitives! {
    Map "map" map::case, map::slack;
    Reduce "reduce" reduce::case, reduce::slack;
    ArgReduce "arg-reduce" reduce::arg_case, none;
    Softmax "softmax" rows::softmax_case, rows::softmax_slack;
    Norm "norm" rows::norm_case, rows::norm_slack;
    Rope "rope" rope::case, rope::slack;
    Attention "attention" attention::case, attention::slack;
    MatMul "matmul" matmul::case, matmul::slack;
    QuantMatMul "quant-matmul" quant::matmul_case, quant::matmul_slack;
    Dequantize "dequantize" quant::dequantize_case, none;
    Conv "conv" conv::case, conv::slack;
    Gather "gather" index::gather_case, none;
    Scatter "scatter" index::scatter_case, none;
    Sort "sort" reduce::sort_case, none;
    Cumsum "cumsum" reduce::cumsum_case, reduce::cumsum_slack;
    GatedDelta "gated-delta" gated_delta::case, gated_delta::slack;
    RandomBits "random-bits" index::random_case, none;
    Sample "sample" sample::case, none;
}

/// For results that must be equal to the bit.
fn none(_: &Prim, _: &Seen<'_>) -> Vec<Vec<f64>> {
    Vec::new()
}

/// Runs the first `cases` cases of a primitive.
///
/// # Errors
///
/// The first case that the backend runs otherwise than the reference.
///
/// # Panics
///
/// If there is no primitive of that name.
pub fn check(backend: &dyn Backend, primitive: &str, cases: u64, seed: u64) -> Result<(), Box<Failure>> {
    (0..cases).try_for_each(|number| Case::new(primitive, seed, number).run(backend))
}

/// A plan of one primitive, and what the calls bring.
pub struct Case {
    primitive: &'static str,
    seed: u64,
    number: u64,
    plan: Arc<Plan>,
    finished: Finished,
}

impl Case {
    /// The `number`-th case of a primitive; always the same one for a seed.
    ///
    /// # Panics
    ///
    /// If there is no primitive of that name.
    pub fn new(primitive: &str, seed: u64, number: u64) -> Self {
        let (primitive, make) = maker(primitive).expect("the name is one of `PRIMITIVES`");
        let mut draft = Draft::new(Rng::of_case(primitive, seed, number));
        make(&mut draft);
        let finished = draft.finish();
        Self { primitive, seed, number, plan: Arc::new(finished.plan.clone()), finished }
    }

    /// The plan, as a backend gets it.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Runs the case on a backend and on the reference.
    ///
    /// # Errors
    ///
    /// What differs first.
    pub fn run(&self, backend: &dyn Backend) -> Result<(), Box<Failure>> {
        let (&Self { primitive, seed, number, .. }, plan) = (self, Arc::clone(&self.plan));
        let backend_name = backend.name();
        self.differs(backend)
            .map_err(|what| Box::new(Failure { primitive, seed, number, backend: backend_name, plan, what: *what }))
    }

    fn differs(&self, backend: &dyn Backend) -> Result<(), Box<What>> {
        let probe = Probe::new(&self.plan, &self.finished.tested);
        let start = |backend: &dyn Backend, plan: &Arc<Plan>| {
            backend.compile(Arc::clone(plan))?.state(self.finished.state_seed)
        };
        let mut reference = start(&Reference, &probe.plan).map_err(What::reference)?;
        let mut state = start(backend, &self.plan).map_err(|error| Box::new(What::Refused(error)))?;
        let mut earlier = Vec::new();
        for call in 0..CALLS {
            let expected = self.call(reference.as_mut(), call);
            let found = self.call(state.as_mut(), call);
            match (expected, found) {
                (Err(error), _) if !self.finished.may_fail => return Err(What::reference(error)),
                (Ok(()), Ok(())) => {
                    let rules = probe.rules(reference.as_ref(), &self.finished.values[call], &earlier);
                    earlier = rules.map_err(What::reference)?;
                    self.compare(&earlier, reference.as_ref(), state.as_ref(), call)?;
                }
                (Err(expected), Err(found)) if expected.fault() == found.fault() => {}
                (expected, found) => {
                    return Err(Box::new(What::Fault { call, expected: expected.err(), found: found.err() }));
                }
            }
        }
        Ok(())
    }

    /// Writes what call number `call`, below [`CALLS`], brings, and runs.
    ///
    /// # Errors
    ///
    /// What the state says; some cases are meant to fail.
    pub fn call(&self, state: &mut dyn State, call: usize) -> Result<(), Error> {
        for (input, given) in self.finished.given[call].iter().enumerate() {
            match given {
                Given::Tensor { dtype, shape, bytes } => {
                    state.write(input, InputValue::Tensor { dtype: *dtype, shape, bytes })?;
                }
                Given::Int(value) => state.write(input, InputValue::Int(*value))?,
            }
        }
        state.run()
    }

    fn compare(&self, rules: &[Rules], reference: &dyn State, state: &dyn State, call: usize) -> Result<(), Box<What>> {
        for (output, rules) in rules.iter().enumerate() {
            let expected = reference.read(output).map_err(What::reference)?;
            let found = state.read(output).map_err(|error| Box::new(What::Unread { call, output, error }))?;
            match (expected, found) {
                (
                    OutputValue::Tensor { dtype, shape, bytes },
                    OutputValue::Tensor { dtype: found_dtype, shape: found_shape, bytes: found },
                ) if dtype == found_dtype && shape == found_shape && bytes.len() == found.len() => {
                    compare::tensors(rules, dtype, &bytes, &found).map_err(|element| What::Element {
                        call,
                        output,
                        values: self.finished.values[call].clone(),
                        element,
                    })?;
                }
                (expected, found) => return Err(Box::new(What::Shape { call, output, expected, found })),
            }
        }
        Ok(())
    }
}
