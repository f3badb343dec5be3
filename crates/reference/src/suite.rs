//! Random graphs of one operation each, run on a backend and on the reference, and compared under the primitive's tolerance.
//!
//! ```no_run
//! # let backend = ptero_reference::Reference;
//! ptero_reference::suite::check(&backend, "softmax", 100, 1).unwrap();
//! ```
//!
//! A case is a function of the primitive's name, a seed and a number, so a failure can be reproduced. It runs twice on one state,
//! with other inputs and sizes the second time, and every state is compared as a whole.

mod attention;
mod chains;
mod compare;
mod control;
mod conv;
mod data;
mod draft;
mod epilogue;
mod fork;
mod gated_delta;
mod index;
mod lanes;
mod map;
mod matmul;
mod moves;
mod ops;
mod probe;
mod programs;
mod quant;
mod reduce;
mod rng;
mod rope;
mod rows;
mod sample;
#[cfg(test)]
mod tests;
mod views;

pub use compare::Failure;
pub use fork::check_forks;
pub use lanes::check_lanes;
pub use programs::check_programs;
pub use views::CALLS;

use crate::Reference;
use compare::{Difference, Rules};
use draft::{Draft, Finished, Given};
use probe::{Probe, Seen, StateRules};
use ptero_backend::{Backend, Error, Executable, InputValue, OutputValue, State, run_once};
use ptero_plan::graph::{Graph, Op, Value};
use ptero_plan::prim::Prim;
use rng::Rng;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One row per primitive: its variant, its name, the function that makes a case of it, and the one that bounds the error of its
/// results on inexact devices (the scale of a relative tolerance, or what is added to one in units of the last place). A primitive
/// without a row does not build. After them, operations that are no primitives: they move elements, and are exact. Last, chains.
macro_rules! primitives {
    (
        [$( $variant:ident $name:literal $make:path, $slack:path; )*]
        [$( $other:literal $other_make:path; )*]
        [$( $chain:literal $chain_make:path; )*]
    ) => {
        /// The names of all primitives, and of other operations that have cases.
        pub const PRIMITIVES: &[&str] = &[$( $name, )* $( $other ),*];

        /// The names of chains of primitives, of which each reads what the one before it makes, as in models: cases of what an exact
        /// device may do at once.
        pub const CHAINS: &[&str] = &[$( $chain ),*];

        fn maker(primitive: &str) -> Option<(&'static str, fn(&mut Draft))> {
            match primitive {
                $( $name => Some(($name, $make)), )*
                $( $other => Some(($other, $other_make)), )*
                $( $chain => Some(($chain, $chain_make)), )*
                _ => None,
            }
        }

        /// For each result, a number per element.
        fn slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
            match prim {
                $( Prim::$variant { .. } => $slack(prim, seen), )*
            }
        }
    };
}

primitives! {
    [
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
    ]
    [
        "concat" moves::concat_case;
        "update" moves::update_case;
        "if" control::if_case;
        "loop" control::loop_case;
    ]
    [
        "norm-product" chains::norm_product;
        "function-product" chains::function_product;
        "cast-norm" chains::cast_norm;
        "delta-cast" chains::delta_cast;
        "filter-function" chains::filter_function;
        "experts" chains::choice_of_experts;
        "norm-products" chains::norm_products;
        "sum-of-experts" chains::sum_of_experts;
    ]
}

/// For results that must be equal to the bit.
fn none(_: &Prim<Value>, _: &Seen<'_>) -> Vec<Vec<f64>> {
    Vec::new()
}

/// Runs the first `cases` cases of a primitive or chain.
///
/// # Errors
///
/// The first case on which the backend and the reference differ.
///
/// # Panics
///
/// If there is no primitive or chain of that name.
pub fn check(backend: &dyn Backend, primitive: &str, cases: u64, seed: u64) -> Result<(), Box<Failure>> {
    (0..cases).try_for_each(|number| Case::new(primitive, seed, number).run(backend))
}

/// A graph of one operation, and the inputs of the calls.
pub struct Case {
    primitive: &'static str,
    seed: u64,
    number: u64,
    graph: Arc<Graph>,
    finished: Finished,
}

impl Case {
    /// The `number`-th case of a primitive or chain; always the same one for a seed.
    ///
    /// # Panics
    ///
    /// If there is no primitive or chain of that name.
    pub fn new(primitive: &str, seed: u64, number: u64) -> Self {
        let (primitive, make) = maker(primitive).expect("the name is one of `PRIMITIVES` or `CHAINS`");
        let mut draft = Draft::new(Rng::of_case(primitive, seed, number));
        make(&mut draft);
        let finished = draft.finish();
        Self { primitive, seed, number, graph: Arc::new(finished.graph.clone()), finished }
    }

