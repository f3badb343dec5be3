//! Compares every primitive with the reference, over random shapes, on every instruction set of this machine (S0.3).

use ptero_backend::{Backend, Executable, InputValue, OutputValue, State, run_once};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_reference::suite::{CALLS, CHAINS, Case, PRIMITIVES, check, check_forks, check_lanes};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// The number of cases; `PTERO_SUITE_CASES` sets another.
fn cases() -> u64 {
    variable("PTERO_SUITE_CASES").unwrap_or(100)
}

/// The seed of the cases; `PTERO_SUITE_SEED` sets another.
fn seed() -> u64 {
    variable("PTERO_SUITE_SEED").unwrap_or(1)
}

#[test]
fn every_primitive_agrees_with_the_reference() {
    for isa in Isa::available() {
        let cpu = Cpu::with(3, isa);
        let failures: Vec<String> = PRIMITIVES
            .iter()
            .chain(CHAINS)
            .filter_map(|primitive| check(&cpu, primitive, cases(), seed()).err())
            .map(|failure| failure.to_string())
            .collect();
        assert!(failures.is_empty(), "on {}:\n{}", isa.name(), failures.join("\n"));
    }
}

fn compile(case: &Case, cpu: &Cpu) -> Box<dyn Executable> {
    cpu.compile(Arc::clone(case.graph())).expect("the graph is sound")
}

/// The outputs of all calls, or their errors.
fn outputs(case: &Case, executable: &dyn Executable, state: &mut dyn State) -> Vec<Result<OutputValue, String>> {
    let mut found = Vec::new();
    for call in 0..CALLS {
        match case.call(executable, state, call) {
            Ok(()) => {
                found.extend((0..case.graph().outputs.len()).map(|output| Ok(state.read(output).expect("it ran"))));
            }
            Err(error) => found.push(Err(error.to_string())),
        }
    }
    found
}

fn alone(case: &Case, cpu: &Cpu) -> Vec<Result<OutputValue, String>> {
    let executable = compile(case, cpu);
    outputs(case, executable.as_ref(), executable.state(1).expect("there is memory").as_mut())
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let isa = Isa::best();
    let [one, two, five] = [1, 2, 5].map(|threads| Cpu::with(threads, isa));
    for primitive in PRIMITIVES {
        for number in 0..cases() / 4 {
            let case = Case::new(primitive, 2, number);
            let expected = alone(&case, &one);
            assert_eq!(expected, alone(&case, &two), "`{primitive}`, case {number}");
            assert_eq!(expected, alone(&case, &five), "`{primitive}`, case {number}");
        }
    }
}

#[test]
fn states_that_run_at_the_same_time_do_not_influence_each_other() {
    let cpu = Cpu::with(3, Isa::best());
    for primitive in PRIMITIVES {
        for number in 0..cases() / 20 {
            let case = Case::new(primitive, 4, number);
            let expected = alone(&case, &cpu);
            let executable = compile(&case, &cpu);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        // Each round drops its state while the others run.
                        for _ in 0..4 {
                            let mut state = executable.state(1).expect("there is memory");
                            let found = outputs(&case, executable.as_ref(), state.as_mut());
                            assert_eq!(found, expected, "`{primitive}`, case {number}");
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn forks_of_a_state_go_their_own_ways() {
    let cpu = Cpu::with(2, Isa::best());
    for primitive in PRIMITIVES {
        check_forks(&cpu, primitive, cases() / 2, 6).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn lanes_run_together_as_each_runs_alone() {
    for isa in Isa::available() {
        check_lanes(&Cpu::with(2, isa)).unwrap_or_else(|failure| panic!("on {}: {failure}", isa.name()));
    }
}

#[test]
fn a_state_outlives_its_executable_and_a_cancelled_run() {
    let cpu = Cpu::with(2, Isa::best());
    for primitive in PRIMITIVES {
        let case = Case::new(primitive, 5, 0);
        let executable = compile(&case, &cpu);
        let mut state = executable.state(1).expect("there is memory");
        assert_eq!(outputs(&case, executable.as_ref(), state.as_mut()), alone(&case, &cpu), "`{primitive}`");
        let again = outputs(&case, executable.as_ref(), state.as_mut());
        let last = again.last().cloned();
        drop(executable);
        if let Some(Ok(last)) = last {
            assert_eq!(state.read(case.graph().outputs.len() - 1).expect("it ran"), last, "`{primitive}`");
        }
        let executable = compile(&case, &cpu);
        let mut state = executable.state(1).expect("there is memory");
        outputs(&case, executable.as_ref(), state.as_mut());
        let stop = AtomicBool::new(true);
        let error = run_once(executable.as_ref(), state.as_mut(), &stop).expect_err("it was cancelled");
        assert!(error.to_string().ends_with("the run was cancelled"), "{error}");
        assert!(case.graph().outputs.is_empty() || state.read(0).is_err());
        assert_eq!(outputs(&case, executable.as_ref(), state.as_mut()), again, "`{primitive}`");
    }
}

/// Results larger than the caches are stored past them; random cases are smaller.
#[test]
fn large_results_are_right_to_their_ends() {
    use ptero_plan::dim::Dim;
    use ptero_plan::expr::{Binary, Expr, Scalar, Step};
    use ptero_plan::graph::{Block, Graph, Input, Node, Op, Output};
    use ptero_plan::prim::{Normalize, Prim};
    use ptero_tensor::DType;
    let mut graph = Graph::default();
    let [x, doubled, normed] = [(); 3].map(|()| graph.value(DType::F32, [1031, 2049].map(Dim::fixed).to_vec()));
    let step = |op, args| Step { op, args, dtype: DType::F32 };
    let steps = vec![step(Scalar::Load(0), [0; 3]), step(Scalar::Binary(Binary::Add), [0, 0, 0])];
    let double = Prim::Map { out: doubled, ins: vec![x], expr: Expr { steps } };
    let norm = Prim::Norm { out: normed, x, weight: None, bias: None, eps: 0.0, kind: Normalize::Rms };
    let nodes = [double, norm].map(|prim| Node { op: Op::Prim(prim), origin: (0, 0) }).to_vec();
    graph.blocks.push(Block { nodes, results: Vec::new() });
    graph.inputs.push(Input::Tensor(x));
    graph.outputs = [doubled, normed].map(Output::Tensor).to_vec();
    let x: Vec<f32> = (0..1031 * 2049_u32).map(|at| if at % 2 == 0 { 3.0 } else { -3.0 }).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let executable = Cpu::with(2, Isa::best()).compile(Arc::new(graph)).expect("sound");
    let mut state = executable.state(0).expect("memory");
    let value = InputValue::Tensor { dtype: DType::F32, shape: &[1031, 2049], bytes: &bytes };
    state.write(0, value).expect("it fits");
    run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false)).expect("it runs");
    for (output, factor) in [(0, 2.0), (1, 1.0 / 3.0)] {
        let OutputValue::Tensor { bytes, .. } = state.read(output).expect("it ran") else { unreachable!() };
        let found = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        assert!(found.zip(&x).all(|(found, x)| (found - factor * x).abs() < 1e-6), "output {output}");
    }
}
