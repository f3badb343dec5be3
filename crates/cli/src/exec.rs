//! `ptero exec`: runs a program on tensors from files, as upstream's op test runner does.

pub(crate) mod cache;
pub(crate) mod tensors;

use crate::device::{self, DeviceArgs};
use crate::{files, output};
use anyhow::{Context, Result, bail, ensure};
use cache::CacheSpec;
use clap::Args;
use ptero_backend::{Backend, Executable, InputValue, OutputValue, State, cast, run_once};
use ptero_plan::{KvCache, Options, lower, passes};
use ptero_pte::schema::{Call, DelegateCall, EValue, KernelCall};
use ptero_pte::{Limits, Method, Payload, Verified};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tensors::Tensor;

/// Arguments of `ptero exec`.
#[derive(Args, Debug)]
#[command(
    after_help = "Input and output files hold tensors one behind the other: u32 count; per tensor u32 type (0 f32, 1 f16, 2 i32,
3 i64, 4 bf16, 5 bool, 6 u8), u32 rank, i32 sizes, then the elements.

Examples:
  ptero exec --pte model.pte --input input.bin --output output.bin
  ptero exec --pte step.pte --input 1.bin --output a.bin --input 2.bin --output b.bin   one state, two calls

SPEC of --kv-cache: how many positions; unless the program's metadata tells them, how many layers,
heads of keys and elements of a head; the element type by ExecuTorch's number (6 f32, 5 f16, 15 bf16;
that of the keys, if none is given); and windows, repeated over the layers, where a layer of window W sees the last W
positions and one of window 0 all.
  --kv-cache 4096,2,8,64                two equal layers that see all 4096 positions
  --kv-cache 4096,6,8,64,15@512:512:0   every third layer sees all, the others the last 512
  --kv-cache 4096,15                    layers and windows as the program tells them (get_n_caches,
                                        get_kv_heads, get_head_dims, get_windows)"
)]
pub struct ExecArgs {
    /// The program (.pte)
    #[arg(long, value_name = "FILE")]
    pte: PathBuf,

    /// Tensor data (.ptd) that belongs to the program; may be given several times
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Tensors for a call; given several times, the calls run in order on one state
    #[arg(long, value_name = "FILE", required = true)]
    input: Vec<PathBuf>,

    /// Where a call's results go; as many as inputs
    #[arg(long, value_name = "FILE", required = true)]
    output: Vec<PathBuf>,

    /// The cache of programs that keep keys and values outside: capacity[,layers,kv_heads,head_dim][,type][@window[:window…]]
    #[arg(long, value_name = "SPEC")]
    kv_cache: Option<CacheSpec>,

    #[command(flatten)]
    device: DeviceArgs,

    /// The method to call
    #[arg(long, default_value = "forward")]
    method: String,

    /// Leave out a pass over the graph; may be given several times
    #[arg(long, value_name = "PASS", value_parser = device::PASS_NAMES)]
    without: Vec<String>,

    /// Say what is done
    #[arg(long, short)]
    verbose: bool,
}

/// Runs the command.
pub fn run(args: &ExecArgs) -> Result<()> {
    let (inputs, outputs) = (args.input.len(), args.output.len());
    ensure!(inputs == outputs, "{inputs} inputs but {outputs} outputs: give one --output for each --input");
    let program = files::open(&args.pte, &args.data)?;
    let program = Verified::new(program, &Limits::DEFAULT).with_context(|| args.pte.display().to_string())?;
    let method = program.method(&args.method);
    let method = method.with_context(|| format!("{} has no method `{}`", args.pte.display(), args.method))?;
    let kv_cache = args.kv_cache.as_ref().map(|spec| spec.for_program(&program)).transpose()?;
    let backend = device::open(&args.device)?;
    let mut session = Session::new(&program, method, kv_cache, &args.without, backend.as_ref())
        .with_context(|| format!("{}: method `{}`", args.pte.display(), method.name))?;
    for (input, output) in args.input.iter().zip(&args.output) {
        let given = tensors::read(input)?;
        let results = session.call(given).with_context(|| format!("method `{}`", method.name))?;
        if args.verbose {
            results.iter().for_each(|tensor| anstream::eprintln!("{} {:?}", tensor.dtype, tensor.shape));
        }
        output::write_whole(output, &[], |out| tensors::write(&results, out))?;
    }
    Ok(())
}

