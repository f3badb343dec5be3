//! Measures primitives as graphs of one operation each: the bytes they access per second against the bandwidth of memory.

mod harness;

use half::bf16;
use harness::{Figure, Machine, Options, measure};
use ptero_backend::{Backend, Executable, InputValue, Result, run_once};
use ptero_cpu::Cpu;
use ptero_cpu::pool::{Pool, Scratch, Workers};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_plan::graph::{Block, Graph, Input, Node, Op, Output, StateId, Type, Value, ViewOp};
use ptero_plan::prim::{Fold, GatedDelta, Normalize, Prim, QuantFormat, QuantMode, Quantized};
use ptero_tensor::{Bytes, DType};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Rows and columns for primitives that work on rows: one size fits the caches, one does not.
const ROWS: [[usize; 2]; 2] = [[512, 2048], [4096, 8192]];

/// A graph of one operation.
#[derive(Default)]
struct Draft {
    graph: Graph,
    /// Nodes before and after the operation.
    before: Vec<Op>,
    after: Vec<Op>,
    /// Contents of the first input, used in turn.
    turns: Vec<Vec<u8>>,
    /// Bytes read and written.
    bytes: usize,
    operations: usize,
    random: u64,
}

impl Draft {
    fn count(&mut self, dtype: DType, shape: &[usize]) {
        self.bytes += shape.iter().product::<usize>() * dtype.size();
    }

    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Value {
        self.count(dtype, shape);
        self.graph.value(dtype, dims(shape))
    }

    fn constant(&mut self, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Value {
        self.count(dtype, shape);
        self.graph.constant(dtype, dims(shape), Bytes::from(bytes))
    }

    /// An output.
    fn out(&mut self, dtype: DType, shape: &[usize]) -> Value {
        let out = self.tensor(dtype, shape);
        self.graph.outputs.push(Output::Tensor(out));
        out
    }

    /// A state tensor, before and after the operation.
    fn state(&mut self, dtype: DType, shape: &[usize]) -> [Value; 2] {
        let [before, after] = [(); 2].map(|()| self.tensor(dtype, shape));
        let state = StateId(u32::try_from(self.graph.states.len()).unwrap_or(u32::MAX));
        self.graph.states.push(Type { dtype, shape: dims(shape) });
        self.before.push(Op::Read { out: before, state });
        self.after.push(Op::Write { state, x: after });
        [before, after]
    }

    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        self.random ^ self.random >> 29
    }

    /// Floats between `low` and `high`.
    fn floats(&mut self, dtype: DType, shape: &[usize], [low, high]: [f32; 2]) -> Value {
        let mut bytes = Vec::new();
        for _ in 0..shape.iter().product() {
            let number = low + (high - low) * (self.next() >> 40) as f32 / (1 << 24) as f32;
            match dtype {
                DType::Bf16 => bytes.extend(bf16::from_f32(number).to_le_bytes()),
                _ => bytes.extend(number.to_le_bytes()),
            }
        }
        self.constant(dtype, shape, bytes)
    }

    fn words(&mut self, shape: &[usize]) -> Value {
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count.div_ceil(2)).flat_map(|_| self.next().to_le_bytes()).take(4 * count).collect();
        self.constant(DType::U32, shape, bytes)
    }

    /// Four bits per weight in groups of 32.
    fn weights(&mut self, [stack, rows, columns]: [usize; 3]) -> Quantized<Value> {
        let format = QuantFormat::Words { mode: QuantMode::Affine, bits: 4, group: 32 };
        let codes = self.words(&[stack, rows, columns / 8]);
        let scales = Some(self.floats(DType::Bf16, &[stack, rows, columns / 32], [0.001, 0.01]));
        let biases = Some(self.floats(DType::Bf16, &[stack, rows, columns / 32], [-0.08, -0.01]));
        Quantized { codes, scales, biases, format }
    }

    /// Chooses `chosen` different experts for each of `tokens`, with another choice in each of 8 turns.
    fn choice(&mut self, experts: usize, [tokens, chosen]: [usize; 2]) -> Value {
        for _ in 0..8 {
            let mut turn = Vec::new();
            for _ in 0..tokens {
                let mut all: Vec<usize> = (0..experts).collect();
                for _ in 0..chosen {
                    let at = usize::try_from(self.next() >> 33).unwrap_or(0) % all.len();
                    turn.extend(u32::try_from(all.swap_remove(at)).unwrap_or(0).to_le_bytes());
                }
            }
            self.turns.push(turn);
        }
        let choice = self.tensor(DType::U32, &[tokens, chosen]);
        self.graph.inputs.push(Input::Tensor(choice));
        choice
    }

    fn compile(&self, cpu: &Cpu, prim: Prim<Value>) -> Result<Box<dyn Executable>> {
        let ops = self.before.iter().cloned().chain([Op::Prim(prim)]).chain(self.after.iter().cloned());
        let nodes = ops.map(|op| Node { op, origin: (0, 0) }).collect();
        let mut graph = self.graph.clone();
        graph.blocks.push(Block { nodes, results: Vec::new() });
        cpu.compile(Arc::new(graph))
    }
}

