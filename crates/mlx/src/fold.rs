//! Items that the host computes itself.
//!
//! A sampling head branches on its temperature and indexes by its top-k: items of tensors that depend on small inputs only. The
//! host has the bytes of those, so it computes such items with the reference, and no step waits for the device.

use ptero_backend::{Backend, Executable, InputValue, Inputs, OutputValue, integer, run_once};
use ptero_plan::dim::{Dim, Var};
use ptero_plan::graph::{Block, BlockId, Graph, Input, Node, Op, Output, Value};
use ptero_plan::host::{HostBinary, HostOp, early};
use ptero_plan::prim::Prim;
use ptero_reference::Reference;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes of a tensor that is worth computing twice.
const MOST_BYTES: u64 = 256;

/// Items, and their numbers.
pub(crate) type Items = Vec<(Var, i64)>;

/// A graph of the nodes that items depend on.
pub(crate) struct Folding {
    graph: Arc<Graph>,
    executable: Box<dyn Executable>,
    items: Vec<Var>,
    /// The inputs whose elements they depend on.
    inputs: HashSet<usize>,
    /// They depend on nothing else.
    is_pure: bool,
    /// The bytes of those inputs at the last call, and the items: settings rarely change from step to step.
    last: Mutex<(Vec<u8>, Items)>,
}

impl Folding {
    /// That of a graph, if any of its items can be computed so.
    pub(crate) fn of(graph: &Graph) -> Option<Self> {
        // Integers of a session would have to be kept twice.
        if !graph.session_ints.is_empty() {
            return None;
        }
        let mut cone = Cone::new(graph);
        let items = (0..).map(Var).zip(&graph.host);
        let items = items.filter_map(|(var, op)| if let HostOp::Item(value) = op { Some((var, *value)) } else { None });
        let items: Vec<(Var, Value)> = items.filter(|(_, value)| cone.take(*value)).collect();
        let part = Arc::new(cone.graph(&items.iter().map(|(_, value)| *value).collect::<Vec<_>>()));
        let executable = (!items.is_empty()).then(|| Reference.compile(Arc::clone(&part)).ok()).flatten()?;
        let items = items.into_iter().map(|(var, _)| var).collect();
        let numbers = cone.nodes.iter().flat_map(|node| node.op.numbers());
        let is_pure = numbers.into_iter().all(|number| number.as_fixed().is_some());
        Some(Self { graph: part, executable, items, inputs: cone.inputs, is_pure, last: Mutex::default() })
    }

    /// The items of a call; none if the host lacks an input.
    pub(crate) fn items<'a>(
        &self,
        inputs: &Inputs,
        bytes: impl Fn(usize) -> Option<&'a [u8]>,
        is_known: impl Fn(usize) -> bool,
    ) -> Items {
        if !self.inputs.iter().all(|input| is_known(*input)) {
            return Vec::new();
        }
        let key: Vec<u8> = self.inputs.iter().filter_map(|input| bytes(*input)).flatten().copied().collect();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_pure || last.1.is_empty() || last.0 != key {
            *last = (key, self.run(inputs, bytes).unwrap_or_default());
        }
        last.1.clone()
    }

    #[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
    fn run<'a>(&self, inputs: &Inputs, bytes: impl Fn(usize) -> Option<&'a [u8]>) -> Option<Items> {
        let mut state = self.executable.state(0).ok()?;
        let mut host = vec![0; self.graph.host.len()];
        inputs.clone().start(&mut host).ok()?;
        for (input, declared) in self.graph.inputs.iter().enumerate() {
            match declared {
                Input::Int(var) => state.write(input, InputValue::Int(*host.get(var.0 as usize)?)).ok()?,
                Input::Tensor(value) => {
                    let ty = self.graph.ty(*value);
                    let sizes = ty.shape.iter().map(|size| u64::try_from(size.eval(&host)).ok());
                    let shape = sizes.collect::<Option<Vec<u64>>>()?;
                    let value = InputValue::Tensor { dtype: ty.dtype, shape: &shape, bytes: bytes(input)? };
                    state.write(input, value).ok()?;
                }
            }
        }
        run_once(&*self.executable, state.as_mut(), &AtomicBool::new(false)).ok()?;
        let item = |(output, var): (usize, &Var)| match state.read(output).ok()? {
            OutputValue::Tensor { dtype, bytes, .. } if bytes.len() == dtype.size() => {
                Some((*var, i64::from(integer(dtype, &bytes) as i32)))
            }
            OutputValue::Tensor { .. } | OutputValue::Int(_) => None,
        };
        self.items.iter().enumerate().map(|(output, var)| item((output, var))).collect()
    }
}

