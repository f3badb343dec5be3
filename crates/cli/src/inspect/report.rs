//! What `inspect` has to say of a program, as data: the text, the JSON and the page are three views of it.

use super::sampling;
use ptero_export::FILES;
use ptero_pte::schema::{Call, EValue, Tensor, TensorShapeDynamism};
use ptero_pte::{
    Bytes, DType, Datum, Delegate, Method, NamedData, Node, Program, Role, ShapeDim, Slot, TensorMeta, Use,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A program, as it is shown.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The file, without its folder.
    pub file: String,
    /// Its size.
    pub file_bytes: u64,
    /// The version of ptero that looked.
    pub ptero: &'static str,
    /// Why the program is not sound, if it is not.
    pub problem: Option<String>,
    /// The constant methods and their values.
    pub metadata: Map<String, Value>,
    /// The files that it carries, and their sizes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, u64>,
    /// The other methods.
    pub methods: Vec<MethodReport>,
}

/// A method that does something.
#[derive(Debug, Serialize)]
pub struct MethodReport {
    /// Its name.
    pub name: String,
    /// What the caller gives.
    pub inputs: Vec<ValueReport>,
    /// What the caller gets.
    pub outputs: Vec<ValueReport>,
    /// The runtimes that execute parts of it.
    pub delegates: Vec<String>,
    /// The kernels it calls outside any delegate.
    pub kernels: Vec<String>,
    /// The graph that ptero runs.
    pub graph: Option<GraphReport>,
    /// Further graphs, where a method was split.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_graphs: Vec<GraphReport>,
}

/// An input or output.
#[derive(Debug, Serialize)]
pub struct ValueReport {
    /// Its name in the graph that takes or gives it.
    pub name: Option<String>,
    /// `tensor`, or another kind of value.
    pub kind: &'static str,
    /// Its element type.
    pub dtype: Option<&'static str>,
    /// Its sizes: the largest, where they vary.
    pub shape: Option<Vec<i32>>,
    /// Its sizes with their ranges.
    pub dims: Option<Vec<Dim>>,
}

/// A size.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum Dim {
    /// The same in every call.
    Fixed(i32),
    /// Known only at run time.
    Range {
        /// The least; exporters say 2 even where 1 works.
        min: i32,
        /// The greatest, if there is one.
        max: Option<i32>,
    },
}

/// A graph.
#[derive(Debug, Serialize)]
pub struct GraphReport {
    /// How many nodes of each kind, under upstream's names.
    pub nodes: BTreeMap<String, usize>,
    /// How many in all.
    pub node_count: usize,
    /// The constants.
    pub weights: Holdings,
    /// What lives from call to call.
    pub state: Holdings,
    /// How it draws tokens, if it does.
    pub sampling: Option<String>,
    /// Kernels that come as Metal source, with how often they occur.
    pub foreign_kernels: Vec<String>,
    /// The chain that every call runs.
    pub main_chain: u32,
    /// The chain that runs once.
    pub init_chain: Option<usize>,
    /// Everything that is not a temporary.
    pub tensors: Vec<TensorReport>,
    /// The nodes.
    pub chains: Vec<Vec<NodeReport>>,
}

/// Bytes held.
#[derive(Debug, Serialize, Default, PartialEq, Eq)]
pub struct Holdings {
    /// In all; data that several tensors share counts once.
    pub bytes: u64,
    /// By how many tensors.
    pub tensors: usize,
    /// By element type.
    pub by_dtype: BTreeMap<&'static str, u64>,
}

/// A tensor that is not a temporary.
#[derive(Debug, Serialize)]
pub struct TensorReport {
    /// Its slot.
    pub slot: String,
    /// What it is for.
    pub role: &'static str,
    /// Its name.
    pub name: Option<String>,
    /// Its element type.
    pub dtype: &'static str,
    /// Its sizes; -1 where they vary.
    pub shape: Vec<i32>,
    /// Its size, where that is fixed.
    pub bytes: Option<u64>,
    /// Where in its file a constant's data starts.
    pub offset: Option<usize>,
}