fn dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|size| Dim::fixed(i64::try_from(*size).unwrap_or(i64::MAX))).collect()
}

/// A quantized mixture of experts: each of `tokens` rows is multiplied by `chosen` matrices.
fn experts(draft: &mut Draft, experts: usize, [tokens, chosen, n, k]: [usize; 4]) -> Prim<Value> {
    let x = draft.floats(DType::Bf16, &[tokens, 1, 1, k], [-1.0, 1.0]);
    let w = draft.weights([experts, n, k]);
    let read = chosen * tokens.min(experts / chosen) * n * k * 5 / 8;
    let rhs = Some(draft.choice(experts, [tokens, chosen]));
    let out = draft.out(DType::Bf16, &[tokens, chosen, 1, n]);
    let repeated = draft.tensor(DType::Bf16, &[tokens, chosen, 1, k]);
    draft.before.push(Op::View { out: repeated, x, how: ViewOp::Broadcast });
    (draft.bytes, draft.operations) = (read, 2 * tokens * chosen * n * k);
    Prim::QuantMatMul { out, x: repeated, w, transpose: true, lhs: None, rhs, epilogue: None }
}

fn stack(draft: &mut Draft, dtype: DType, [count, m, k, n]: [usize; 4]) -> Prim<Value> {
    let a = draft.floats(dtype, &[count, m, k], [-1.0, 1.0]);
    let b = draft.floats(dtype, &[count, k, n], [-1.0, 1.0]);
    let out = draft.out(dtype, &[count, m, n]);
    draft.operations = 2 * count * m * k * n;
    Prim::MatMul { out, a, b, lhs: None, rhs: None, epilogue: None }
}

fn sort(draft: &mut Draft, dtype: DType, shape: [usize; 2], indices: bool) -> Prim<Value> {
    let x = draft.floats(dtype, &shape, [-8.0, 8.0]);
    let out = draft.out(if indices { DType::U32 } else { dtype }, &shape);
    Prim::Sort { out, x, axis: 1, indices }
}

fn gated_delta(draft: &mut Draft, [tokens, groups, heads, size]: [usize; 4]) -> Prim<Value> {
    let [q, k] = [(); 2].map(|()| draft.floats(DType::Bf16, &[1, tokens, groups, size], [-1.0 / 8.0, 1.0 / 8.0]));
    let v = draft.floats(DType::Bf16, &[1, tokens, heads, size], [-1.0, 1.0]);
    let [g, beta] = [(); 2].map(|()| draft.floats(DType::F32, &[1, tokens, heads], [0.3, 0.9]));
    let [state, state_out] = draft.state(DType::F32, &[1, heads, size, size]);
    let out = draft.out(DType::Bf16, &[1, tokens, heads, size]);
    draft.operations = 7 * tokens * heads * size * size;
    Prim::GatedDelta(Box::new(GatedDelta { out, state_out, q, k, v, g, beta, state }))
}

fn reduce(draft: &mut Draft, dtype: DType, shape: [usize; 2], axis: usize) -> Prim<Value> {
    let x = draft.floats(dtype, &shape, [-1.0, 1.0]);
    let [rows, columns] = shape;
    let out = draft.out(dtype, &if axis == 0 { [1, columns] } else { [rows, 1] });
    Prim::Reduce { out, x, axes: vec![axis], fold: Fold::Sum }
}

