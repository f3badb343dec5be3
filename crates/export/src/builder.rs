//! Builds the graph of a delegate: slots are declared in any order and get their numbers at the end, since the format
//! numbers them by what they are for.

mod finish;
mod slots;

pub use finish::Built;
pub(crate) use finish::outer;
pub use slots::{Tensor, Value};

use ptero_pte::field::{Chain, Dst, DstValue};
use ptero_pte::{
    Bytes, DType, Delegate, NamedData, NamedSlot, Node, Role, ShapeDim, Slot, SlotType, SlotVariant, TensorMeta,
};
use ptero_sampling::inputs::Scalar;
use std::collections::HashSet;

/// A graph being built. Nodes go to the chain that is open: the main one, or that of [`GraphBuilder::chain`].
///
/// Handles of one builder mean nothing to another.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    /// The prefix of every name, so that graphs of one program do not share names.
    space: String,
    version: Option<String>,
    /// Tensors by handle.
    tensors: Vec<Declared>,
    values: u32,
    chains: Vec<Vec<Node>>,
    main: usize,
    init: Option<usize>,
    open: usize,
    /// Maps and names hold handles, not slot numbers.
    inputs: Vec<SlotVariant>,
    outputs: Vec<SlotVariant>,
    state: Vec<SlotVariant>,
    names: Vec<NamedSlot>,
    taken: HashSet<String>,
    scalars: Vec<(DType, Vec<u8>, Tensor)>,
    data: Vec<NamedData>,
}

/// What is known of a tensor.
#[derive(Debug)]
struct Declared {
    role: Role,
    /// Absent for temporaries.
    meta: Option<TensorMeta>,
}

impl GraphBuilder {
    /// An empty graph. Its names start with `space` and a slash; upstream takes four hex digits.
    pub fn new(space: &str) -> Self {
        let (space, version) = (space.to_owned(), Some("1".to_owned()));
        Self { space, version, chains: vec![Vec::new()], ..Self::default() }
    }

    /// Continues the graph of a verified program: new nodes follow its own, and [`GraphBuilder::output_at`] returns
    /// handles of its outputs. New data gets names that are not among `taken`.
    pub fn resume(graph: Delegate, taken: impl IntoIterator<Item = String>) -> Self {
        let all = 0..u32::try_from(graph.tensor_count()).unwrap_or(u32::MAX);
        let declared =
            |slot| Declared { role: graph.role(slot).unwrap_or(Role::Temporary), meta: graph.meta(slot).cloned() };
        let names = graph.named_slots.iter().map(|named| named.name.clone());
        let main = usize::try_from(graph.main_chain_idx).unwrap_or(0);
        Self {
            space: space_of(&graph.named_slots).to_owned(),
            tensors: all.map(declared).collect(),
            values: graph.num_values,
            main,
            init: graph.init_chain(),
            open: main,
            taken: taken.into_iter().chain(names).collect(),
            version: graph.version,
            chains: graph.instruction_chains.0,
            inputs: graph.input_map,
            outputs: graph.output_map,
            state: graph.mutable_buffer_map,
            names: graph.named_slots,
            ..Self::default()
        }
    }

    /// Declares the next input.
    pub fn input(&mut self, name: &str, dtype: DType, shape: impl IntoIterator<Item = ShapeDim>) -> Tensor {
        let tensor = self.lasting(Role::Input, name, dtype, shape);
        self.inputs.push(tensor.variant());
        tensor
    }

    /// Declares the next output.
    pub fn output(&mut self, name: &str, dtype: DType, shape: impl IntoIterator<Item = ShapeDim>) -> Tensor {
        let tensor = self.lasting(Role::Output, name, dtype, shape);
        self.outputs.push(tensor.variant());
        tensor
    }

    /// Declares an output that replaces output `index`. The old one becomes a temporary unless it is also another output.
    /// Returns `None` if there is no such output.
    pub fn replace_output(
        &mut self,
        index: usize,
        name: &str,
        dtype: DType,
        shape: impl IntoIterator<Item = ShapeDim>,
    ) -> Option<Tensor> {
        let earlier = self.outputs.get(index)?.clone();
        let tensor = self.lasting(Role::Output, name, dtype, shape);
        *self.outputs.get_mut(index)? = tensor.variant();
        if let Slot::Tensor(old) = earlier.slot()
            && !self.outputs.contains(&earlier)
            && let Some(declared) = usize::try_from(old).ok().and_then(|old| self.tensors.get_mut(old))
            && declared.role == Role::Output
        {
            declared.role = Role::Temporary;
            self.names.retain(|named| named.slot != earlier);
        }
        Some(tensor)
    }

    /// Declares a tensor that keeps its value from call to call and starts as zeros.
    pub fn state(&mut self, name: &str, dtype: DType, sizes: impl IntoIterator<Item = i32>) -> Tensor {
        let tensor = self.lasting(Role::State, name, dtype, sizes.into_iter().map(ShapeDim::fixed));
        self.state.push(tensor.variant());
        tensor
    }

    /// Declares a constant. The size of the data is not checked here, but by [`ptero_pte::Verified`].
    pub fn constant(
        &mut self,
        name: &str,
        dtype: DType,
        sizes: impl IntoIterator<Item = i32>,
        data: impl Into<Bytes>,
    ) -> Tensor {
        let sizes: Vec<i32> = sizes.into_iter().collect();
        let (tensor, key) = self.pending(name, dtype, &sizes);
        self.data.push(NamedData { key, data: data.into() });
        tensor
    }

