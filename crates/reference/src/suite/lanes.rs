//! Runs several lanes for several steps, and compares each with a session that runs alone, step by step.

use super::compare::{Difference, Failure};
use super::ops;
use crate::Reference;
use ptero_backend::{
    Backend, Error, Executable, Fault, Follow, InputValue, Lane, OutputValue, Place, State, Steps, run_once,
};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Compare};
use ptero_plan::function::Function;
use ptero_plan::graph::{Graph, Input, Op, Output, StateId, Type, ViewOp};
use ptero_plan::host::{Check, HostOp, NumberFault};
use ptero_plan::prim::{Axis, Fold, Prim};
use ptero_tensor::{Bytes, DType};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Positions that the sequence has room for.
const ROOM: i64 = 24;
const WIDTH: i64 = 3;
/// The inputs: the token, its position, and the position at which the call fails.
const TOKEN: usize = 0;
const POSITION: usize = 1;
const FAILS_AT: usize = 2;
/// No position.
const NEVER: i64 = -1;
/// The instruction that fails.
const LOOK_UP: (u32, u32) = (0, 1);

/// Runs three lanes together for some steps and compares them with three that run alone, step by step, on the reference:
/// tokens, ends, wanted lengths, faults, and the next step.
///
/// # Errors
///
/// The first difference.
pub fn check_lanes(backend: &dyn Backend) -> Result<(), Box<Failure>> {
    let graph = Arc::new(graph());
    let check = || {
        let executable = backend.compile(Arc::clone(&graph)).map_err(Difference::refused)?;
        let oracle = Reference.compile(Arc::clone(&graph)).map_err(Difference::reference)?;
        let check = Compared { executable: &*executable, oracle: &*oracle };
        SCENARIOS.iter().try_for_each(|scenario| {
            let run = check.run(scenario);
            run.map_err(|text| Box::new(Difference::Other(format!("{}: {text}", scenario.name))))
        })
    };
    check().map_err(|difference| {
        let (graph, backend) = (Arc::clone(&graph), backend.name());
        Box::new(Failure { primitive: "lanes", seed: 0, number: 0, backend, graph, difference: *difference })
    })
}

/// A run of three lanes.
struct Scenario {
    name: &'static str,
    steps: usize,
    /// By lane: the most tokens that it wants.
    wanted: [usize; 3],
    /// By lane: the index of the token that ends it.
    ends: [Option<usize>; 3],
    /// By lane: the position at which it fails.
    fails_at: [i64; 3],
}

const ALL: usize = usize::MAX;
const ONE_STEP: Scenario =
    Scenario { name: "one step", steps: 1, wanted: [ALL; 3], ends: [None; 3], fails_at: [NEVER; 3] };
const SCENARIOS: &[Scenario] = &[
    ONE_STEP,
    Scenario { name: "many steps", steps: 9, ..ONE_STEP },
    Scenario { name: "wanted lengths", steps: 7, wanted: [2, ALL, 0], ..ONE_STEP },
    Scenario { name: "ends", steps: 8, wanted: [ALL, 6, ALL], ends: [Some(3), None, Some(0)], ..ONE_STEP },
    Scenario { name: "a fault", steps: 6, wanted: [ALL, ALL, 4], fails_at: [NEVER, START + 2, NEVER], ..ONE_STEP },
    Scenario {
        name: "faults at once",
        steps: 5,
        ends: [Some(1), None, None],
        fails_at: [START, START, START + 4],
        ..ONE_STEP
    },
    // More than a device puts on its way at once.
    Scenario {
        name: "a long run",
        steps: 21,
        wanted: [ALL, 19, ALL],
        ends: [Some(18), None, None],
        fails_at: [NEVER, NEVER, START + 17],
    },
    Scenario { name: "more steps than there is room for", steps: 30, ..ONE_STEP },
];

/// The first position after the tokens that every lane gets alone.
const START: i64 = 2;
const FOLLOW: Follow<'static> = Follow { token: 0, feed: TOKEN, count_up: &[POSITION] };

struct Compared<'a> {
    executable: &'a dyn Executable,
    oracle: &'a dyn Executable,
}

/// A sequence on the reference, step by step.
struct Alone {
    state: Box<dyn State>,
    token: u32,
    position: i64,
    fails_at: i64,
}

type Checked<T = ()> = Result<T, String>;

fn text(error: Error) -> String {
    error.to_string()
}

impl Alone {
    /// A sequence that has seen its first tokens.
    fn new(oracle: &dyn Executable, lane: usize, fails_at: i64) -> Checked<Self> {
        let state = oracle.state(7).map_err(text)?;
        let mut alone = Self { state, token: first_token(lane), position: 0, fails_at: NEVER };
        for _ in 0..START {
            alone.token = alone.step(oracle)?.ok_or("the reference fails")?;
        }
        alone.fails_at = fails_at;
        Ok(alone)
    }

