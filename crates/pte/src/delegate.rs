//! The MLX delegate's graph: slots, chains of nodes, and what is known of the tensors at its border.

use crate::Limits;
use crate::container::{array, u64_at};
use crate::error::{Fault, Result};
use crate::field::{Field, Slot, codes, records};
use crate::nodes::Node;
use crate::wire::{Buffer, Emit, Entry, Out, WireValue};
use ptero_tensor::{DType, byte_count};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

codes! {
    /// What kind of slot an input or output of the graph is.
    SlotType "slot type" {
        /// A tensor.
        0 Tensor,
        /// An integer on the host.
        1 Int,
        /// A float on the host.
        2 Float,
        /// A bool on the host.
        3 Bool,
    }
}

records! {
    /// One size of a tensor: fixed, or known only at run time.
    ShapeDim {
        /// The size, or -1 when it is known only at run time.
        value: i32 = -1,
        /// The least size at run time. Exporters write 2 even where 1 works, so nothing relies on it.
        min_value: i32 = 0,
        /// The greatest size at run time, or -1.
        max_value: i32 = -1,
    }
    /// Shape and element type of a tensor that is not a temporary.
    TensorMeta {
        /// Its sizes.
        shape: Vec<ShapeDim>,
        /// Its element type.
        scalar_type: DType,
        /// The order of its dimensions in memory; absent for row-major.
        dim_order: Option<Vec<u8>>,
    }
    /// A slot of either kind.
    SlotVariant {
        /// Its number among the tensors or among the values.
        idx: u32,
        /// Which of the two, and what it holds.
        slot_type: SlotType,
    }
    /// The name of a slot; that of a constant is the key of its data.
    NamedSlot {
        /// Usually four hex digits, a slash, and the name the tensor had in the model.
        name: String,
        /// The slot.
        slot: SlotVariant,
    }
    /// A graph. Tensor slots are numbered through: constants, inputs, outputs, mutable buffers, temporaries.
    Delegate {
        /// The version of the graph's schema; absent means "1".
        version: Option<String>,
        /// Weights and other constants.
        num_constant_tensors: u32,
        /// Tensors the caller passes.
        num_input_tensors: u32,
        /// Tensors the caller gets.
        num_output_tensors: u32,
        /// State that lives from call to call, zero at first.
        num_mutable_buffer_tensors: u32,
        /// Everything in between.
        num_temp_tensors: u32,
        /// Host values.
        num_values: u32,
        /// The nodes.
        instruction_chains: Chains,
        /// The chain that every call runs.
        main_chain_idx: u32,
        /// The chain that runs once, before the first call; -1 for none.
        init_chain_idx: i32 = -1,
        /// The slots that the caller fills.
        input_map: Vec<SlotVariant> = Vec::new(),
        /// The slots that the caller reads.
        output_map: Vec<SlotVariant> = Vec::new(),
        /// The slots that are state.
        mutable_buffer_map: Vec<SlotVariant> = Vec::new(),
        /// Names of slots.
        named_slots: Vec<NamedSlot> = Vec::new(),
        /// What is known of the tensors that are not temporaries, by slot.
        tensor_meta: Vec<TensorMeta> = Vec::new(),
    }
}

/// The chains of a graph: straight runs of nodes. `If` and `Scan` run one chain from within another.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Chains(pub Vec<Vec<Node>>);

impl Deref for Chains {
    type Target = Vec<Vec<Node>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Chains {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Field for Chains {
    fn get(entry: Entry<'_>) -> Result<Self> {
        let chains = entry.vector(4)?;
        let chain = |at| {
            let nodes = chains.entry(at).table()?.entry(0, 4)?.ok_or(Fault::Missing)?.vector(4)?;
            (0..nodes.len).map(|index| Node::of_instruction(&nodes.entry(index).table()?, at, index)).collect()
        };
        (0..chains.len).map(chain).collect::<Result<_>>().map(Chains)
    }

    fn wire_value(&self) -> WireValue<'_> {
        WireValue::Child(self)
    }
}

struct Chain<'a>(&'a [Node]);

impl Emit for Chains {
    fn emit(&self, out: &mut Out) -> usize {
        let chains: Vec<_> = self.iter().map(|nodes| Chain(nodes)).collect();
        out.vector(4, chains.iter().map(|chain| WireValue::Child(chain)))
    }
}

impl Emit for Chain<'_> {
    fn emit(&self, out: &mut Out) -> usize {
        out.table(&[WireValue::Child(&self.0)])
    }
}

impl Emit for &[Node] {
    fn emit(&self, out: &mut Out) -> usize {
        out.vector(4, self.iter().map(|node| WireValue::Child(node)))
    }
}

