//! Runs programs that sample.

use ptero_backend::{Backend, Executable, InputValue, OutputValue, State, cast, run_once};
use ptero_cpu::Cpu;
use ptero_plan::{Options, lower, passes};
use ptero_pte::schema::{Call, EValue};
use ptero_pte::{DType, Method, Verified};
use ptero_reference::Reference;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(crate) fn backends() -> [Box<dyn Backend>; 2] {
    [Box::new(Reference), Box::new(Cpu::new())]
}

/// A tensor that a method takes or gives.
pub(crate) type Given = (DType, Vec<u64>, Vec<u8>);

pub(crate) fn f32s(shape: &[u64], values: &[f32]) -> Given {
    (DType::F32, shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

pub(crate) fn i64s(shape: &[u64], values: &[i64]) -> Given {
    (DType::I64, shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

pub(crate) fn i32s(shape: &[u64], values: &[i32]) -> Given {
    (DType::I32, shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

pub(crate) fn tokens(given: &Given) -> Vec<i64> {
    assert_eq!(given.0, DType::I64, "a program that samples returns i64 (S0.1)");
    given.2.chunks_exact(8).map(|raw| i64::from_le_bytes(raw.try_into().unwrap())).collect()
}

/// What is drawn with.
#[derive(Clone, Copy)]
pub(crate) struct With {
    pub(crate) temperature: f32,
    pub(crate) top_k: i64,
    pub(crate) top_p: f32,
    pub(crate) seed: Option<i64>,
}

impl With {
    pub(crate) fn seed(seed: i64) -> Self {
        Self { temperature: 1.0, top_k: i64::MAX, top_p: 1.0, seed: Some(seed) }
    }

    pub(crate) fn given(self) -> Vec<Given> {
        let mut given = vec![f32s(&[], &[self.temperature]), i64s(&[], &[self.top_k]), f32s(&[], &[self.top_p])];
        given.extend(self.seed.map(|seed| i64s(&[], &[seed])));
        given
    }
}

/// A method of one delegate, with its state.
pub(crate) struct Session<'a> {
    method: &'a Method,
    executable: Arc<dyn Executable>,
    state: Box<dyn State>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(program: &'a Verified, backend: &dyn Backend) -> Self {
        Self::without(program, backend, &[])
    }

    /// A session of a program that some passes did not run on.
    pub(crate) fn without(program: &'a Verified, backend: &dyn Backend, skip: &[String]) -> Self {
        let method = program.method("forward").unwrap();
        let (_, delegate) = program.delegates("forward").next().unwrap();
        let mut graph = lower(delegate, &Options::default()).unwrap();
        passes::run(&mut graph, &backend.capabilities(), skip);
        let executable: Arc<dyn Executable> = backend.compile(Arc::new(graph)).unwrap().into();
        let state = executable.state(7).unwrap();
        Self { method, executable, state }
    }

    /// Another session of the same program, with state of its own.
    pub(crate) fn another(&self) -> Self {
        let state = self.executable.state(7).unwrap();
        Self { method: self.method, executable: Arc::clone(&self.executable), state }
    }

    /// A session that continues from the same text.
    pub(crate) fn fork(&self) -> Self {
        let state = self.state.fork(7).unwrap();
        Self { method: self.method, executable: Arc::clone(&self.executable), state }
    }

    /// Calls the method with its inputs in its own order.
    pub(crate) fn call(&mut self, given: &[Given]) -> Vec<Given> {
        let Call::Delegate(call) = &self.method.chains[0].instructions[0] else { panic!("one delegate call") };
        assert_eq!(given.len(), self.method.inputs.len());
        let (inputs, outputs) = call.args.split_at(given.len());
        for (at, arg) in inputs.iter().enumerate() {
            let place = self.method.inputs.iter().position(|input| input == arg).unwrap();
            let (dtype, shape, bytes) = &given[place];
            self.state.write(at, InputValue::Tensor { dtype: *dtype, shape, bytes }).unwrap();
        }
        run_once(self.executable.as_ref(), self.state.as_mut(), &AtomicBool::new(false)).unwrap();
        let output = |value: &i32| {
            let at = outputs.iter().position(|output| output == value).unwrap();
            let EValue::Tensor(declared) = &self.method.values[usize::try_from(*value).unwrap()] else { panic!() };
            let OutputValue::Tensor { dtype, shape, bytes } = self.state.read(at).unwrap() else { panic!() };
            let bytes = cast(&bytes, dtype, declared.scalar_type).unwrap();
            (declared.scalar_type, shape, bytes)
        };
        self.method.outputs.iter().map(output).collect()
    }
}