/// A two-dimensional convolution, or a one-dimensional one (`height` 1), that keeps the size if its stride is one.
struct Square {
    size: [usize; 2],
    kernel: [usize; 2],
    channels: usize,
    filters: usize,
    groups: usize,
    stride: usize,
}

fn conv(draft: &mut Draft, dtype: DType, case: &Square) -> Prim<Value> {
    let &Square { size: [height, width], kernel: [rows, columns], channels, filters, groups, stride } = case;
    let padding = if stride == 1 { [rows / 2, columns / 2] } else { [0, 0] };
    let after = |size: usize, kernel: usize, padding: usize| (size + 2 * padding - kernel) / stride + 1;
    let (out_height, out_width) = (after(height, rows, padding[0]), after(width, columns, padding[1]));
    let x = draft.floats(dtype, &[1, height, width, channels], [-1.0, 1.0]);
    let w = draft.floats(dtype, &[filters, rows, columns, channels / groups], [-1.0, 1.0]);
    let out = draft.out(dtype, &[1, out_height, out_width, filters]);
    draft.operations = 2 * out_height * out_width * filters * rows * columns * channels / groups;
    let signed = |size: usize| i64::try_from(size).unwrap_or(0);
    let (stride, padding) = (vec![signed(stride); 2], padding.map(signed).to_vec());
    Prim::Conv { out, x, w, stride, padding, dilation: vec![1; 2], groups: signed(groups), transposed: false }
}

fn softmax(draft: &mut Draft, dtype: DType, shape: [usize; 2]) -> Prim<Value> {
    let (x, out) = (draft.floats(dtype, &shape, [-8.0, 8.0]), draft.out(dtype, &shape));
    Prim::Softmax { out, x, axis: 1 }
}

fn norm(draft: &mut Draft, dtype: DType, shape: [usize; 2], kind: Normalize) -> Prim<Value> {
    let (x, out) = (draft.floats(dtype, &shape, [-8.0, 8.0]), draft.out(dtype, &shape));
    let [weight, bias] = [(); 2].map(|()| draft.floats(dtype, &shape[1..], [0.5, 1.5]));
    let bias = (kind == Normalize::Layer).then_some(bias);
    Prim::Norm { out, x, weight: Some(weight), bias, eps: 1e-5, kind }
}

/// A function of two operands.
fn map(draft: &mut Draft, dtype: DType, shape: [usize; 2], rest: &[(Scalar, [u16; 3])]) -> Prim<Value> {
    let ins = [(); 2].map(|()| draft.floats(dtype, &shape, [-4.0, 4.0])).to_vec();
    let loads = [(Scalar::Load(0), [0; 3]), (Scalar::Load(1), [0; 3])];
    let steps = loads.iter().chain(rest).map(|(op, args)| Step { op: op.clone(), args: *args, dtype });
    let expr = Expr { steps: steps.collect() };
    Prim::Map { out: draft.out(dtype, &shape), ins, expr }
}

struct Bench {
    options: Options,
    cpu: Cpu,
    machine: Machine,
    /// Threads to measure the machine with.
    pool: Pool,
}

impl Bench {
    fn case(&self, name: &str, make: impl FnOnce(&mut Draft) -> Prim<Value>) {
        if !self.options.wants(name) {
            return;
        }
        let mut draft = Draft::default();
        let prim = make(&mut draft);
        let executable = draft.compile(&self.cpu, prim).expect("the graph is sound");
        let mut state = executable.state(1).expect("there is memory");
        let shape: Vec<u64> = match draft.graph.inputs.first() {
            Some(Input::Tensor(choice)) => {
                draft.graph.ty(*choice).shape.iter().map(|size| size.eval(&[]).unsigned_abs()).collect()
            }
            _ => Vec::new(),
        };
        let never = AtomicBool::new(false);
        let mut turns = draft.turns.iter().cycle();
        let spread = measure(|| {
            if let Some(bytes) = turns.next() {
                let given = InputValue::Tensor { dtype: DType::U32, shape: &shape, bytes };
                state.write(0, given).expect("the input fits");
            }
            run_once(executable.as_ref(), state.as_mut(), &never).expect("the graph runs");
        });
        let (bytes, operations) = (draft.bytes as f64, draft.operations as f64);
        let limits = self.machine.limits(&mut Workers { pool: &self.pool, scratch: &mut Scratch::default() });
        let figure = Figure { bench: "primitives", name, spread, bytes, operations };
        figure.print(&self.machine, &limits, self.options.is_json);
    }

