//! The contents of a program as data: text, JSON and page are three views of it.

use super::sampling;
use ptero::short_name;
use ptero_export::FILES;
use ptero_pte::schema::{Call, EValue, Tensor, TensorShapeDynamism};
use ptero_pte::{
    Bytes, DType, Datum, Delegate, Method, NamedData, Node, Program, Role, ShapeDim, Slot, TensorMeta, Use,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A program.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The file name, without the folder.
    pub file: String,
    /// The size of the file.
    pub file_bytes: u64,
    /// The version of ptero.
    pub ptero: &'static str,
    /// Why the program is not valid; `None` if it is.
    pub problem: Option<String>,
    /// The methods that return a constant, and their values.
    pub metadata: Map<String, Value>,
    /// The files inside the program, and their sizes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, u64>,
    /// The other methods.
    pub methods: Vec<MethodReport>,
}

/// A method that computes something.
#[derive(Debug, Serialize)]
pub struct MethodReport {
    /// Its name.
    pub name: String,
    /// The inputs.
    pub inputs: Vec<ValueReport>,
    /// The outputs.
    pub outputs: Vec<ValueReport>,
    /// The delegates that it calls.
    pub delegates: Vec<String>,
    /// The kernels that it calls outside of delegates.
    pub kernels: Vec<String>,
    /// The first graph that ptero runs.
    pub graph: Option<GraphReport>,
    /// The other graphs, if the method was split.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_graphs: Vec<GraphReport>,
}

/// An input or output.
#[derive(Debug, Serialize)]
pub struct ValueReport {
    /// Its name in the graph.
    pub name: Option<String>,
    /// `tensor` or another kind of value.
    pub kind: &'static str,
    /// Its element type.
    pub dtype: Option<&'static str>,
    /// Its sizes, or their upper bounds.
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
    /// Different from call to call.
    Range {
        /// The minimum; exporters write 2 even if 1 works.
        min: i32,
        /// The maximum, if there is one.
        max: Option<i32>,
    },
}

/// A graph.
#[derive(Debug, Serialize)]
pub struct GraphReport {
    /// The number of nodes of each kind, by upstream's names.
    pub nodes: BTreeMap<String, usize>,
    /// The number of nodes.
    pub node_count: usize,
    /// The constants.
    pub weights: Holdings,
    /// The state that is kept from call to call.
    pub state: Holdings,
    /// How it samples tokens; `None` if it does not.
    pub sampling: Option<String>,
    /// Kernels that come as Metal source, with the number of their uses.
    pub foreign_kernels: Vec<String>,
    /// The chain that every call runs.
    pub main_chain: u32,
    /// The chain that runs once.
    pub init_chain: Option<usize>,
    /// All tensors except temporaries.
    pub tensors: Vec<TensorReport>,
    /// The nodes.
    pub chains: Vec<Vec<NodeReport>>,
}

/// The memory of a group of tensors.
#[derive(Debug, Serialize, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The total; data that tensors share counts once.
    pub bytes: u64,
    /// The number of tensors.
    pub tensors: usize,
    /// Bytes by element type.
    pub by_dtype: BTreeMap<&'static str, u64>,
}

/// A tensor that is not a temporary.
#[derive(Debug, Serialize)]
pub struct TensorReport {
    /// Its slot.
    pub slot: String,
    /// `constant`, `input`, `output` or `state`.
    pub role: &'static str,
    /// Its name.
    pub name: Option<String>,
    /// Its element type.
    pub dtype: &'static str,
    /// Its sizes; -1 for one that varies.
    pub shape: Vec<i32>,
    /// Its size in bytes, if it is fixed.
    pub bytes: Option<u64>,
    /// The offset of a constant's data in its file.
    pub offset: Option<usize>,
}

/// A node.
#[derive(Debug, Serialize)]
pub struct NodeReport {
    /// Its kind, by upstream's name.
    pub op: String,
    /// Its text in `--nodes`.
    pub text: String,
    /// Its fields.
    pub fields: Map<String, Value>,
    /// The slots that it reads.
    pub reads: Vec<String>,
    /// The slots that it writes.
    pub writes: Vec<String>,
    /// The chains that it runs.
    pub chains: Vec<u32>,
}