    /// Declares a constant whose data is written later, and returns it with its name in the program.
    pub fn pending(&mut self, name: &str, dtype: DType, sizes: &[i32]) -> (Tensor, String) {
        let tensor = self.lasting(Role::Constant, name, dtype, sizes.iter().copied().map(ShapeDim::fixed));
        (tensor, self.names.last().map(|named| named.name.clone()).unwrap_or_default())
    }

    /// A constant without dimensions. Values with the same bits share one constant.
    pub fn scalar(&mut self, value: Scalar) -> Tensor {
        let name = match value {
            Scalar::F32(value) => format!("_scalar_{:?}", f64::from(value)),
            Scalar::I32(value) => format!("_scalar_i32_{value}"),
            Scalar::I64(value) => format!("_scalar_{value}"),
        };
        self.scalar_of(&name, value.dtype(), value.to_le_bytes())
    }

    /// A constant without dimensions of any type, by its bytes.
    pub(crate) fn scalar_of(&mut self, name: &str, dtype: DType, bytes: Vec<u8>) -> Tensor {
        let known = self.scalars.iter().find(|(of, known, _)| (*of, known) == (dtype, &bytes));
        known.map(|(_, _, tensor)| *tensor).unwrap_or_else(|| {
            let tensor = self.constant(name, dtype, [], bytes.clone());
            self.scalars.push((dtype, bytes, tensor));
            tensor
        })
    }

    /// Declares a temporary. The slot of a temporary is reused after its last use.
    pub fn temporary(&mut self) -> Tensor {
        self.declare(Role::Temporary, None)
    }

    /// Appends a node to the open chain.
    pub fn emit(&mut self, node: impl Into<Node>) {
        let chain = self.chains.get_mut(self.open).expect("the open chain is one of the chains");
        chain.push(node.into());
    }

    /// Appends a node that writes a new temporary.
    pub fn node<N: Into<Node>>(&mut self, make: impl FnOnce(Dst) -> N) -> Tensor {
        let out = self.temporary();
        self.emit(make(out.dst()));
        out
    }

    /// Appends a node that writes a new host value.
    pub fn value<N: Into<Node>>(&mut self, make: impl FnOnce(DstValue) -> N) -> Value {
        let out = Value(self.values);
        self.values += 1;
        self.emit(make(out.dst()));
        out
    }

    /// A chain for `If` and `Scan` to run, with the nodes that `fill` emits.
    pub fn chain(&mut self, fill: impl FnOnce(&mut Self)) -> Chain {
        let index = self.chains.len();
        self.chains.push(Vec::new());
        let outer = std::mem::replace(&mut self.open, index);
        fill(self);
        self.open = outer;
        Chain(u32::try_from(index).expect("a graph has fewer than 2^32 chains"))
    }

    /// The tensor that is output `index`, if there is one.
    pub fn output_at(&self, index: usize) -> Option<Tensor> {
        match self.outputs.get(index)?.slot() {
            Slot::Tensor(index) => Some(Tensor(index)),
            Slot::Value(_) => None,
        }
    }

    /// The tensor of a slot of the graph that was resumed, if there is one.
    pub(crate) fn tensor_of(&self, slot: Slot) -> Option<Tensor> {
        let Slot::Tensor(index) = slot else { return None };
        self.tensors.get(usize::try_from(index).ok()?).map(|_| Tensor(index))
    }

    /// Forgets a constant that no node reads.
    pub(crate) fn forget(&mut self, slot: u32) {
        let constant = usize::try_from(slot).ok().and_then(|slot| self.tensors.get_mut(slot));
        if let Some(declared) = constant.filter(|declared| declared.role == Role::Constant) {
            *declared = Declared { role: Role::Temporary, meta: None };
            self.names.retain(|named| named.slot != Tensor(slot).variant());
        }
    }

    fn declare(&mut self, role: Role, meta: Option<TensorMeta>) -> Tensor {
        let tensor = Tensor(u32::try_from(self.tensors.len()).expect("a graph has fewer than 2^32 slots"));
        self.tensors.push(Declared { role, meta });
        tensor
    }

    fn lasting(&mut self, role: Role, name: &str, dtype: DType, shape: impl IntoIterator<Item = ShapeDim>) -> Tensor {
        let tensor = self.declare(role, Some(TensorMeta::new(dtype, shape.into_iter().collect())));
        let name = self.unique(name);
        self.names.push(NamedSlot { name, slot: tensor.variant() });
        tensor
    }

    /// The name within the space, with a number after it if it is taken.
    fn unique(&mut self, name: &str) -> String {
        let name = if self.space.is_empty() { name.to_owned() } else { format!("{}/{name}", self.space) };
        let numbered = (1_usize..).map(|number| if number == 1 { name.clone() } else { format!("{name}_{number}") });
        let free = numbered.into_iter().find(|name| !self.taken.contains(name)).unwrap_or_default();
        self.taken.insert(free.clone());
        free
    }
}

/// The prefix before the slash that all names of a graph share, or an empty string.
fn space_of(names: &[NamedSlot]) -> &str {
    let first = names.first().and_then(|named| named.name.split_once('/'));
    let Some((shared, _)) = first else { return "" };
    let is_shared = |named: &NamedSlot| named.name.strip_prefix(shared).is_some_and(|rest| rest.starts_with('/'));
    if names.iter().all(is_shared) { shared } else { "" }
}

impl Tensor {
    fn variant(self) -> SlotVariant {
        SlotVariant { idx: self.0, slot_type: SlotType::Tensor }
    }
}