/// A method with the state that its calls share.
pub(crate) struct Session<'a> {
    method: &'a Method,
    /// One per delegate. The executables are kept for as long as their states.
    states: Vec<(Box<dyn Executable>, Box<dyn State>)>,
    values: Vec<Option<Tensor>>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        program: &Verified,
        method: &'a Method,
        kv_cache: Option<KvCache>,
        without: &[String],
        backend: &dyn Backend,
    ) -> Result<Self> {
        let mut states = Vec::new();
        let capabilities = backend.capabilities();
        let options = Options { kv_cache, keeps_foreign: capabilities.foreign_kernels };
        // A verified program has no other delegates.
        for (_, delegate) in program.delegates(&method.name) {
            let mut graph = lower(delegate, &options)?;
            passes::run(&mut graph, &capabilities, without);
            let executable = backend.compile(Arc::new(graph))?;
            let state = executable.state(entropy())?;
            states.push((executable, state));
        }
        let value = |value: &EValue| match value {
            EValue::Tensor(tensor) => Ok(program.tensor_data(tensor)?.map(|data| Tensor {
                dtype: tensor.scalar_type,
                shape: tensor.sizes().unwrap_or_default(),
                bytes: data.to_vec(),
            })),
            _ => Ok(None),
        };
        let values = method.values.iter().map(value).collect::<Result<_>>()?;
        Ok(Self { method, states, values })
    }

    pub(crate) fn call(&mut self, given: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let method = self.method;
        let wanted = method.inputs.len();
        ensure!(given.len() == wanted, "{} tensors given, {wanted} wanted", given.len());
        for (index, tensor) in method.inputs.iter().zip(given) {
            *self.value(*index)? = Some(tensor);
        }
        for call in method.chains.iter().flat_map(|chain| &chain.instructions) {
            match call {
                Call::Delegate(call) => self.delegate(call)?,
                Call::Kernel(call) => self.kernel(call)?,
                // Memory is freed with the session.
                Call::Free(_) => {}
                Call::Move(call) => {
                    let moved = self.value(call.move_from)?.clone();
                    *self.value(call.move_to)? = moved;
                }
                Call::JumpFalse(_) => bail!("jumps between calls are not supported"),
            }
        }
        let output = |index: &i32| {
            let value = self.value(*index)?.clone();
            value.with_context(|| format!("output value {index} is no tensor"))
        };
        method.outputs.iter().map(output).collect()
    }

    fn value(&mut self, index: i32) -> Result<&mut Option<Tensor>> {
        usize::try_from(index).ok().and_then(|index| self.values.get_mut(index)).context("no such value")
    }

    /// Arguments are the graph's inputs in its own order, then its outputs.
    fn delegate(&mut self, call: &DelegateCall) -> Result<()> {
        let index = usize::try_from(call.delegate_index).unwrap_or(usize::MAX);
        let Some(Payload::Mlx(graph)) = self.method.delegates.get(index).map(|delegate| &delegate.payload) else {
            bail!("no such delegate");
        };
        let (inputs, outputs) = call.args.split_at(graph.input_map.len().min(call.args.len()));
        let (executable, state) = self.states.get_mut(index).context("no such delegate")?;
        for (at, arg) in inputs.iter().enumerate() {
            let place = usize::try_from(*arg).unwrap_or(usize::MAX);
            match (self.method.values.get(place), self.values.get(place)) {
                (Some(EValue::Int(int)), _) => state.write(at, InputValue::Int(int.int_val))?,
                (_, Some(Some(Tensor { dtype, shape, bytes }))) => {
                    state.write(at, InputValue::Tensor { dtype: *dtype, shape, bytes })?;
                }
                _ => bail!("value {arg} is read before anything fills it"),
            }
        }
        run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false))?;
        for (at, arg) in outputs.iter().enumerate() {
            let place = usize::try_from(*arg).unwrap_or(usize::MAX);
            let result = state.read(at)?;
            let (Some(EValue::Tensor(declared)), OutputValue::Tensor { dtype, shape, bytes }) =
                (self.method.values.get(place), result)
            else {
                bail!("output {at} is no tensor");
            };
            let bytes = cast(&bytes, dtype, declared.scalar_type)?;
            let tensor = Tensor { dtype: declared.scalar_type, shape, bytes };
            self.values.get_mut(place).into_iter().for_each(|value| *value = Some(tensor.clone()));
        }
        Ok(())
    }

    /// Kernels outside the delegate: the one that some exports leave, and no other.
    fn kernel(&mut self, call: &KernelCall) -> Result<()> {
        let operator = usize::try_from(call.op_index).ok().and_then(|index| self.method.operators.get(index));
        let name = operator.map_or("", |operator| operator.name.as_str());
        match (name, call.args.as_slice()) {
            ("aten::copy_", [to, from, ..]) => {
                let copied = self.value(*from)?.clone();
                *self.value(*to)? = copied;
                Ok(())
            }
            _ => bail!("kernel `{name}` outside the delegate is not supported"),
        }
    }
}

/// A seed that nobody chose, for programs that draw without one.
fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