    fn products(&self) {
        for [tokens, chosen] in [[1, 8], [4, 8], [32, 8], [256, 8]] {
            let name = format!("experts int4 [{tokens}, {chosen}] of 64, 2048 x 1024");
            self.case(&name, |draft| experts(draft, 64, [tokens, chosen, 1024, 2048]));
        }
        for sizes in [[256, 1, 64, 64], [256, 16, 64, 64], [256, 64, 64, 64], [8, 512, 128, 512]] {
            let [count, m, k, n] = sizes;
            let name = format!("stack f32 {count} x [{m}, {k}] x [{k}, {n}]");
            self.case(&name, |draft| stack(draft, DType::F32, sizes));
        }
    }

    fn others(&self) {
        for shape in [[64, 512], [1, 4096], [1, 49152], [1, 262_144]] {
            for (dtype, indices) in [(DType::F32, false), (DType::F32, true), (DType::Bf16, false)] {
                let name = format!("sort {} {shape:?}{}", dtype.name(), if indices { " places" } else { "" });
                self.case(&name, |draft| sort(draft, dtype, shape, indices));
            }
        }
        for [tokens, heads] in [[1, 32], [1, 64], [64, 32], [512, 32], [512, 64]] {
            let name = format!("gated-delta [1, {tokens}, {heads}, 128]");
            self.case(&name, |draft| gated_delta(draft, [tokens, 16, heads, 128]));
        }
        for (dtype, axis) in [(DType::F32, 0), (DType::F32, 1), (DType::Bf16, 0)] {
            let name = format!("reduce {} [4096, 8192] axis {axis}", dtype.name());
            self.case(&name, |draft| reduce(draft, dtype, [4096, 8192], axis));
        }
        let conv_cases = [
            ("3x3", Square { size: [56, 56], kernel: [3, 3], channels: 64, filters: 64, groups: 1, stride: 1 }),
            (
                "patches",
                Square { size: [224, 224], kernel: [16, 16], channels: 3, filters: 768, groups: 1, stride: 16 },
            ),
            ("grouped", Square { size: [56, 56], kernel: [3, 3], channels: 128, filters: 128, groups: 4, stride: 1 }),
            (
                "depthwise 3x3",
                Square { size: [56, 56], kernel: [3, 3], channels: 128, filters: 128, groups: 128, stride: 1 },
            ),
            (
                "depthwise line",
                Square { size: [1, 512], kernel: [1, 4], channels: 2048, filters: 2048, groups: 2048, stride: 1 },
            ),
        ];
        for (name, case) in conv_cases {
            self.case(&format!("conv f32 {name}"), |draft| conv(draft, DType::F32, &case));
        }
    }

    fn rows(&self) {
        let add = [(Scalar::Binary(Binary::Add), [0, 1, 0])];
        let swiglu = [
            (Scalar::Unary(Unary::Sigmoid), [0; 3]),
            (Scalar::Binary(Binary::Mul), [0, 2, 0]),
            (Scalar::Binary(Binary::Mul), [3, 1, 0]),
        ];
        for (dtype, shape) in [DType::F32, DType::Bf16].into_iter().flat_map(|dtype| ROWS.map(|shape| (dtype, shape))) {
            let name = |primitive: &str| format!("{primitive} {} {shape:?}", dtype.name());
            self.case(&name("softmax"), |draft| softmax(draft, dtype, shape));
            self.case(&name("rms-norm"), |draft| norm(draft, dtype, shape, Normalize::Rms));
            self.case(&name("layer-norm"), |draft| norm(draft, dtype, shape, Normalize::Layer));
            self.case(&name("add"), |draft| map(draft, dtype, shape, &add));
            self.case(&name("swiglu"), |draft| map(draft, dtype, shape, &swiglu));
        }
    }
}

fn main() {
    let options = Options::read();
    let machine = Machine::new(options.isa, options.threads);
    machine.print(&options);
    let cpu = Cpu::with(options.threads, options.isa);
    let pool = Pool::new(options.threads);
    let bench = Bench { options, cpu, machine, pool };
    bench.products();
    bench.others();
    bench.rows();
}
