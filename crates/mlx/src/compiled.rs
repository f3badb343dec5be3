//! Compiled graphs: weights as arrays, the init block run, and what every session shares.

use crate::block::Builder;
use crate::bridge::Mapped;
use crate::bridge::ffi::{self, Kind, Values};
use crate::fold::Folding;
use crate::frame::{Frame, NONE, device, sizes};
use crate::kind::kind;
use crate::quant::{Table, decode};
use crate::view::view;
use cxx::UniquePtr;
use ptero_backend::number::Element;
use ptero_backend::{Fault, InputTypes, Inputs, Loading, Place, Result};
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Graph, Input, Node, Op, Value, ViewOp};
use ptero_plan::host::early;
use ptero_plan::prim::{Prim, QuantFormat, Quantized};
use ptero_sampling::threefry::KeySequence;
use ptero_tensor::DType;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Where things lie among the arrays: the values of the graph come first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMap {
    /// The states.
    pub(crate) states: u32,
    /// The states as they were before each of two steps.
    pub(crate) saved: u32,
    /// The outputs of each of two steps.
    pub(crate) outputs: u32,
    /// What the indices of each of two steps were.
    pub(crate) checks: u32,
    /// The tables of small floats.
    pub(crate) tables: u32,
    /// Weights that were decoded when the graph was compiled.
    decoded: u32,
    /// Intermediate results.
    pub(crate) temporaries: u32,
}

/// A graph and what all its sessions share.
pub(crate) struct Compiled {
    pub(crate) graph: Arc<Graph>,
    pub(crate) slots: SlotMap,
    pub(crate) inputs: Arc<InputTypes>,
    /// The operations of the host that run before anything else.
    pub(crate) advance: Vec<Node>,
    /// By host value: `true` if it is known before anything runs.
    pub(crate) is_early: Vec<bool>,
    /// The host values of the init block.
    pub(crate) host: Vec<i64>,
    /// The constants, the values of the init block, and zeroed states.
    pub(crate) values: UniquePtr<Values>,
    /// The values that a call makes.
    pub(crate) made: Vec<u32>,
    /// By value: what it repeats, if it is a broadcast.
    narrow: HashMap<Value, Value>,
    /// By value: `true` for constants and their views, which no call makes anew.
    fixed: Vec<bool>,
    /// By weights in blocks of GGUF: where they lie decoded.
    decoded: HashMap<Value, u32>,
    /// The states that are kept to undo a step. The others can go back to any position: what a step wrote too far is overwritten
    /// before it is read.
    pub(crate) saved: Vec<u32>,
    /// By scales and biases of weights, and weights of norms: where they lie widened, where the CPU multiplies in f32.
    widened: HashMap<Value, u32>,
    /// Items that the host computes from the inputs, without the device.
    pub(crate) folding: Option<Folding>,
}

pub(crate) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(NONE)
}

impl Compiled {
    pub(crate) fn new(graph: Arc<Graph>, loading: &Loading) -> Result<Self> {
        let nodes = || graph.blocks.iter().flat_map(|block| &block.nodes);
        let narrow = nodes().filter_map(|node| match &node.op {
            Op::View { out, x, how: ViewOp::Broadcast } => Some((*out, *x)),
            _ => None,
        });
        let narrow = narrow.collect();
        let (states, outputs) = (number(graph.states.len()), number(graph.outputs.len()));
        let mut slots = SlotMap {
            states: number(graph.values.len()),
            saved: 0,
            outputs: 0,
            checks: 0,
            tables: 0,
            decoded: 0,
            temporaries: 0,
        };
        slots.saved = slots.states + states;
        slots.outputs = slots.saved + 2 * states;
        slots.checks = slots.outputs + 2 * outputs;
        slots.tables = slots.checks + 2;
        slots.decoded = slots.tables + number(Table::ALL.len());
        let mut compiled = Self {
            inputs: Arc::new(InputTypes::of(&graph)),
            advance: graph.advance(),
            is_early: early(&graph.host),
            host: vec![0; graph.host.len()],
            values: ffi::new_values(graph.values.len()),
            made: Vec::new(),
            narrow,
            fixed: vec![false; graph.values.len()],
            decoded: HashMap::new(),
            saved: saved(&graph),
            widened: HashMap::new(),
            folding: Folding::of(&graph),
            slots,
            graph,
        };
        compiled.load(loading)?;
        compiled.init()?;
        compiled.zero_states()?;
        compiled.made = compiled.list_made();
        Ok(compiled)
    }

    /// What an index repeats, if it is a broadcast.
    pub(crate) fn narrow(&self, value: Value) -> Option<Value> {
        self.narrow.get(&value).copied()
    }

    /// Returns `true` if no call makes the value.
    pub(crate) fn is_fixed(&self, value: Value) -> bool {
        self.fixed.get(value.0 as usize) == Some(&true)
    }