/// A node.
#[derive(Debug, Serialize)]
pub struct NodeReport {
    /// Upstream's name.
    pub op: String,
    /// The notation of `--nodes`.
    pub text: String,
    /// Its fields.
    pub fields: Map<String, Value>,
    /// The slots it reads.
    pub reads: Vec<String>,
    /// The slots it writes.
    pub writes: Vec<String>,
    /// The chains it runs.
    pub chains: Vec<u32>,
}

impl Report {
    /// Looks at everything in a program but the contents of its weights.
    pub fn new(program: &Program, file: String, file_bytes: u64, problem: Option<String>) -> Self {
        let data = program.data_by_name();
        let (mut metadata, mut methods) = (Map::new(), Vec::new());
        for method in &program.methods {
            let value = method.constant().map(|value| constant(program, method, value));
            match value.or_else(|| method.ints().map(|ints| json!(ints))) {
                Some(value) => drop(metadata.insert(method.name.clone(), value)),
                None => methods.push(MethodReport::new(method, &data)),
            }
        }
        let carried = |entry: &NamedData| Some((entry.key.strip_prefix(FILES)?.to_owned(), entry.data.len() as u64));
        let files = program.named_data.iter().filter_map(carried).collect();
        Self { file, file_bytes, ptero: env!("CARGO_PKG_VERSION"), problem, metadata, files, methods }
    }
}

/// Elements of a constant that are worth showing.
const SHOWN_ELEMENTS: usize = 1024;

fn constant(program: &Program, method: &Method, value: &EValue) -> Value {
    match value {
        EValue::Null(_) => Value::Null,
        EValue::Int(int) => json!(int.int_val),
        EValue::Bool(bool) => json!(bool.bool_val),
        EValue::Double(double) => json!(double.double_val),
        EValue::Text(text) => json!(text.string_val),
        EValue::DoubleList(list) => json!(list.items),
        EValue::BoolList(list) => json!(list.items),
        // Integers of a list are values of the method themselves. Only plain ones are followed, and only once.
        EValue::IntList(list) => {
            let item = |index: &i64| match usize::try_from(*index).ok().and_then(|index| method.values.get(index)) {
                Some(EValue::Int(int)) => json!(int.int_val),
                _ => Value::Null,
            };
            list.items.iter().map(item).collect()
        }
        EValue::Tensor(tensor) => tensor_elements(program, tensor).unwrap_or_else(|| json!(tensor_text(tensor))),
        EValue::TensorList(_) | EValue::OptionalTensorList(_) => json!(value.kind()),
    }
}

fn tensor_text(tensor: &Tensor) -> String {
    format!("{} {:?}", tensor.scalar_type, tensor.sizes)
}

fn tensor_elements(program: &Program, tensor: &Tensor) -> Option<Value> {
    let data = program.tensor_data(tensor).ok()??;
    let width = usize::try_from(tensor.scalar_type.bytes()).ok()?;
    if data.len() > SHOWN_ELEMENTS * width {
        return None;
    }
    let element = |raw: &[u8]| {
        Some(match tensor.scalar_type {
            DType::U8 => json!(raw.first()?),
            DType::Bool => json!(*raw.first()? != 0),
            DType::I32 => json!(i32::from_le_bytes(raw.try_into().ok()?)),
            DType::I64 => json!(i64::from_le_bytes(raw.try_into().ok()?)),
            DType::F32 => json!(f32::from_le_bytes(raw.try_into().ok()?)),
            DType::F64 => json!(f64::from_le_bytes(raw.try_into().ok()?)),
            _ => return None,
        })
    };
    let elements: Option<Vec<Value>> = data.chunks_exact(width).map(element).collect();
    match (tensor.sizes.as_slice(), elements?) {
        ([], mut one) => one.pop(),
        (_, all) => Some(Value::Array(all)),
    }
}

impl MethodReport {
    fn new(method: &Method, data: &HashMap<&str, &Bytes>) -> Self {
        let mut graphs = method.mlx_delegates().map(|(_, graph)| GraphReport::new(graph, data));
        let borders = borders(method);
        let border = |indices: &[i32]| indices.iter().map(|&index| ValueReport::new(method, index, &borders)).collect();
        let mut kernels: Vec<String> = method.operators.iter().map(|operator| operator.name.clone()).collect();
        kernels.dedup();
        Self {
            name: method.name.clone(),
            inputs: border(&method.inputs),
            outputs: border(&method.outputs),
            delegates: method.delegates.iter().map(|delegate| delegate.id.clone()).collect(),
            kernels,
            graph: graphs.next(),
            more_graphs: graphs.collect(),
        }
    }
}