impl Report {
    /// Describes a program; weights are not read.
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

/// Constants with more elements are shown as a type and a shape.
const SHOWN_ELEMENTS: u64 = 1024;

fn constant(program: &Program, method: &Method, value: &EValue) -> Value {
    match value {
        EValue::Null(_) => Value::Null,
        EValue::Int(int) => json!(int.int_val),
        EValue::Bool(bool) => json!(bool.bool_val),
        EValue::Double(double) => json!(double.double_val),
        EValue::Text(text) => json!(text.string_val),
        EValue::DoubleList(list) => json!(list.items),
        EValue::BoolList(list) => json!(list.items),
        // The items are indices of values of the method.
        EValue::IntList(list) => {
            let item = |index: &i64| match usize::try_from(*index).ok().and_then(|index| method.values.get(index)) {
                Some(EValue::Int(int)) => json!(int.int_val),
                _ => Value::Null,
            };
            list.items.iter().map(item).collect()
        }
        EValue::Tensor(tensor) => tensor_elements(program, tensor)
            .unwrap_or_else(|| json!(format!("{} {:?}", tensor.scalar_type, tensor.sizes))),
        EValue::TensorList(_) | EValue::OptionalTensorList(_) => json!(value.kind()),
    }
}

/// Returns the elements, or `None` if they are too many or of a type that is not shown.
fn tensor_elements(program: &Program, tensor: &Tensor) -> Option<Value> {
    fn numbers<const N: usize, T: Into<Value>>(data: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<Value> {
        data.as_chunks().0.iter().map(|raw| number(*raw).into()).collect()
    }
    let data = program.tensor_data(tensor).ok()??;
    if data.len() as u64 > SHOWN_ELEMENTS * tensor.scalar_type.bytes() {
        return None;
    }
    let mut elements = match tensor.scalar_type {
        DType::U8 => numbers(&data, u8::from_le_bytes),
        DType::Bool => numbers(&data, |[byte]| byte != 0),
        DType::I32 => numbers(&data, i32::from_le_bytes),
        DType::I64 => numbers(&data, i64::from_le_bytes),
        DType::F32 => numbers(&data, f32::from_le_bytes),
        DType::F64 => numbers(&data, f64::from_le_bytes),
        _ => return None,
    };
    if tensor.sizes.is_empty() { elements.pop() } else { Some(Value::Array(elements)) }
}

impl MethodReport {
    fn new(method: &Method, data: &HashMap<&str, &Bytes>) -> Self {
        let mut graphs = method.mlx_delegates().map(|(_, graph)| GraphReport::new(graph, data));
        let known = graph_values(method);
        let values = |indices: &[i32]| indices.iter().map(|&index| ValueReport::new(method, index, &known)).collect();
        let mut kernels: Vec<String> = method.operators.iter().map(|operator| operator.name.clone()).collect();
        kernels.dedup();
        Self {
            name: method.name.clone(),
            inputs: values(&method.inputs),
            outputs: values(&method.outputs),
            delegates: method.delegates.iter().map(|delegate| delegate.id.clone()).collect(),
            kernels,
            graph: graphs.next(),
            more_graphs: graphs.collect(),
        }
    }
}

/// The name and the shape of an input or output of a graph.
type GraphValue<'a> = (Option<&'a str>, Option<&'a TensorMeta>);

/// Returns the inputs and outputs of the graphs by their index in the method, found in the arguments of the delegate calls.
fn graph_values(method: &Method) -> HashMap<i32, GraphValue<'_>> {
    let mut values = HashMap::new();
    let graphs: HashMap<usize, (&Delegate, HashMap<Slot, &str>)> =
        method.mlx_delegates().map(|(index, graph)| (index, (graph, graph.names()))).collect();
    for call in method.chains.iter().flat_map(|chain| &chain.instructions) {
        let Call::Delegate(call) = call else { continue };
        let graph = usize::try_from(call.delegate_index).ok().and_then(|index| graphs.get(&index));
        let Some((graph, names)) = graph else { continue };
        for (value, slot) in call.args.iter().zip(graph.input_map.iter().chain(&graph.output_map)) {
            let name = names.get(&slot.slot()).map(|name| short_name(name));
            values.entry(*value).or_insert((name, graph.meta(slot.idx)));
        }
    }
    values
}

/// The most characters of a name: a hostile file may refer to a long name many times.
const SHOWN_NAME: usize = 256;

impl ValueReport {
    fn new(method: &Method, index: i32, graph_values: &HashMap<i32, GraphValue<'_>>) -> Self {
        let value = usize::try_from(index).ok().and_then(|index| method.values.get(index));
        let (name, meta) = graph_values.get(&index).copied().unwrap_or_default();
        let name = name.map(|name| name.chars().take(SHOWN_NAME).collect());
        let Some(EValue::Tensor(tensor)) = value else {
            return Self { name, kind: value.map_or("missing", EValue::kind), dtype: None, shape: None, dims: None };
        };
        let dims = match meta {
            Some(meta) if meta.shape.len() == tensor.sizes.len() => meta.shape.iter().map(dim).collect(),
            _ => tensor.sizes.iter().map(|&size| outer_dim(size, tensor.shape_dynamism)).collect(),
        };
        let (dtype, shape) = (Some(tensor.scalar_type.name()), Some(tensor.sizes.clone()));
        Self { name, kind: "tensor", dtype, shape, dims: Some(dims) }
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
        let chain = |nodes: &Vec<Node>| nodes.iter().map(|node| NodeReport::new(node, &names)).collect();
        let mut report = Self {
            node_count: graph.nodes().count(),
            nodes,
            weights: Holdings::default(),
            state: Holdings::default(),
            sampling: sampling::describe(graph),
            foreign_kernels: kernels.into_iter().map(kernel).collect(),
            main_chain: graph.main_chain_idx,
            init_chain: graph.init_chain(),
            tensors: Vec::new(),
            chains: graph.instruction_chains.iter().map(chain).collect(),
        };
        report.add_tensors(graph, data);
        report
    }