    fn fix(&mut self, value: Value) {
        self.fixed.get_mut(value.0 as usize).into_iter().for_each(|fixed| *fixed = true);
    }

    /// Where weights in blocks lie decoded.
    pub(crate) fn decoded(&self, codes: Value) -> Option<u32> {
        self.decoded.get(&codes).copied()
    }

    /// Scales or biases in f32, if they were widened.
    pub(crate) fn widened(&self, value: Value) -> u32 {
        self.widened.get(&value).copied().unwrap_or(value.0)
    }

    /// Constants: shown where they are mapped, decoded where MLX does not know their format.
    fn load(&mut self, loading: &Loading) -> Result<()> {
        let graph = Arc::clone(&self.graph);
        let nodes = graph.blocks.iter().flat_map(|block| &block.nodes);
        let blocks: HashMap<Value, _> = nodes
            .filter_map(|node| match &node.op {
                Op::Prim(Prim::QuantMatMul { w, .. } | Prim::Dequantize { w, .. }) => match w.format {
                    QuantFormat::Gguf(kind) => Some((w.codes, kind)),
                    QuantFormat::Words { .. } => None,
                },
                _ => None,
            })
            .collect();
        // Weights that are decoded are read a second time for that.
        let times = |value: &Value| if blocks.contains_key(value) { 2 } else { 1 };
        let work = loading.begin(graph.constants.iter().map(|(value, bytes)| times(value) * bytes.len() as u64).sum());
        for (value, bytes) in &graph.constants {
            let ty = graph.ty(*value);
            // A constant of a type that is not computed with has no uses.
            let Ok(element) = Element::new(ty.dtype) else { continue };
            let (shape, kind) = (sizes(&ty.shape, ty.dtype.bytes(), &[])?, kind(ty.dtype)?);
            let count = shape.iter().map(|&size| usize::try_from(size).unwrap_or(0)).product::<usize>();
            let shown = bytes.get(..count * element.bytes()).unwrap_or_default();
            // MLX reads elements as the machine does.
            let is_aligned = shown.as_ptr().addr().is_multiple_of(element.bytes());
            if is_aligned && !shown.is_empty() {
                let owner = Mapped::new(bytes.clone());
                self.values.pin_mut().borrow(value.0, owner, shown, &shape, kind).map_err(device)?;
            } else {
                self.values.pin_mut().store(value.0, shown, &shape, kind).map_err(device)?;
            }
            self.fix(*value);
            work.loaded(bytes.len());
        }
        self.fix_views()?;
        for (value, gguf) in blocks {
            if !self.is_fixed(value) {
                continue;
            }
            let ty = graph.ty(value);
            let shape = sizes(&ty.shape, ty.dtype.bytes(), &[])?;
            let mut bytes = vec![0; shape.iter().map(|&size| usize::try_from(size).unwrap_or(0)).product()];
            self.values.pin_mut().read(value.0, &mut bytes).map_err(device)?;
            let (floats, shape) = decode(gguf, &bytes, &shape)?;
            let slot = self.slots.decoded + number(self.decoded.len());
            self.values.pin_mut().store(slot, &floats, &shape, Kind::F32).map_err(device)?;
            self.decoded.insert(value, slot);
            work.loaded(bytes.len());
        }
        for (table, slot) in Table::ALL.into_iter().zip(self.slots.tables..) {
            self.values.pin_mut().store(slot, &table.bytes(), &[256], Kind::F32).map_err(device)?;
        }
        self.slots.temporaries = self.slots.decoded + number(self.decoded.len());
        if ffi::device().map_err(device)?.is_gpu { Ok(()) } else { self.widen() }
    }

    /// Makes the views of constants. One that cannot be made is left to the call, which reports it.
    fn fix_views(&mut self) -> Result<()> {
        let graph = Arc::clone(&self.graph);
        let mut values = std::mem::replace(&mut self.values, UniquePtr::null());
        let mut made = Vec::new();
        for node in &graph.block(graph.main).nodes {
            let Op::View { out, x, how } = &node.op else { continue };
            let is_fixed =
                self.is_fixed(*x) && node.op.numbers().into_iter().chain(&graph.ty(*out).shape).all(is_number);
            let mut keys = KeySequence::new(0);
            if is_fixed && view(&mut Frame::new(self, values.pin_mut(), Vec::new(), &mut keys), *out, *x, how).is_ok() {
                self.fix(*out);
                made.push(out.0);
            }
        }
        values.pin_mut().eval(&made).map_err(device)?;
        self.values = values;
        Ok(())
    }

