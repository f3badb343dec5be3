//! A whole program: its methods, and the data they refer to.

use crate::Limits;
use crate::container::{Container, segment, window};
use crate::delegate::Delegate;
use crate::error::{Fault, Result, Step, in_file, pick};
use crate::field::Record;
use crate::schema::raw;
use crate::schema::{
    Call, CallChain, CompileSpec, ContainerMetadata, DataLocation, DelegateCall, EValue, NonConstBufferDevice, Null,
    Operator, Tensor, TensorDataLocation,
};
use crate::tensor_data::TensorData;
use crate::wire::Buffer;
use ptero_tensor::fault::AtStep;
use ptero_tensor::{Bytes, DType};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A program that was read but not checked; [`crate::Verified`] is a checked one.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Program {
    /// Its methods: entry points such as `forward`, and one per piece of metadata.
    pub methods: Vec<Method>,
    /// Constants of the methods themselves; entry 0 stands for "none".
    pub constants: Vec<Bytes>,
    /// First values of the methods' own mutable tensors, by segment.
    pub mutable_data: Vec<Vec<Bytes>>,
    /// Data by name: the constants of the delegates.
    pub named_data: Vec<NamedData>,
    /// Data by name from `.ptd` files. Writing the program makes it part of the program.
    pub external_data: Vec<NamedData>,
}

/// A piece of data and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedData {
    /// The name.
    pub key: String,
    /// The data.
    pub data: Bytes,
}

/// An entry point of a program, or a piece of its metadata.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// How its inputs and outputs were nested in Python.
    pub container: Option<ContainerMetadata>,
    /// Everything its calls refer to.
    pub values: Vec<EValue>,
    /// Indices of the values that the caller gives.
    pub inputs: Vec<i32>,
    /// Indices of the values that the caller gets.
    pub outputs: Vec<i32>,
    /// Its calls; one chain in every file seen so far.
    pub chains: Vec<CallChain>,
    /// The kernels that it calls.
    pub operators: Vec<Operator>,
    /// The delegates that it calls.
    pub delegates: Vec<DelegateEntry>,
    /// Sizes of its planned buffers; entry 0 stands for "none".
    pub buffer_sizes: Vec<i64>,
    /// Devices of its planned buffers.
    pub buffer_devices: Option<Vec<NonConstBufferDevice>>,
}

/// A part of a method that another runtime executes.
#[derive(Clone, Debug, PartialEq)]
pub struct DelegateEntry {
    /// The name of that runtime.
    pub id: String,
    /// What it executes.
    pub payload: Payload,
    /// The options it was compiled with.
    pub specs: Vec<CompileSpec>,
}

/// What a delegate executes.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// A graph for `MLXBackend`.
    Mlx(Box<Delegate>),
    /// Something that only another runtime understands.
    Foreign(Bytes),
}

/// The delegate whose graphs ptero runs.
pub const MLX_DELEGATE: &str = "MLXBackend";

