//! Running any method of any program.

use crate::error::{Context, Error, Result};
use crate::options::Options;
use crate::source::Source;
use crate::tensor::Tensor;
use ptero_backend::{Executable, InputValue, OutputValue, State, cast, run_once};
use ptero_plan::passes;
use ptero_pte::schema::{Call, DelegateCall, EValue, KernelCall};
use ptero_pte::{DType, Payload, Verified};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A program that was read and verified, with the options to run it.
///
/// ```
/// use ptero::{Options, Tensor};
///
/// // For a file: `ptero::Program::open("model.pte")`.
/// let program = Options::new().included_program()?;
/// let mut forward = program.method("forward")?;
/// let (tokens, position) = (Tensor::from_slice(&[1, 1], &[7_i64])?, Tensor::from_slice(&[1], &[0_i64])?);
/// let temperature = Tensor::from_slice(&[], &[0.0_f32])?;
/// let (top_k, top_p) = (Tensor::from_slice(&[], &[1_i64])?, Tensor::from_slice(&[], &[1.0_f32])?);
/// let seed = Tensor::from_slice(&[], &[42_i64])?;
/// let outputs = forward.run([tokens, position, temperature, top_k, top_p, seed])?;
/// println!("token {:?}", outputs[0].to_vec::<i64>());
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Debug)]
pub struct Program {
    source: Source,
    options: Options,
}

impl Program {
    /// Opens a program (`.pte`). A checkpoint, or `owner/name` of the hub with the feature `hub`, is exported into a cache
    /// first.
    ///
    /// # Errors
    /// When there is no such file, it is not a valid program, or the checkpoint cannot be exported.
    pub fn open(source: impl AsRef<Path>) -> Result<Self> {
        Options::new().open_program(source)
    }

    pub(crate) fn new(source: Source, options: Options) -> Self {
        Self { source, options }
    }

    /// Returns the name: that of the file or checkpoint.
    pub fn name(&self) -> &str {
        &self.source.name
    }

    /// Returns the names of the methods, without those that only return metadata.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.source
            .program
            .methods
            .iter()
            .filter(|method| method.constant().is_none())
            .map(|method| method.name.as_str())
    }

    /// Compiles a method, with a state of its own that all its calls share.
    ///
    /// # Errors
    /// When there is no such method, or the device does not support what it does.
    pub fn method(&self, name: &str) -> Result<Method> {
        let Some(method) = self.source.program.method(name) else {
            let methods = self.methods().map(str::to_owned).collect();
            return Err(Error::NoMethod { name: name.to_owned(), methods }).context(|| self.source.shown.clone());
        };
        Method::new(self, method).context(|| format!("{}: method `{name}`", self.source.shown))
    }

    /// Returns the verified program.
    #[doc(hidden)]
    pub fn verified(&self) -> &Verified {
        &self.source.program
    }

    /// Returns the time it took to map and verify the file.
    pub fn open_time(&self) -> Duration {
        self.source.open_time
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }
}

/// The name, the type and the upper bounds of the sizes of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the graph, if it has one.
    pub name: Option<String>,
    /// The element type.
    pub dtype: DType,
    /// The sizes, at most.
    pub shape: Vec<u64>,
}

/// A compiled method and the state that its calls share.
pub struct Method {
    method: Arc<ptero_pte::Method>,
    /// One per delegate. An executable lives as long as its state.
    states: Vec<(Box<dyn Executable>, Box<dyn State>)>,
    values: Vec<Option<Tensor>>,
}

impl Method {
    fn new(program: &Program, method: &ptero_pte::Method) -> Result<Self> {
        let Options { without, kv_cache, .. } = program.options();
        let verified = program.verified();
        let kv_cache = kv_cache.as_ref().map(|spec| spec.for_program(verified)).transpose()?;
        let backend = program.options().backend()?;
        let capabilities = backend.capabilities();
        let mut states = Vec::new();
        // A verified program has no other delegates.
        for (_, delegate) in verified.delegates(&method.name) {
            let (graph, _) = passes::prepare(delegate, kv_cache.clone(), &capabilities, without)?;
            let executable = backend.compile(Arc::new(graph))?;
            let state = executable.state(entropy())?;
            states.push((executable, state));
        }
        let value = |value: &EValue| match value {
            EValue::Tensor(tensor) => match verified.tensor_data(tensor)? {
                Some(data) => Ok(Some(Tensor::new(tensor.scalar_type, &tensor.sizes()?, data.to_vec())?)),
                None => Ok(None),
            },
            _ => Ok(None),
        };
        let values = method.values.iter().map(value).collect::<Result<_>>()?;
        Ok(Self { method: Arc::new(method.clone()), states, values })
    }

    /// Describes the inputs that are tensors, in order.
    pub fn inputs(&self) -> Vec<TensorInfo> {
        self.tensors(&self.method.inputs)
    }

    /// Describes the outputs that are tensors, in order.
    pub fn outputs(&self) -> Vec<TensorInfo> {
        self.tensors(&self.method.outputs)
    }

    fn tensors(&self, indices: &[i32]) -> Vec<TensorInfo> {
        let names = self.names();
        let tensor = |index: &i32| match self.method.values.get(usize::try_from(*index).ok()?)? {
            EValue::Tensor(tensor) => {
                let name = names.get(index).map(|name| name.chars().take(LONGEST_NAME).collect());
                Some(TensorInfo { name, dtype: tensor.scalar_type, shape: tensor.sizes().ok()? })
            }
            _ => None,
        };
        indices.iter().filter_map(tensor).collect()
    }