    /// The graph, as a backend gets it.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Returns `true` if a product has an epilogue, which not every device offers.
    pub fn has_epilogue(&self) -> bool {
        self.graph.block(self.graph.main).nodes.iter().any(|node| match &node.op {
            Op::Prim(Prim::MatMul { epilogue, .. } | Prim::QuantMatMul { epilogue, .. }) => epilogue.is_some(),
            _ => false,
        })
    }

    /// Runs the case on a backend and on the reference. A case that needs more than the backend offers is skipped.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn run(&self, backend: &dyn Backend) -> Result<(), Box<Failure>> {
        self.check(backend, Self::compare)
    }

    fn check(
        &self,
        backend: &dyn Backend,
        check: fn(&Self, &dyn Backend) -> Result<(), Box<Difference>>,
    ) -> Result<(), Box<Failure>> {
        if self.has_epilogue() && !backend.capabilities().epilogues {
            return Ok(());
        }
        check(self, backend).map_err(|difference| {
            let (&Self { primitive, seed, number, .. }, graph) = (self, Arc::clone(&self.graph));
            Box::new(Failure { primitive, seed, number, backend: backend.name(), graph, difference: *difference })
        })
    }

    fn compare(&self, backend: &dyn Backend) -> Result<(), Box<Difference>> {
        let probe = Probe::new(&self.finished, backend.capabilities().is_inexact);
        let oracle = Reference.compile(Arc::clone(&probe.graph)).map_err(Difference::reference)?;
        let mut reference = oracle.state(self.finished.state_seed).map_err(Difference::reference)?;
        let executable = backend.compile(Arc::clone(&self.graph)).map_err(Difference::refused)?;
        let mut state = executable.state(self.finished.state_seed).map_err(Difference::refused)?;
        let mut earlier = StateRules::new();
        for call in 0..CALLS {
            let expected = self.call(&*oracle, reference.as_mut(), call);
            let found = self.call(&*executable, state.as_mut(), call);
            match (expected, found) {
                (Err(error), _) if !self.finished.may_fail => return Err(Difference::reference(error)),
                (Ok(()), Ok(())) => {
                    let rules = probe.rules(reference.as_ref(), &self.finished, call, &mut earlier);
                    self.compare_outputs(
                        &rules.map_err(Difference::reference)?,
                        reference.as_ref(),
                        state.as_ref(),
                        call,
                    )?;
                }
                (Err(expected), Err(found)) if compare::are_alike(&expected, &found) => {}
                (expected, found) => {
                    return Err(Box::new(Difference::Fault { call, expected: expected.err(), found: found.err() }));
                }
            }
        }
        Ok(())
    }

    /// Writes the inputs of call number `call`, below [`CALLS`], and runs.
    ///
    /// # Errors
    ///
    /// The error of the state; some cases are meant to fail.
    pub fn call(&self, executable: &dyn Executable, state: &mut dyn State, call: usize) -> Result<(), Error> {
        self.write(state, call)?;
        run_once(executable, state, &AtomicBool::new(false))
    }

    /// Writes the inputs of call number `call`, below [`CALLS`].
    ///
    /// # Errors
    ///
    /// The error of the state.
    pub fn write(&self, state: &mut dyn State, call: usize) -> Result<(), Error> {
        for (input, given) in self.finished.given[call].iter().enumerate() {
            match given {
                Given::Tensor { dtype, shape, bytes } => {
                    state.write(input, InputValue::Tensor { dtype: *dtype, shape, bytes })?;
                }
                Given::Int(value) => state.write(input, InputValue::Int(*value))?,
            }
        }
        Ok(())
    }

    fn compare_outputs(
        &self,
        rules: &[Rules],
        reference: &dyn State,
        state: &dyn State,
        call: usize,
    ) -> Result<(), Box<Difference>> {
        let other =
            |output: usize, text: String| Box::new(Difference::Other(format!("call {call}, output {output}: {text}")));
        for (output, rules) in rules.iter().enumerate() {
            let expected = reference.read(output).map_err(Difference::reference)?;
            let found = state.read(output).map_err(|error| other(output, format!("cannot be read: {error}")))?;
            match (expected, found) {
                (
                    OutputValue::Tensor { dtype, shape, bytes },
                    OutputValue::Tensor { dtype: found_dtype, shape: found_shape, bytes: found },
                ) if dtype == found_dtype && shape == found_shape && bytes.len() == found.len() => {
                    compare::tensors(rules, dtype, &bytes, &found).map_err(|element| Difference::Element {
                        call,
                        output,
                        values: self.finished.values[call].clone(),
                        element,
                    })?;
                }
                (expected, found) => {
                    let text = format!("{} instead of {}", compare::type_of(&found), compare::type_of(&expected));
                    return Err(other(output, text));
                }
            }
        }
        Ok(())
    }
}