/// A node is written as an instruction: a table that holds a union.
impl Emit for Node {
    fn emit(&self, out: &mut Out) -> usize {
        out.table(&self.instruction())
    }
}

/// What a tensor slot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is what its name says")]
pub enum Role {
    Constant,
    Input,
    Output,
    State,
    Temporary,
}

/// Bytes before the graph in a delegate's data.
const HEAD_BYTES: usize = 24;
const MAGIC: [u8; 4] = *b"MLX0";

impl Delegate {
    /// Reads a delegate's data: a 24-byte head and the graph.
    pub(crate) fn parse(data: &[u8], limits: &Limits) -> Result<Self> {
        let magic = array(data, 4)?;
        if magic != MAGIC {
            return Err(Fault::NotAGraph(magic).into());
        }
        let end = u64_at(data, 8)?;
        let graph = usize::try_from(end).ok().and_then(|end| data.get(HEAD_BYTES..end));
        let graph = graph.ok_or(Fault::OutOfBounds { at: HEAD_BYTES as u64, bytes: end, size: data.len() as u64 })?;
        let buffer = Buffer::new(graph, limits);
        crate::field::Record::read(&buffer.root()?)
    }

    /// A delegate's data, as [`Delegate::parse`] reads it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let graph = Out::buffer(&[], self);
        let end = HEAD_BYTES + graph.len().next_multiple_of(16);
        let mut data = [&[0; 4][..], &MAGIC, &(end as u64).to_le_bytes(), &[0; 8], &graph].concat();
        data.resize(end, 0);
        data
    }

    /// Where each role's slots end; temporaries end at the number of tensor slots.
    fn role_ends(&self) -> [(Role, u64); 5] {
        let mut end = 0_u64;
        [
            (Role::Constant, self.num_constant_tensors),
            (Role::Input, self.num_input_tensors),
            (Role::Output, self.num_output_tensors),
            (Role::State, self.num_mutable_buffer_tensors),
            (Role::Temporary, self.num_temp_tensors),
        ]
        .map(|(role, count)| {
            end += u64::from(count);
            (role, end)
        })
    }

    /// The number of tensor slots.
    pub fn tensor_count(&self) -> u64 {
        let [.., (_, end)] = self.role_ends();
        end
    }

    /// What a tensor slot is for, or `None` when there is no such slot.
    pub fn role(&self, tensor: u32) -> Option<Role> {
        self.role_ends().into_iter().find(|(_, end)| u64::from(tensor) < *end).map(|(role, _)| role)
    }

    /// Shape and type of a tensor that is not a temporary.
    pub fn meta(&self, tensor: u32) -> Option<&TensorMeta> {
        self.tensor_meta.get(usize::try_from(tensor).ok()?)
    }

    /// The names of the slots. Where a slot has several, the last counts, as upstream.
    pub fn names(&self) -> HashMap<Slot, &str> {
        self.named_slots.iter().map(|named| (named.slot.slot(), named.name.as_str())).collect()
    }

    /// The chain that runs once, before the first call.
    pub fn init_chain(&self) -> Option<usize> {
        usize::try_from(self.init_chain_idx).ok()
    }

    /// All nodes of all chains.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.instruction_chains.iter().flatten()
    }
}

impl SlotVariant {
    /// The slot.
    pub fn slot(&self) -> Slot {
        match self.slot_type {
            SlotType::Tensor => Slot::Tensor(self.idx),
            SlotType::Int | SlotType::Float | SlotType::Bool => Slot::Value(self.idx),
        }
    }
}

impl ShapeDim {
    /// A size that is known when the program is written.
    pub fn fixed(size: i32) -> Self {
        Self { value: size, min_value: 0, max_value: -1 }
    }

    /// A size between these, known only at run time.
    pub fn between(min: i32, max: i32) -> Self {
        Self { value: -1, min_value: min, max_value: max }
    }
}

impl TensorMeta {
    /// A row-major tensor.
    pub fn new(scalar_type: DType, shape: Vec<ShapeDim>) -> Self {
        Self { shape, scalar_type, dim_order: None }
    }

    /// The sizes, when all of them are fixed.
    pub fn fixed_sizes(&self) -> Option<Vec<u64>> {
        self.shape.iter().map(|dim| u64::try_from(dim.value).ok()).collect()
    }

    /// The bytes of the tensor; an error when a size is not fixed or the product is too large.
    pub fn byte_count(&self) -> Result<u64> {
        let sizes = self.fixed_sizes().ok_or(Fault::NotStatic)?;
        Ok(byte_count(&sizes, self.scalar_type).ok_or(Fault::CountOverflow)?)
    }
}