    /// Returns the names that graphs give to values of the method, found in the arguments of their calls.
    fn names(&self) -> HashMap<i32, &str> {
        let graphs: HashMap<usize, _> =
            self.method.mlx_delegates().map(|(index, graph)| (index, (graph, graph.names()))).collect();
        let mut found = HashMap::new();
        for call in self.method.chains.iter().flat_map(|chain| &chain.instructions) {
            let Call::Delegate(call) = call else { continue };
            let graph = usize::try_from(call.delegate_index).ok().and_then(|index| graphs.get(&index));
            let Some((graph, names)) = graph else { continue };
            for (value, slot) in call.args.iter().zip(graph.input_map.iter().chain(&graph.output_map)) {
                if let Some(name) = names.get(&slot.slot()) {
                    found.entry(*value).or_insert(short_name(name));
                }
            }
        }
        found
    }

    /// Calls the method on the state that earlier calls left.
    ///
    /// # Errors
    /// When the inputs do not fit the method, or the device fails.
    pub fn run(&mut self, inputs: impl IntoIterator<Item = Tensor>) -> Result<Vec<Tensor>> {
        let called = self.call(inputs.into_iter().collect());
        called.context(|| format!("method `{}`", self.method.name))
    }

    fn call(&mut self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let method = Arc::clone(&self.method);
        let (given, wanted) = (inputs.len(), method.inputs.len());
        if given != wanted {
            return Err(Error::InputCount { given, wanted });
        }
        for (index, tensor) in method.inputs.iter().zip(inputs) {
            *self.value(*index)? = Some(tensor);
        }
        for call in method.chains.iter().flat_map(|chain| &chain.instructions) {
            match call {
                Call::Delegate(call) => self.call_delegate(call)?,
                Call::Kernel(call) => self.call_kernel(call)?,
                // Memory is freed with the state.
                Call::Free(_) => {}
                Call::Move(call) => self.copy(call.move_from, call.move_to)?,
                Call::JumpFalse(_) => return Err(unsupported("jumps between calls")),
            }
        }
        let output = |index: &i32| {
            let value = self.value(*index)?.clone();
            value.ok_or_else(|| unsupported(format!("returns value {index}, which is not a tensor")))
        };
        method.outputs.iter().map(output).collect()
    }

    fn value(&mut self, index: i32) -> Result<&mut Option<Tensor>> {
        let value = usize::try_from(index).ok().and_then(|index| self.values.get_mut(index));
        value.ok_or_else(|| unsupported(format!("uses value {index}, which does not exist")))
    }

    fn copy(&mut self, from: i32, to: i32) -> Result<()> {
        let copied = self.value(from)?.clone();
        *self.value(to)? = copied;
        Ok(())
    }

    /// Arguments are the graph's inputs in its own order, then its outputs.
    fn call_delegate(&mut self, call: &DelegateCall) -> Result<()> {
        let index = usize::try_from(call.delegate_index).unwrap_or(usize::MAX);
        let method = Arc::clone(&self.method);
        let payload = method.delegates.get(index).map(|delegate| &delegate.payload);
        let (Some(Payload::Mlx(graph)), Some((executable, state))) = (payload, self.states.get_mut(index)) else {
            return Err(unsupported(format!("calls delegate {index}, which is not a graph")));
        };
        let (inputs, outputs) = call.args.split_at(graph.input_map.len().min(call.args.len()));
        for (at, arg) in inputs.iter().enumerate() {
            let index = usize::try_from(*arg).unwrap_or(usize::MAX);
            match (method.values.get(index), self.values.get(index)) {
                (Some(EValue::Int(int)), _) => state.write(at, InputValue::Int(int.int_val))?,
                (_, Some(Some(Tensor { dtype, shape, bytes }))) => {
                    state.write(at, InputValue::Tensor { dtype: *dtype, shape, bytes })?;
                }
                _ => return Err(unsupported(format!("reads value {arg} before anything writes it"))),
            }
        }
        run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false))?;
        for (at, arg) in outputs.iter().enumerate() {
            let index = usize::try_from(*arg).unwrap_or(usize::MAX);
            let (Some(EValue::Tensor(declared)), OutputValue::Tensor { dtype, shape, bytes }, Some(value)) =
                (method.values.get(index), state.read(at)?, self.values.get_mut(index))
            else {
                return Err(unsupported(format!("has an output {at} that is not a tensor")));
            };
            let bytes = cast(&bytes, dtype, declared.scalar_type)?;
            *value = Some(Tensor { dtype: declared.scalar_type, shape, bytes });
        }
        Ok(())
    }

    /// Calls a kernel outside the delegate: the copy that some exports contain, and no other.
    fn call_kernel(&mut self, call: &KernelCall) -> Result<()> {
        let operator = usize::try_from(call.op_index).ok().and_then(|index| self.method.operators.get(index));
        let name = operator.map_or("", |operator| operator.name.as_str());
        match (name, call.args.as_slice()) {
            ("aten::copy_", [to, from, ..]) => self.copy(*from, *to),
            _ => Err(unsupported(format!("calls the kernel `{name}` outside a graph"))),
        }
    }
}

impl std::fmt::Debug for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Method").field("name", &self.method.name).finish_non_exhaustive()
    }
}

/// The most characters of a name: a hostile file may refer to a long name many times.
const LONGEST_NAME: usize = 256;

/// Removes the prefix of four hexadecimal digits that exporters add to names.
#[doc(hidden)]
pub fn short_name(name: &str) -> &str {
    match name.split_once('/') {
        Some((prefix, rest)) if prefix.len() == 4 && prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) => rest,
        _ => name,
    }
}

fn unsupported(what: impl Into<String>) -> Error {
    Error::Unsupported(what.into())
}

/// Returns a random seed, for programs that sample without one.
fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