impl Program {
    /// Maps and reads a program file. The data after its table of contents is not read.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        in_file(path, |file| Self::read(file, limits))
    }

    /// Reads a program that is in memory.
    pub fn read(file: &Bytes, limits: &Limits) -> Result<Self> {
        let container = Container::of_program(file)?;
        container.contents.prefetch();
        let buffer = Buffer::new(&container.contents, limits);
        let mut table = buffer.root().and_then(|root| raw::Program::read(&root)).at(|| Step::Part("program table"))?;
        if table.version != 0 {
            let found = table.version.to_string();
            return Err(Fault::Newer { what: "program version", found, known: "0" }.into());
        }
        let plans = std::mem::take(&mut table.execution_plan);
        let segments = container.segments(&table.segments)?;
        let reader = Reader { table: &table, plans: &plans, contents: &container.contents, segments, limits };
        let constants = reader.constants()?;
        let mutable_data = reader.mutable_data()?;
        let named_data = reader.named_data()?;
        let method = |plan: &raw::ExecutionPlan| reader.method(plan).at(|| Step::named("method", &plan.name));
        let methods = plans.iter().map(method).collect::<Result<_>>()?;
        Ok(Self { methods, constants, mutable_data, named_data, external_data: Vec::new() })
    }

    /// Adds a data file to the program; a name that is already taken is an error.
    pub fn attach(&mut self, data: TensorData) -> Result<()> {
        no_duplicates(self.all_data().chain(&data.entries).map(|entry| &entry.key)).at(|| Step::Part("named data"))?;
        self.external_data.extend(data.entries);
        Ok(())
    }

    /// All named data: the program's own, then that of data files.
    pub fn all_data(&self) -> impl Iterator<Item = &NamedData> {
        self.named_data.iter().chain(&self.external_data)
    }

    /// All named data by its name.
    pub fn data_by_name(&self) -> HashMap<&str, &Bytes> {
        self.all_data().map(|entry| (entry.key.as_str(), &entry.data)).collect()
    }

    /// The method of that name.
    pub fn method(&self, name: &str) -> Option<&Method> {
        self.methods.iter().find(|method| method.name == name)
    }

    /// A piece of metadata that is an integer: `None` when the program has none of that name, an error when it has
    /// something else.
    pub fn int_metadata(&self, name: &str) -> Result<Option<i64>> {
        self.metadata(name, "integer", |value| if let EValue::Int(int) = value { Some(int.int_val) } else { None })
    }

    /// A piece of metadata that is a bool; otherwise the same as [`Program::int_metadata`].
    pub fn bool_metadata(&self, name: &str) -> Result<Option<bool>> {
        self.metadata(name, "bool", |value| if let EValue::Bool(bool) = value { Some(bool.bool_val) } else { None })
    }

    /// A piece of metadata that is a list of integers, stored as several outputs or as an `i32` tensor; otherwise the same
    /// as [`Program::int_metadata`].
    pub fn ints_metadata(&self, name: &str) -> Result<Option<Vec<i64>>> {
        if let Some(ints) = self.method(name).and_then(Method::ints) {
            return Ok(Some(ints));
        }
        let tensor = self.metadata(name, "i32 tensor", |value| match value {
            EValue::Tensor(tensor) if tensor.scalar_type == DType::I32 => Some(tensor.clone()),
            _ => None,
        })?;
        let Some(tensor) = tensor else { return Ok(None) };
        let data = self.tensor_data(&tensor).and_then(|data| Ok(data.ok_or(Fault::Missing)?));
        let data = data.at(|| Step::named("method", name))?;
        Ok(Some(data.as_chunks().0.iter().map(|raw| i32::from_le_bytes(*raw).into()).collect()))
    }

    fn metadata<T>(&self, name: &str, wanted: &'static str, get: impl Fn(&EValue) -> Option<T>) -> Result<Option<T>> {
        let Some(method) = self.method(name) else { return Ok(None) };
        let found = method.constant();
        let value = found.and_then(get);
        let fault = Fault::WrongKind { found: found.map_or("method that computes", EValue::kind), wanted };
        value.map(Some).ok_or(fault).at(|| Step::named("method", name))
    }

    /// The data of one of a method's own tensors: `None` for a tensor that starts without any.
    pub fn tensor_data(&self, tensor: &Tensor) -> Result<Option<Bytes>> {
        self.tensor_data_by(tensor, |key| self.all_data().find(|entry| entry.key == key).map(|entry| &entry.data))
    }

    /// Same as [`Program::tensor_data`], with a faster lookup of data by name.
    pub(crate) fn tensor_data_by<'a>(
        &'a self,
        tensor: &Tensor,
        find: impl Fn(&str) -> Option<&'a Bytes>,
    ) -> Result<Option<Bytes>> {
        let (extra, index) = (tensor.extra_tensor_info.as_ref(), tensor.data_buffer_idx);
        let data = match (extra, &tensor.allocation_info) {
            (Some(extra), _) if extra.location == TensorDataLocation::External => {
                let name = extra.fully_qualified_name.as_deref().ok_or(Fault::NoName)?;
                find(name).ok_or_else(|| Fault::NoData(name.to_owned()))?
            }
            _ if index == 0 => return Ok(None),
            (_, None) => pick(&self.constants, index, "constants")?,
            (extra, Some(_)) => {
                let list = extra.map_or(0, |extra| extra.mutable_data_segments_idx);
                let list = pick(&self.mutable_data, i64::try_from(list).unwrap_or(i64::MAX), "mutable data segments")?;
                pick(list, index, "mutable data entries")?
            }
        };
        let wanted = tensor.byte_count()?;
        let too_short = Fault::WrongLength { found: data.len() as u64, wanted };
        Ok(Some(data.window(0, wanted).ok_or(too_short)?))
    }
}