    /// The next token, if the step does not fail.
    fn step(&mut self, oracle: &dyn Executable) -> Checked<Option<u32>> {
        give(self.state.as_mut(), [self.token.into(), self.position, self.fails_at])?;
        if run_once(oracle, self.state.as_mut(), &AtomicBool::new(false)).is_err() {
            return Ok(None);
        }
        self.position += 1;
        Ok(Some(token(self.state.as_ref())?))
    }
}

fn first_token(lane: usize) -> u32 {
    11 + 20 * lane as u32
}

fn give(state: &mut dyn State, inputs: [i64; 3]) -> Checked {
    for (input, value) in inputs.into_iter().enumerate() {
        one(state, input, value)?;
    }
    Ok(())
}

fn one(state: &mut dyn State, input: usize, value: i64) -> Checked {
    let value = InputValue::Tensor { dtype: DType::I64, shape: &[1], bytes: &value.to_le_bytes() };
    state.write(input, value).map_err(text)
}

fn token(state: &dyn State) -> Checked<u32> {
    match state.read(0).map_err(text)? {
        OutputValue::Tensor { bytes, .. } => Ok(ptero_tensor::integer(DType::I64, &bytes) as u32),
        OutputValue::Int(_) => Err("the token is no tensor".to_owned()),
    }
}

fn outputs(state: &dyn State) -> Checked<Vec<OutputValue>> {
    (0..3).map(|output| state.read(output).map_err(text)).collect()
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, lane: usize, found: &T, expected: &T) -> Checked {
    if found == expected { Ok(()) } else { Err(format!("lane {lane}: {what} {found:?} instead of {expected:?}")) }
}

impl Compared<'_> {
    fn run(&self, scenario: &Scenario) -> Checked {
        let mut states = (0..3).map(|_| self.executable.state(7).map_err(text)).collect::<Checked<Vec<_>>>()?;
        let mut alone = Vec::new();
        for (lane, state) in states.iter_mut().enumerate() {
            self.begin(lane, state.as_mut())?;
            let started = Alone::new(self.oracle, lane, scenario.fails_at[lane])?;
            give(state.as_mut(), [started.token.into(), started.position, started.fails_at])?;
            alone.push(started);
        }
        let ends = (0..3).map(|lane| self.end_token(scenario, lane)).collect::<Checked<Vec<_>>>()?;
        let stop = AtomicBool::new(false);
        let mut lanes = Vec::new();
        for ((state, ends), wanted) in states.iter_mut().zip(&ends).zip(scenario.wanted) {
            lanes.push(Lane { wanted, ends, ..Lane::new(state.as_mut()) });
        }
        let steps = Steps { count: scenario.steps, follow: Some(FOLLOW), stop: &stop };
        self.executable.run(&mut lanes, &steps).map_err(text)?;
        let results: Vec<(Vec<u32>, Option<Error>)> = lanes.into_iter().map(|lane| (lane.tokens, lane.fault)).collect();
        for (lane, (tokens, fault)) in results.into_iter().enumerate() {
            let state = states[lane].as_mut();
            self.compare(scenario, lane, (&tokens, fault), &ends[lane], &mut alone[lane], state)?;
        }
        Ok(())
    }

    /// Gives a lane its first tokens, alone.
    fn begin(&self, lane: usize, state: &mut dyn State) -> Checked {
        let mut next = first_token(lane);
        for position in 0..START {
            give(state, [next.into(), position, NEVER])?;
            run_once(self.executable, state, &AtomicBool::new(false)).map_err(text)?;
            next = token(state)?;
        }
        Ok(())
    }

    /// The token that ends a lane, from a sequence that goes on without one.
    fn end_token(&self, scenario: &Scenario, lane: usize) -> Checked<Vec<u32>> {
        let Some(end) = scenario.ends[lane] else { return Ok(Vec::new()) };
        let mut alone = Alone::new(self.oracle, lane, NEVER)?;
        for _ in 0..=end {
            alone.token = alone.step(self.oracle)?.ok_or("the reference fails")?;
        }
        Ok(vec![alone.token])
    }

    /// Compares a lane with a sequence that takes its steps one by one, and then the next step of both.
    fn compare(
        &self,
        scenario: &Scenario,
        lane: usize,
        (tokens, fault): (&[u32], Option<Error>),
        ends: &[u32],
        alone: &mut Alone,
        state: &mut dyn State,
    ) -> Checked {
        let (mut expected, mut has_failed) = (Vec::new(), false);
        for _ in 0..scenario.steps.min(scenario.wanted[lane]) {
            let Some(token) = alone.step(self.oracle)? else {
                has_failed = true;
                break;
            };
            expected.push(token);
            alone.token = token;
            if ends.contains(&token) {
                break;
            }
        }
        equal("tokens", lane, &tokens.to_vec(), &expected)?;
        match fault.map(|error| (error.place(), error.fault().clone())) {
            None => equal("fault", lane, &false, &has_failed)?,
            Some((Some(Place::Step { origin, .. }), Fault::IndexOutside { .. })) => {
                equal("fault", lane, &true, &has_failed)?;
                equal("faulty instruction", lane, &origin, &LOOK_UP)?;
            }
            Some((_, Fault::Number(NumberFault::NotWithin { value, .. }))) => {
                equal("fault", lane, &true, &has_failed)?;
                equal("position", lane, &value, &alone.position)?;
                // Both go on with the last position again.
                alone.position = ROOM - 1;
                one(state, POSITION, alone.position)?;
            }
            Some(other) => return Err(format!("lane {lane}: {other:?}")),
        }
        alone.fails_at = NEVER;
        if has_failed {
            // The inputs are those of the step that failed.
            one(state, FAILS_AT, NEVER)?;
        } else {
            if !expected.is_empty() {
                equal("outputs", lane, &outputs(state)?, &outputs(alone.state.as_ref())?)?;
            }
            give(state, [alone.token.into(), alone.position, NEVER])?;
        }
        run_once(self.executable, state, &AtomicBool::new(false)).map_err(text)?;
        alone.step(self.oracle)?.ok_or("the reference fails")?;
        equal("outputs of the next step", lane, &outputs(state)?, &outputs(alone.state.as_ref())?)
    }
}