/// What the graph that takes or gives a value knows of it.
struct Border<'a> {
    name: Option<&'a str>,
    meta: Option<&'a TensorMeta>,
}

/// The values that enter or leave a graph, found through the arguments of the delegate calls.
fn borders(method: &Method) -> HashMap<i32, Border<'_>> {
    let mut borders = HashMap::new();
    let graphs: HashMap<usize, (&Delegate, HashMap<Slot, &str>)> =
        method.mlx_delegates().map(|(index, graph)| (index, (graph, graph.names()))).collect();
    for call in method.chains.iter().flat_map(|chain| &chain.instructions) {
        let Call::Delegate(call) = call else { continue };
        let graph = usize::try_from(call.delegate_index).ok().and_then(|index| graphs.get(&index));
        let Some((graph, names)) = graph else { continue };
        for (value, slot) in call.args.iter().zip(graph.input_map.iter().chain(&graph.output_map)) {
            let name = names.get(&slot.slot()).map(|name| short_name(name));
            borders.entry(*value).or_insert(Border { name, meta: graph.meta(slot.idx) });
        }
    }
    borders
}

/// Characters of a name that are shown where it could be repeated without end.
const SHOWN_NAME: usize = 256;

impl ValueReport {
    fn new(method: &Method, index: i32, borders: &HashMap<i32, Border<'_>>) -> Self {
        let value = usize::try_from(index).ok().and_then(|index| method.values.get(index));
        let border = borders.get(&index);
        let name = border.and_then(|border| border.name).map(|name| name.chars().take(SHOWN_NAME).collect());
        let Some(EValue::Tensor(tensor)) = value else {
            return Self { name, kind: value.map_or("missing", EValue::kind), dtype: None, shape: None, dims: None };
        };
        let dims = match border.and_then(|border| border.meta) {
            Some(meta) if meta.shape.len() == tensor.sizes.len() => meta.shape.iter().map(dim).collect(),
            _ => tensor.sizes.iter().map(|&size| outer_dim(size, tensor.shape_dynamism)).collect(),
        };
        Self {
            name,
            kind: "tensor",
            dtype: Some(tensor.scalar_type.name()),
            shape: Some(tensor.sizes.clone()),
            dims: Some(dims),
        }
    }
}

fn dim(dim: &ShapeDim) -> Dim {
    match dim.value {
        -1 => Dim::Range { min: dim.min_value, max: (dim.max_value != -1).then_some(dim.max_value) },
        fixed => Dim::Fixed(fixed),
    }
}

fn outer_dim(size: i32, dynamism: TensorShapeDynamism) -> Dim {
    match dynamism {
        TensorShapeDynamism::Static => Dim::Fixed(size),
        TensorShapeDynamism::DynamicBound => Dim::Range { min: 0, max: Some(size) },
        TensorShapeDynamism::DynamicUnbound => Dim::Range { min: 0, max: None },
    }
}

/// The name a tensor had in its model: without the four hex digits that exporters put before it.
pub(super) fn short_name(name: &str) -> &str {
    match name.split_once('/') {
        Some((prefix, rest)) if prefix.len() == 4 && prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) => rest,
        _ => name,
    }
}

fn upstream_name(node: &Node) -> String {
    format!("{}Node", node.name())
}