impl Method {
    /// A piece of metadata.
    pub fn metadata(name: &str, value: EValue) -> Self {
        Self {
            name: name.to_owned(),
            values: vec![value],
            outputs: vec![0],
            chains: vec![CallChain { inputs: Vec::new(), outputs: Vec::new(), instructions: Vec::new() }],
            buffer_sizes: vec![0],
            ..Self::default()
        }
    }

    /// A method that calls one graph with the values it names: inputs, then outputs.
    pub fn of_graph(name: &str, graph: Delegate, values: Vec<EValue>, inputs: Vec<i32>, outputs: Vec<i32>) -> Self {
        let args = inputs.iter().chain(&outputs).copied().collect();
        let call = Call::Delegate(DelegateCall { delegate_index: 0, args });
        let payload = Payload::Mlx(Box::new(graph));
        Self {
            chains: vec![CallChain { inputs: Vec::new(), outputs: Vec::new(), instructions: vec![call] }],
            delegates: vec![DelegateEntry { id: MLX_DELEGATE.to_owned(), payload, specs: Vec::new() }],
            values,
            inputs,
            outputs,
            ..Self::metadata(name, EValue::Null(Null {}))
        }
    }

    /// The graphs that ptero runs, with the index of their delegate.
    pub fn mlx_delegates(&self) -> impl Iterator<Item = (usize, &Delegate)> {
        self.delegates.iter().enumerate().filter_map(|(index, delegate)| match &delegate.payload {
            Payload::Mlx(graph) => Some((index, &**graph)),
            Payload::Foreign(_) => None,
        })
    }

    /// The value of a method that is a piece of metadata: no inputs, no calls, one output.
    pub fn constant(&self) -> Option<&EValue> {
        match self.outputs.as_slice() {
            [output] if self.computes_nothing() => self.values.get(usize::try_from(*output).ok()?),
            _ => None,
        }
    }

    /// The outputs of a method that is a piece of metadata, where all of them are integers.
    pub fn ints(&self) -> Option<Vec<i64>> {
        let int = |output: &i32| match self.values.get(usize::try_from(*output).ok()?)? {
            EValue::Int(int) => Some(int.int_val),
            _ => None,
        };
        if self.computes_nothing() { self.outputs.iter().map(int).collect() } else { None }
    }

    fn computes_nothing(&self) -> bool {
        self.inputs.is_empty() && self.chains.iter().all(|chain| chain.instructions.is_empty())
    }
}

/// A file while a program is being read from it.
struct Reader<'a> {
    table: &'a raw::Program,
    plans: &'a [raw::ExecutionPlan],
    contents: &'a Bytes,
    segments: Vec<Bytes>,
    limits: &'a Limits,
}