    fn add_tensors(&mut self, graph: &Delegate, data: &HashMap<&str, &Bytes>) {
        let (names, mut seen) = (graph.names(), HashSet::new());
        for (slot, meta) in (0_u32..).zip(&graph.tensor_meta) {
            let (role, holdings) = match graph.role(slot) {
                Some(Role::Constant) => ("constant", Some(&mut self.weights)),
                Some(Role::State) => ("state", Some(&mut self.state)),
                Some(Role::Input) => ("input", None),
                Some(Role::Output) => ("output", None),
                Some(Role::Temporary) | None => continue,
            };
            let name = names.get(&Slot::Tensor(slot)).copied();
            let data = name.and_then(|name| data.get(name));
            let (dtype, bytes) = (meta.scalar_type.name(), meta.byte_count().ok());
            if let Some(holdings) = holdings {
                holdings.tensors += 1;
                if data.is_none_or(|data| seen.insert((role, data.as_ptr() as usize, data.len()))) {
                    holdings.add(dtype, bytes.unwrap_or(0));
                }
            }
            self.tensors.push(TensorReport {
                slot: Slot::Tensor(slot).to_string(),
                role,
                name: name.map(|name| short_name(name).to_owned()),
                dtype,
                shape: meta.shape.iter().map(|dim| dim.value).collect(),
                bytes,
                offset: data.filter(|_| role == "constant").map(|data| data.offset()),
            });
        }
    }
}

impl Holdings {
    fn add(&mut self, dtype: &'static str, bytes: u64) {
        for sum in [&mut self.bytes, self.by_dtype.entry(dtype).or_default()] {
            *sum = sum.saturating_add(bytes);
        }
    }
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