/// A sequence: a table with a row per position, whose rows so far are summed, and a number that is carried on. The token is
/// computed from all of them.
fn graph() -> Graph {
    let (one, width) = (Dim::fixed(1), Dim::fixed(WIDTH));
    let states = [vec![one.clone()], vec![Dim::fixed(ROOM), width.clone()]];
    let states = states.map(|shape| Type { dtype: DType::I64, shape }).to_vec();
    let mut graph = Graph { states, ..Graph::default() };
    let g = &mut graph;
    let main = ops::new_block(g);
    let [token, position, fails_at] = [0; 3].map(|_| g.value(DType::I64, vec![one.clone()]));
    g.inputs = [token, position, fails_at].map(Input::Tensor).to_vec();
    let at = Dim::var(g.var(HostOp::Element { input: POSITION, at: 0.into() }));
    let int = |f: &Function, value: i64| f.int(Dim::fixed(value), DType::I64);

    // Instruction 0.1 looks up element 0, or one that does not exist at the position that fails.
    let index = ops::map(g, main, [position, fails_at], |f, [position, fails_at]| {
        f.select(f.compare(Compare::Equal, position, fails_at), int(f, 99), int(f, 0))
    });
    let zeros = g.constant(DType::I64, vec![4.into()], Bytes::from(vec![0; 32]));
    let zero = ops::like(g, index);
    let axes = vec![Axis { index: Some(index), coordinate: None }];
    ops::push(g, main, Op::Prim(Prim::Gather { out: zero, x: zeros, axes }));
    let in_room = Check::Within { value: at.clone(), low: 0.into(), high: (ROOM - 1).into(), what: "position" };
    ops::push(g, main, Op::Check(in_room));

    let (carried, table) = (StateId(0), StateId(1));
    let old = ops::read(g, main, carried);
    let new = ops::map(g, main, [old, token, position, zero], |f, [old, token, position, zero]| {
        let scaled = f.binary(Binary::Mul, old, int(f, 31));
        let sum = [token, position, zero].into_iter().fold(scaled, |sum, term| f.binary(Binary::Add, sum, term));
        f.binary(Binary::Remainder, sum, int(f, 1009))
    });
    ops::push(g, main, Op::Write { state: carried, x: new });

    let row = ops::view(g, main, new, vec![one.clone(), width.clone()], ViewOp::Broadcast);
    let row = ops::map(g, main, [row], |f, [x]| f.binary(Binary::Add, x, f.index(1, DType::I64)));
    let rows = ops::read(g, main, table);
    let updated = ops::like(g, rows);
    ops::push(g, main, Op::Update { out: updated, base: rows, new: row, axis: 0, start: at.clone(), step: 1 });
    ops::push(g, main, Op::Write { state: table, x: updated });
    let slice = ViewOp::Slice { axis: 0, start: 0.into(), step: 1 };
    let so_far = ops::view(g, main, updated, vec![&at + &one, width], slice);
    let sum = g.value(DType::I64, vec![one.clone(), one.clone()]);
    ops::push(g, main, Op::Prim(Prim::Reduce { out: sum, x: so_far, axes: vec![0, 1], fold: Fold::Sum }));
    let sum = ops::view(g, main, sum, vec![one], ViewOp::Reshape);
    let next = ops::map(g, main, [sum, token], |f, [sum, token]| {
        f.binary(Binary::Remainder, f.binary(Binary::Add, sum, token), int(f, 97))
    });
    g.outputs = [next, new, updated].map(Output::Tensor).to_vec();
    graph
}