/// The nodes that some values depend on.
struct Cone<'a> {
    graph: &'a Graph,
    definitions: HashMap<Value, &'a Node>,
    given: HashMap<Value, usize>,
    constants: HashSet<Value>,
    is_early: Vec<bool>,
    /// In an order in which they can run.
    nodes: Vec<&'a Node>,
    taken: HashMap<Value, bool>,
    inputs: HashSet<usize>,
}

impl<'a> Cone<'a> {
    fn new(graph: &'a Graph) -> Self {
        let nodes = graph.blocks.iter().flat_map(|block| &block.nodes);
        let definitions = nodes.flat_map(|node| node.op.outs().into_iter().map(move |out| (out, node)));
        let given = graph.inputs.iter().enumerate().filter_map(|(number, input)| match input {
            Input::Tensor(value) => Some((*value, number)),
            Input::Int(_) => None,
        });
        Self {
            definitions: definitions.collect(),
            given: given.collect(),
            constants: graph.constants.iter().map(|(value, _)| *value).collect(),
            is_early: early(&graph.host),
            nodes: Vec::new(),
            taken: HashMap::new(),
            inputs: HashSet::new(),
            graph,
        }
    }

    /// Takes a value and all that it depends on. Returns `false` if the device has to compute it.
    fn take(&mut self, value: Value) -> bool {
        if let Some(taken) = self.taken.get(&value) {
            return *taken;
        }
        let taken = self.is_small(value) && self.take_new(value);
        self.taken.insert(value, taken);
        taken
    }

    fn take_new(&mut self, value: Value) -> bool {
        if let Some(input) = self.given.get(&value) {
            self.inputs.insert(*input);
            return true;
        }
        if self.constants.contains(&value) {
            return true;
        }
        let Some(node) = self.definitions.get(&value).copied() else { return false };
        let is_simple = match &node.op {
            Op::Prim(prim) => matches!(prim, Prim::Map { .. } | Prim::Reduce { .. } | Prim::ArgReduce { .. }),
            Op::View { .. } | Op::Concat { .. } => true,
            Op::Update { .. } | Op::Read { .. } | Op::Write { .. } | Op::Host(_) | Op::Check(_) => false,
            Op::If { .. } | Op::Loop(_) | Op::Foreign(_) => false,
        };
        let is_early = node.op.numbers().into_iter().all(|number| self.is_known_early(number));
        if !is_simple || !is_early || !node.op.ins().into_iter().all(|value| self.take(value)) {
            return false;
        }
        self.nodes.push(node);
        true
    }

    fn is_known_early(&self, number: &Dim) -> bool {
        number.vars().all(|var| self.is_early.get(var.0 as usize) == Some(&true))
    }

    /// A small tensor of a fixed size.
    fn is_small(&self, value: Value) -> bool {
        let ty = self.graph.ty(value);
        let mut sizes = ty.shape.iter().map(|size| size.as_fixed().and_then(|size| u64::try_from(size).ok()));
        let count = sizes.try_fold(ty.dtype.bytes(), |bytes, size| bytes.checked_mul(size?));
        count.is_some_and(|bytes| bytes <= MOST_BYTES)
    }

    /// The nodes as a graph of their own, with the same numbers for everything.
    fn graph(&self, outputs: &[Value]) -> Graph {
        let nothing = HostOp::Binary(HostBinary::Min, Dim::fixed(0), Dim::fixed(0));
        let host = self.graph.host.iter().zip(&self.is_early);
        let host = host.map(|(op, is_early)| if *is_early { op.clone() } else { nothing.clone() });
        let is_taken = |value: &Value| self.taken.get(value) == Some(&true);
        Graph {
            values: self.graph.values.clone(),
            constants: self.graph.constants.iter().filter(|(value, _)| is_taken(value)).cloned().collect(),
            host: host.collect(),
            inputs: self.graph.inputs.clone(),
            outputs: outputs.iter().copied().map(Output::Tensor).collect(),
            blocks: vec![Block { nodes: self.nodes.iter().copied().cloned().collect(), results: Vec::new() }],
            main: BlockId(0),
            ..Graph::default()
        }
    }
}