impl GraphReport {
    fn new(graph: &Delegate, data: &HashMap<&str, &Bytes>) -> Self {
        let names: HashMap<Slot, &str> =
            graph.names().into_iter().map(|(slot, name)| (slot, short_name(name))).collect();
        let (mut nodes, mut kernels) = (BTreeMap::new(), BTreeMap::new());
        for node in graph.nodes() {
            *nodes.entry(upstream_name(node)).or_default() += 1;
            if let Node::MetalKernel(kernel) = node {
                *kernels.entry(kernel.name.clone()).or_insert(0_usize) += 1;
            }
        }
        let kernel = |(name, count): (String, usize)| if count == 1 { name } else { format!("{name} ×{count}") };
        let tensors = tensors(graph, data);
        let chains = graph.instruction_chains.iter();
        Self {
            node_count: graph.nodes().count(),
            nodes,
            weights: holdings(graph, Role::Constant, data),
            state: holdings(graph, Role::State, data),
            sampling: sampling::describe(graph),
            foreign_kernels: kernels.into_iter().map(kernel).collect(),
            main_chain: graph.main_chain_idx,
            init_chain: graph.init_chain(),
            tensors,
            chains: chains.map(|nodes| nodes.iter().map(|node| NodeReport::new(node, &names)).collect()).collect(),
        }
    }
}

/// The slots of a role, with what is known of them.
fn slots_of(graph: &Delegate, role: Role) -> impl Iterator<Item = (u32, &TensorMeta)> {
    (0_u32..).zip(&graph.tensor_meta).filter(move |(slot, _)| graph.role(*slot) == Some(role))
}

fn holdings(graph: &Delegate, role: Role, data: &HashMap<&str, &Bytes>) -> Holdings {
    let names = graph.names();
    let mut holdings = Holdings::default();
    let mut seen = HashSet::new();
    for (slot, meta) in slots_of(graph, role) {
        holdings.tensors += 1;
        let window = names.get(&Slot::Tensor(slot)).and_then(|name| data.get(name));
        let window = window.map(|data| (data.as_ptr() as usize, data.len()));
        if window.is_none_or(|window| seen.insert(window)) {
            let bytes = meta.byte_count().unwrap_or(0);
            holdings.bytes = holdings.bytes.saturating_add(bytes);
            let of_type = holdings.by_dtype.entry(meta.scalar_type.name()).or_default();
            *of_type = of_type.saturating_add(bytes);
        }
    }
    holdings
}

fn tensors(graph: &Delegate, data: &HashMap<&str, &Bytes>) -> Vec<TensorReport> {
    let names = graph.names();
    let tensor = |(slot, meta): (u32, &TensorMeta)| {
        let name = names.get(&Slot::Tensor(slot)).copied();
        let role = match graph.role(slot)? {
            Role::Constant => "constant",
            Role::Input => "input",
            Role::Output => "output",
            Role::State => "state",
            Role::Temporary => return None,
        };
        Some(TensorReport {
            slot: Slot::Tensor(slot).to_string(),
            role,
            name: name.map(|name| short_name(name).to_owned()),
            dtype: meta.scalar_type.name(),
            shape: meta.shape.iter().map(|dim| dim.value).collect(),
            bytes: meta.byte_count().ok(),
            offset: name.filter(|_| role == "constant").and_then(|name| data.get(name)).map(|data| data.offset()),
        })
    };
    (0_u32..).zip(&graph.tensor_meta).filter_map(tensor).collect()
}

impl NodeReport {
    fn new(node: &Node, names: &HashMap<Slot, &str>) -> Self {
        let (mut reads, mut writes, mut chains) = (Vec::new(), Vec::new(), Vec::new());
        node.uses(&mut |_, used| match used {
            Use::Read(slot) => reads.push(slot.to_string()),
            Use::Feed(slot) | Use::Collect(slot) | Use::Write(slot) => writes.push(slot.to_string()),
            Use::Chain(chain) => chains.push(chain),
        });
        Self {
            op: upstream_name(node),
            text: node.notation(&|slot| names.get(&slot).copied()).to_string(),
            fields: node.fields().into_iter().map(|(name, datum)| (name.to_owned(), value(&datum))).collect(),
            reads,
            writes,
            chains,
        }
    }
}

fn value(datum: &Datum) -> Value {
    match datum {
        Datum::Absent => Value::Null,
        Datum::Bool(bool) => json!(bool),
        Datum::Int(int) => json!(int),
        Datum::Single(float) => json!(float),
        Datum::Double(float) => json!(float),
        Datum::Text(text) => json!(text),
        Datum::Word(word) => json!(word),
        Datum::Slot(slot) => json!(slot.to_string()),
        Datum::Chain(chain) => json!(chain),
        Datum::List(items) => items.iter().map(value).collect(),
    }
}