    /// Widens scales and biases of products, and weights of norms, once, which MLX would do at every step: its kernels for the CPU
    /// take one type only.
    fn widen(&mut self) -> Result<()> {
        let graph = Arc::clone(&self.graph);
        let scales = graph.blocks.iter().flat_map(|block| &block.nodes).filter_map(|node| match &node.op {
            Op::Prim(Prim::QuantMatMul { w: Quantized { scales, biases, .. }, .. }) => Some([*scales, *biases]),
            Op::Prim(Prim::Norm { weight, bias, .. }) => Some([*weight, *bias]),
            _ => None,
        });
        let is_short = |value: &Value| matches!(graph.ty(*value).dtype, DType::F16 | DType::Bf16);
        for value in scales.flatten().flatten().filter(is_short) {
            if !self.is_fixed(value) || self.widened.contains_key(&value) {
                continue;
            }
            let slot = self.slots.temporaries;
            self.values.pin_mut().cast(slot, value.0, Kind::F32).map_err(device)?;
            self.values.pin_mut().eval(&[slot]).map_err(device)?;
            self.widened.insert(value, slot);
            self.slots.temporaries += 1;
        }
        Ok(())
    }

    /// Runs the init block, before there are inputs and states.
    fn init(&mut self) -> Result<()> {
        let Some(init) = self.graph.init else { return Ok(()) };
        let (inputs, stop) = (Inputs::new(Arc::clone(&self.inputs)), AtomicBool::new(false));
        let mut values = std::mem::replace(&mut self.values, UniquePtr::null());
        let host = std::mem::take(&mut self.host);
        let mut keys = KeySequence::new(0);
        let mut frame = Frame::new(self, values.pin_mut(), host, &mut keys);
        let builder = Builder { inputs: &inputs, stop: &stop };
        // Checks compare the inputs of a call.
        let numbers = self.advance.iter().filter(|node| matches!(node.op, Op::Host(_)));
        let numbers: Vec<Node> = numbers.cloned().collect();
        builder.advance(&mut frame, &numbers)?;
        let built = builder.block(&mut frame, init);
        frame.settle()?;
        built?;
        let host = frame.host;
        let made = outs(&self.graph, init);
        let used: Vec<u32> = made.into_iter().map(|value| value.0).collect();
        values.pin_mut().eval(&used).map_err(device)?;
        (self.values, self.host) = (values, host);
        Ok(())
    }

    fn zero_states(&mut self) -> Result<()> {
        for (index, ty) in self.graph.states.iter().enumerate() {
            let here = |fault: Fault| fault.at(Place::State(index));
            let (shape, kind) = (sizes(&ty.shape, ty.dtype.bytes(), &[]).map_err(here)?, kind(ty.dtype).map_err(here)?);
            let slot = self.slots.states + number(index);
            self.values.pin_mut().zeros(slot, &shape, kind).map_err(device).map_err(here)?;
        }
        Ok(())
    }

    /// The values that a call makes: all but constants, inputs, and what the init block made.
    fn list_made(&self) -> Vec<u32> {
        let mut stays = self.fixed.clone();
        let inputs = self.graph.inputs.iter().filter_map(|input| match input {
            Input::Tensor(value) => Some(*value),
            Input::Int(_) => None,
        });
        let init = self.graph.init.map(|init| outs(&self.graph, init)).unwrap_or_default();
        for value in inputs.chain(init) {
            stays.get_mut(value.0 as usize).into_iter().for_each(|stays| *stays = true);
        }
        (0..).zip(stays).filter(|(_, stays)| !stays).map(|(slot, _)| slot).collect()
    }
}

fn is_number(dim: &Dim) -> bool {
    dim.as_fixed().is_some()
}

/// The values that a block defines at its own level.
fn outs(graph: &Graph, block: ptero_plan::graph::BlockId) -> Vec<Value> {
    graph.block(block).nodes.iter().flat_map(|node| node.op.outs()).collect()
}

/// The states that must be kept to undo a step: all but those with room of their own for every position. What is kept cannot be
/// changed in place.
fn saved(graph: &Graph) -> Vec<u32> {
    let is_saved = |state: &u32| {
        // The graph as if it wrote no other state.
        let mut alone = graph.clone();
        let is_other = |node: &Node| matches!(node.op, Op::Write { state: written, .. } if written.0 != *state);
        alone.blocks.iter_mut().for_each(|block| block.nodes.retain(|node| !is_other(node)));
        !keeps_positions(&alone)
    };
    let states = 0..number(graph.states.len());
    if keeps_positions(graph) { Vec::new() } else { states.filter(is_saved).collect() }
}

/// Whether some input counts positions that every state has room of its own for.
fn keeps_positions(graph: &Graph) -> bool {
    let room = graph.blocks.iter().flat_map(|block| &block.nodes).filter_map(|node| match &node.op {
        Op::Update { base, axis, .. } => graph.ty(*base).shape.get(*axis)?.as_fixed(),
        _ => None,
    });
    let context = room.min().and_then(|room| usize::try_from(room).ok());
    graph.states.is_empty()
        || context.is_some_and(|room| (0..graph.inputs.len()).any(|input| graph.keeps_positions(Some(input), room)))
}
