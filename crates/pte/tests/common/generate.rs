//! Random programs that pass verification, made from the table of nodes. Tests and examples start from them.

use ptero_pte::field::{Collected, Dst, DstValue, Fed, Slot, Src, Use};
use ptero_pte::nodes::{IdCopy, Node, SymSize};
use ptero_pte::schema::{Bool, ContainerMetadata, Double, EValue, Int, IntList, Tensor, Text};
use ptero_pte::{
    Bytes, Chains, DType, Delegate, Method, NamedData, NamedSlot, Program, Role, ShapeDim, SlotType, SlotVariant,
    SplitMix64, TensorMeta,
};
use std::collections::BTreeSet;

/// A source of random numbers: the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(SplitMix64);

impl Rng {
    /// Starts at `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "an endless source is no iterator")]
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`, or 0 when `end` is.
    #[allow(clippy::cast_possible_truncation, reason = "a remainder of a u32 is a u32")]
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }

    /// One of the items, which must not be empty.
    #[allow(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "the remainder is below the length")]
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.next() as usize % items.len()]
    }

    /// Any byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let [byte, ..] = self.next().to_le_bytes();
        byte
    }
}

/// A program of about `nodes` nodes that passes verification: a method `forward` and metadata of every kind.
pub(crate) fn program(rng: &mut Rng, nodes: u32) -> Program {
    let graph = Weaver::new(rng).graph(nodes);
    let names = graph.named_slots.iter().take(graph.num_constant_tensors as usize);
    let named_data = names.zip(&graph.tensor_meta).map(|(named, meta)| {
        let bytes = meta.byte_count().expect("constants have fixed sizes");
        NamedData { key: named.name.clone(), data: (0..bytes).map(|_| rng.byte()).collect::<Vec<_>>().into() }
    });
    let named_data = named_data.collect();
    let constants = vec![Bytes::default(), (0..12).collect::<Vec<u8>>().into()];
    let mut methods = vec![forward(rng, graph)];
    let heads = Tensor { data_buffer_idx: 1, allocation_info: None, ..Tensor::new(DType::I32, vec![3]) };
    methods.extend([
        Method::metadata("get_max_seq_len", int(1 + i64::from(rng.below(4096)))),
        Method::metadata("use_sampling", EValue::Bool(Bool { bool_val: rng.below(2) == 1 })),
        Method::metadata("rope_base", EValue::Double(Double { double_val: 5e5 })),
        Method::metadata("get_name", EValue::Text(Text { string_val: format!("random {}", rng.below(1000)) })),
        Method {
            values: vec![EValue::IntList(IntList { items: vec![1, 1] }), int(7)],
            ..Method::metadata("get_eos_ids", int(0))
        },
        Method::metadata("get_kv_heads", EValue::Tensor(heads)),
    ]);
    Program { methods, constants, mutable_data: Vec::new(), named_data, external_data: Vec::new() }
}

fn int(int_val: i64) -> EValue {
    EValue::Int(Int { int_val })
}

/// The method that calls the graph. Its inputs may be in another order than the graph's.
fn forward(rng: &mut Rng, graph: Delegate) -> Method {
    let value = |slot: &SlotVariant| {
        let meta = graph.meta(slot.idx).expect("inputs and outputs are described");
        let bound = |dim: &ShapeDim| if dim.value == -1 { dim.max_value } else { dim.value };
        EValue::Tensor(Tensor::new(meta.scalar_type, meta.shape.iter().map(bound).collect()))
    };
    let values: Vec<EValue> = graph.input_map.iter().chain(&graph.output_map).map(value).collect();
    let args: Vec<i32> = (0..).take(values.len()).collect();
    let (inputs, outputs) = args.split_at(graph.input_map.len());
    let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
    let mut method = Method::of_graph("forward", graph, values, inputs, outputs);
    let container = ContainerMetadata { encoded_inp_str: "[]".to_owned(), encoded_out_str: String::new() };
    method.container = Some(container);
    if rng.below(2) == 1 {
        method.inputs.reverse();
    }
    method
}

/// Weaves random nodes into chains in which nothing is read before it is written.
struct Weaver<'a> {
    rng: &'a mut Rng,
    graph: Delegate,
    /// Slots that hold something at this point.
    held: BTreeSet<Slot>,
    depth: usize,
}

impl<'a> Weaver<'a> {
    fn new(rng: &'a mut Rng) -> Self {
        let graph = Delegate {
            version: Some("1".to_owned()),
            num_constant_tensors: rng.below(4),
            num_input_tensors: 1 + rng.below(3),
            num_output_tensors: 1 + rng.below(2),
            num_mutable_buffer_tensors: rng.below(3),
            num_temp_tensors: 1 + rng.below(12),
            num_values: 1 + rng.below(6),
            instruction_chains: Chains::default(),
            main_chain_idx: 0,
            init_chain_idx: -1,
            input_map: Vec::new(),
            output_map: Vec::new(),
            mutable_buffer_map: Vec::new(),
            named_slots: Vec::new(),
            tensor_meta: Vec::new(),
        };
        Self { rng, graph, held: BTreeSet::new(), depth: 0 }
    }

    fn graph(mut self, nodes: u32) -> Delegate {
        self.border();
        self.graph.instruction_chains.push(Vec::new());
        let first_input = self.graph.num_constant_tensors;
        self.put(0, SymSize { a: Src(first_input), dim: 0, out: DstValue(0) }.into());
        for _ in 0..nodes {
            self.random_node(0);
        }
        for output in self.graph.output_map.clone() {
            self.ensure(0, output.slot());
        }
        if self.graph.num_constant_tensors > 0 && self.rng.below(2) == 1 {
            let copy = IdCopy { x: Src(0), out: Dst(self.graph.num_constant_tensors - 1) };
            self.graph.init_chain_idx = i32::try_from(self.graph.instruction_chains.len()).expect("few chains");
            self.graph.instruction_chains.push(vec![copy.into()]);
        }
        self.graph
    }

    /// Describes and names every slot that is not a temporary, and fills the maps.
    fn border(&mut self) {
        let lasting = u32::try_from(self.graph.tensor_count()).expect("few slots") - self.graph.num_temp_tensors;
        for idx in 0..lasting {
            let role = self.graph.role(idx);
            let meta = self.random_meta(role == Some(Role::Input));
            self.graph.tensor_meta.push(meta);
            let slot = SlotVariant { idx, slot_type: SlotType::Tensor };
            self.graph.named_slots.push(NamedSlot { name: format!("{:04x}/slot_{idx}", idx * 77), slot: slot.clone() });
            let map = match role {
                Some(Role::Input) => &mut self.graph.input_map,
                Some(Role::Output) => &mut self.graph.output_map,
                Some(Role::State) => &mut self.graph.mutable_buffer_map,
                Some(Role::Constant | Role::Temporary) | None => {
                    self.held.insert(slot.slot());
                    continue;
                }
            };
            map.push(slot.clone());
            if role != Some(Role::Output) {
                self.held.insert(slot.slot());
            }
        }
    }

    fn random_meta(&mut self, may_vary: bool) -> TensorMeta {
        let dtypes = [DType::F32, DType::Bf16, DType::F16, DType::I64, DType::I32, DType::U32, DType::U8, DType::Bool];
        let scalar_type = *self.rng.pick(&dtypes);
        let shape: Vec<ShapeDim> = (0..self.rng.below(4)).map(|_| self.random_dim(may_vary)).collect();
        let dim_order = (self.rng.below(2) == 1).then(|| (0..).take(shape.len()).collect());
        TensorMeta { shape, scalar_type, dim_order }
    }

    fn random_dim(&mut self, may_vary: bool) -> ShapeDim {
        if may_vary && self.rng.below(4) == 0 {
            return ShapeDim { value: -1, min_value: 2, max_value: 64 };
        }
        ShapeDim { value: self.rng.below(5).cast_signed(), min_value: 0, max_value: -1 }
    }

    fn put(&mut self, chain: usize, node: Node) {
        node.uses(&mut |_, used| {
            if let Use::Write(slot) | Use::Collect(slot) = used {
                self.held.insert(slot);
            }
        });
        self.graph.instruction_chains.get_mut(chain).into_iter().for_each(|nodes| nodes.push(node.clone()));
    }

    /// Makes sure that a tensor slot holds something, by copying another into it.
    fn ensure(&mut self, chain: usize, slot: Slot) {
        if let Slot::Tensor(out) = slot
            && !self.held.contains(&slot)
        {
            let x = self.readable(Slot::Tensor(0));
            self.put(chain, IdCopy { x: Src(x), out: Dst(out) }.into());
        }
    }

    /// A slot of the same kind that holds something; input and first value always do.
    fn readable(&mut self, kind: Slot) -> u32 {
        let same = |slot: &Slot| match (kind, *slot) {
            (Slot::Tensor(_), Slot::Tensor(index)) | (Slot::Value(_), Slot::Value(index)) => Some(index),
            (Slot::Tensor(_), Slot::Value(_)) | (Slot::Value(_), Slot::Tensor(_)) => None,
        };
        let held: Vec<u32> = self.held.iter().filter_map(same).collect();
        *self.rng.pick(&held)
    }

    /// A slot of the same kind that may be written: no constant.
    fn writable(&mut self, kind: Slot) -> u32 {
        match kind {
            Slot::Value(_) => self.rng.below(self.graph.num_values),
            Slot::Tensor(_) => {
                let first = self.graph.num_constant_tensors;
                let count = u32::try_from(self.graph.tensor_count()).expect("few slots") - first;
                first + self.rng.below(count)
            }
        }
    }

    fn random_node(&mut self, chain: usize) {
        let tag = self.rng.pick(Node::ROWS).tag;
        let Some(mut node) = Node::sample(tag, &mut self.rng.0) else { return };
        if let Node::RandomBits(bits) = &mut node {
            bits.width = *self.rng.pick(&[1, 2, 4]);
        }
        if let Node::Scan(scan) = &mut node {
            scan.originals = vec![Src(0)];
            scan.sliced = vec![Fed(0)];
            scan.outputs = vec![Collected(0); scan.outputs.len().min(2)];
        }
        let (mut fed, mut collected, mut chains) = (Vec::new(), Vec::new(), 0);
        node.rewire(&mut |used| match used {
            Use::Read(slot) => self.readable(slot),
            Use::Write(slot) => self.writable(slot),
            Use::Feed(slot) => {
                let index = self.writable(slot);
                fed.push(Slot::Tensor(index));
                index
            }
            Use::Collect(slot) => {
                let index = self.writable(slot);
                collected.push(Slot::Tensor(index));
                index
            }
            Use::Chain(index) => {
                chains += 1;
                index
            }
        });
        if chains > 0 && self.depth >= 2 {
            return;
        }
        self.held.extend(fed);
        let mut bodies = self.bodies(chains, &collected).into_iter();
        node.rewire(&mut |used| match used {
            Use::Chain(index) => bodies.next().unwrap_or(index),
            Use::Read(slot) | Use::Feed(slot) | Use::Collect(slot) | Use::Write(slot) => match slot {
                Slot::Tensor(index) | Slot::Value(index) => index,
            },
        });
        self.put(chain, node);
    }

    /// Alternative chains; afterwards what all of them filled is held.
    fn bodies(&mut self, count: usize, collected: &[Slot]) -> Vec<u32> {
        let before = self.held.clone();
        let mut after: Option<BTreeSet<Slot>> = None;
        let mut bodies = Vec::new();
        self.depth += 1;
        for _ in 0..count {
            self.held = before.clone();
            let body = self.graph.instruction_chains.len();
            self.graph.instruction_chains.push(Vec::new());
            for _ in 0..self.rng.below(4) {
                self.random_node(body);
            }
            for slot in collected {
                self.ensure(body, *slot);
            }
            bodies.push(u32::try_from(body).expect("few chains"));
            after = Some(after.map_or_else(|| self.held.clone(), |held| &held & &self.held));
        }
        self.depth -= 1;
        self.held = after.unwrap_or(before);
        bodies
    }
}