impl Reader<'_> {
    fn inline(&self, list: &[raw::InlineData], index: u32, what: &'static str) -> Result<Bytes> {
        let range = &pick(list, index, what)?.data.0;
        window(self.contents, range.start as u64, range.len() as u64)
    }

    /// The entries of a segment. Each runs to the end of the segment; the tensor that uses it knows its length.
    fn entries(&self, list: &raw::SubsegmentOffsets) -> Result<Vec<Bytes>> {
        let data = segment(&self.segments, list.segment_index)?;
        let entry = |(index, &at): (usize, &u64)| {
            window(data, at, (data.len() as u64).saturating_sub(at)).at(|| Step::indexed("element", index))
        };
        list.offsets.iter().enumerate().map(entry).collect()
    }

    fn constants(&self) -> Result<Vec<Bytes>> {
        let constants = match &self.table.constant_segment {
            Some(list) if !list.offsets.is_empty() => self.entries(list),
            _ => {
                let count = u32::try_from(self.table.constant_buffer.len()).unwrap_or(u32::MAX);
                (0..count).map(|index| self.inline(&self.table.constant_buffer, index, "constants")).collect()
            }
        };
        let mut constants = constants.at(|| Step::Part("constants"))?;
        if constants.is_empty() {
            constants.push(Bytes::default());
        }
        let entry_of = |tensor: &Tensor| tensor.allocation_info.is_none().then_some((0, tensor.data_buffer_idx));
        self.trim(std::slice::from_mut(&mut constants), entry_of).at(|| Step::Part("constants"))?;
        Ok(constants)
    }

    fn mutable_data(&self) -> Result<Vec<Vec<Bytes>>> {
        let lists = self.table.mutable_data_segments.iter().map(|list| self.entries(list)).collect::<Result<Vec<_>>>();
        let mut lists = lists.at(|| Step::Part("mutable data"))?;
        let entry_of = |tensor: &Tensor| {
            let list = tensor.extra_tensor_info.as_ref().map_or(0, |extra| extra.mutable_data_segments_idx);
            tensor.allocation_info.as_ref().map(|_| (list, tensor.data_buffer_idx))
        };
        self.trim(&mut lists, entry_of).at(|| Step::Part("mutable data"))?;
        Ok(lists)
    }

    /// Cuts every entry to the largest tensor that uses it. Entry 0 stands for "none"; unused entries become empty.
    fn trim(&self, lists: &mut [Vec<Bytes>], entry_of: impl Fn(&Tensor) -> Option<(u64, u32)>) -> Result<()> {
        let mut used: Vec<Vec<u64>> = lists.iter().map(|list| vec![0; list.len()]).collect();
        for value in self.plans.iter().flat_map(|plan| &plan.values) {
            let EValue::Tensor(tensor) = value else { continue };
            let Some((list, index @ 1..)) = entry_of(tensor) else { continue };
            let list = usize::try_from(list).ok().and_then(|list| used.get_mut(list));
            let used = list.and_then(|list| list.get_mut(usize::try_from(index).ok()?));
            if let (Some(used), Ok(bytes)) = (used, tensor.byte_count()) {
                *used = (*used).max(bytes);
            }
        }
        let (mut total, size) = (0_u64, self.segments.iter().map(|segment| segment.len() as u64).sum::<u64>());
        let size = size.saturating_add(self.contents.len() as u64);
        for (index, (entry, wanted)) in lists.iter_mut().flatten().zip(used.into_iter().flatten()).enumerate() {
            let too_short = Fault::WrongLength { found: entry.len() as u64, wanted };
            *entry = entry.window(0, wanted).ok_or(too_short).at(|| Step::indexed("element", index))?;
            total = total.saturating_add(wanted);
        }
        // Entries may share bytes, but writing the program again must not multiply it.
        let times = self.limits.overlap;
        if total > size.saturating_mul(times) { Err(Fault::Overlap { times, size }.into()) } else { Ok(()) }
    }

    fn named_data(&self) -> Result<Vec<NamedData>> {
        let table = &self.table.named_data;
        no_duplicates(table.iter().map(|entry| &entry.key)).at(|| Step::Part("named data"))?;
        let entry = |entry: &raw::NamedData| {
            let data = segment(&self.segments, entry.segment_index).at(|| Step::named("named data", &entry.key))?;
            Ok(NamedData { key: entry.key.clone(), data: data.clone() })
        };
        table.iter().map(entry).collect()
    }

    fn method(&self, plan: &raw::ExecutionPlan) -> Result<Method> {
        let plan = plan.clone();
        let delegates = plan.delegates.into_iter().enumerate();
        let delegates =
            delegates.map(|(index, delegate)| self.delegate(delegate).at(|| Step::indexed("delegate", index)));
        Ok(Method {
            name: plan.name,
            container: plan.container_meta_type,
            delegates: delegates.collect::<Result<_>>()?,
            values: plan.values,
            inputs: plan.inputs,
            outputs: plan.outputs,
            chains: plan.chains,
            operators: plan.operators,
            buffer_sizes: plan.non_const_buffer_sizes,
            buffer_devices: plan.non_const_buffer_device,
        })
    }

    fn delegate(&self, delegate: raw::BackendDelegate) -> Result<DelegateEntry> {
        let index = delegate.processed.index;
        let data = match delegate.processed.location {
            DataLocation::Segment => segment(&self.segments, index)?.clone(),
            DataLocation::Inline => self.inline(&self.table.backend_delegate_data, index, "inline delegates")?,
        };
        let payload = if delegate.id == MLX_DELEGATE {
            data.prefetch();
            Payload::Mlx(Box::new(Delegate::parse(&data, self.limits)?))
        } else {
            Payload::Foreign(data)
        };
        Ok(DelegateEntry { id: delegate.id, payload, specs: delegate.compile_specs })
    }
}

pub(crate) fn no_duplicates<'a>(keys: impl Iterator<Item = &'a String>) -> Result<()> {
    let mut seen = HashSet::new();
    for key in keys {
        if !seen.insert(key) {
            return Err(Fault::Duplicate(key.clone()).into());
        }
    }
    Ok(())
}
