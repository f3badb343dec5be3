//! The shim's functions, as Rust calls them: the only unsafe code of this crate.
//!
//! Everything but [`lock`] must run while the lock is held: MLX's streams are not for several threads at once.
#![allow(unsafe_code, reason = "calls into C++")]
#![allow(
    unreachable_pub,
    missing_docs,
    clippy::missing_errors_doc,
    clippy::too_many_arguments,
    reason = "the shim documents its functions"
)]

use ptero_tensor::Bytes;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Weights in a file, for as long as an array shows them.
pub(crate) struct Mapped {
    _bytes: Bytes,
}

impl Mapped {
    pub(crate) fn new(bytes: Bytes) -> Box<Self> {
        Box::new(Self { _bytes: bytes })
    }
}

#[cxx::bridge(namespace = "ptero")]
pub(crate) mod ffi {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        Bool,
        U8,
        I8,
        U16,
        I16,
        U32,
        I32,
        I64,
        F16,
        Bf16,
        F32,
    }

    #[derive(Clone, Copy, Debug)]
    enum UnaryOp {
        Neg,
        Abs,
        Sign,
        Square,
        Sqrt,
        Rsqrt,
        Reciprocal,
        Exp,
        Expm1,
        Log,
        Log2,
        Log10,
        Log1p,
        Sin,
        Cos,
        Tan,
        Arcsin,
        Arccos,
        Arctan,
        Sinh,
        Cosh,
        Tanh,
        Arcsinh,
        Arccosh,
        Arctanh,
        Erf,
        Sigmoid,
        Floor,
        Ceil,
        Round,
        Trunc,
        Not,
        BitNot,
    }

    #[derive(Clone, Copy, Debug)]
    enum BinaryOp {
        Add,
        Sub,
        Mul,
        Div,
        FloorDiv,
        Remainder,
        Power,
        Max,
        Min,
        Atan2,
        LogAddExp,
        And,
        Or,
        BitAnd,
        BitOr,
        BitXor,
    }

    #[derive(Clone, Copy, Debug)]
    enum CompareOp {
        Less,
        LessEqual,
        Greater,
        GreaterEqual,
        Equal,
        NotEqual,
    }

    #[derive(Clone, Copy, Debug)]
    enum FoldOp {
        Sum,
        Prod,
        Max,
        Min,
        Any,
        All,
        Mean,
        Var,
        LogSumExp,
    }

    #[derive(Clone, Copy, Debug)]
    enum QuantKind {
        Affine,
        Mxfp4,
        Nvfp4,
        Mxfp8,
    }

    /// Quantized weights: slots, and how they are packed. The tables give the number of a code and of a scale.
    #[derive(Clone, Copy, Debug)]
    struct Weights {
        codes: u32,
        scales: u32,
        biases: u32,
        code_table: u32,
        scale_table: u32,
        kind: QuantKind,
        bits: i32,
        group: i32,
    }

    /// A kernel that a program brings, with the slots of its operands and results, its grid and its thread groups.
    struct Kernel {
        name: String,
        source: String,
        header: String,
        input_names: Vec<String>,
        output_names: Vec<String>,
        inputs: Vec<u32>,
        results: Vec<KernelResult>,
        arguments: Vec<KernelArgument>,
        launch: Vec<i32>,
        is_row_contiguous: bool,
        is_atomic: bool,
        has_init: bool,
        init: f32,
    }

    struct KernelResult {
        out: u32,
        shape: Vec<i32>,
        kind: Kind,
    }

    /// What a kernel is compiled for: 0 for an int, 1 for a bool, 2 for an element type.
    struct KernelArgument {
        name: String,
        code: i8,
        value: i32,
        kind: Kind,
    }

    /// Bytes that arrays hold now, and the most that they held.
    struct Memory {
        active: u64,
        peak: u64,
    }

    /// What MLX runs on.
    #[derive(Clone, Debug)]
    struct Device {
        version: String,
        is_gpu: bool,
        name: String,
        memory: u64,
    }

    extern "Rust" {
        type Mapped;
    }

    unsafe extern "C++" {
        include!("ptero-mlx/src/shim/values.h");

        type Values;

        fn enter();
        fn device() -> Result<Device>;
        fn has_metal() -> bool;
        fn take_memory() -> Memory;
        fn new_values(count: usize) -> UniquePtr<Values>;
        fn copy(&self) -> UniquePtr<Values>;

        fn give(&self, to: Pin<&mut Values>, out: u32, x: u32) -> Result<()>;
        fn store(self: Pin<&mut Values>, out: u32, bytes: &[u8], shape: &[i32], kind: Kind) -> Result<()>;
        fn borrow(
            self: Pin<&mut Values>,
            out: u32,
            owner: Box<Mapped>,
            bytes: &[u8],
            shape: &[i32],
            kind: Kind,
        ) -> Result<()>;
        fn zeros(self: Pin<&mut Values>, out: u32, shape: &[i32], kind: Kind) -> Result<()>;
        fn alias(self: Pin<&mut Values>, out: u32, x: u32) -> Result<()>;
        fn clear(self: Pin<&mut Values>, from: u32, to: u32);
        fn clear_each(self: Pin<&mut Values>, slots: &[u32]);
        fn eval(self: Pin<&mut Values>, slots: &[u32]) -> Result<()>;
        fn async_eval(self: Pin<&mut Values>, slots: &[u32]) -> Result<()>;
        fn read(self: Pin<&mut Values>, x: u32, bytes: &mut [u8]) -> Result<()>;
        fn item(self: Pin<&mut Values>, x: u32) -> Result<i64>;
        fn has_shape(&self, x: u32, shape: &[i32]) -> Result<bool>;

        fn reshape(self: Pin<&mut Values>, out: u32, x: u32, shape: &[i32]) -> Result<()>;
        fn permute(self: Pin<&mut Values>, out: u32, x: u32, order: &[i32]) -> Result<()>;
        fn broadcast(self: Pin<&mut Values>, out: u32, x: u32, shape: &[i32]) -> Result<()>;
        fn slice(self: Pin<&mut Values>, out: u32, x: u32, axis: i32, start: i32, count: i32, step: i32) -> Result<()>;
        fn strided(self: Pin<&mut Values>, out: u32, x: u32, shape: &[i32], strides: &[i64], offset: i64)
        -> Result<()>;
        fn concat(self: Pin<&mut Values>, out: u32, parts: &[u32], axis: i32) -> Result<()>;
        fn stack(self: Pin<&mut Values>, out: u32, parts: &[u32], axis: i32) -> Result<()>;
        fn update(
            self: Pin<&mut Values>,
            out: u32,
            base: u32,
            part: u32,
            axis: i32,
            start: i32,
            step: i32,
        ) -> Result<()>;

        fn number(self: Pin<&mut Values>, out: u32, value: f64, kind: Kind) -> Result<()>;
        fn integer(self: Pin<&mut Values>, out: u32, value: i64, kind: Kind) -> Result<()>;
        fn index(self: Pin<&mut Values>, out: u32, shape: &[i32], axis: i32, kind: Kind) -> Result<()>;
        fn cast(self: Pin<&mut Values>, out: u32, x: u32, kind: Kind) -> Result<()>;
        fn unary(self: Pin<&mut Values>, out: u32, op: UnaryOp, x: u32) -> Result<()>;
        fn binary(self: Pin<&mut Values>, out: u32, op: BinaryOp, a: u32, b: u32) -> Result<()>;
        fn compare(self: Pin<&mut Values>, out: u32, op: CompareOp, a: u32, b: u32) -> Result<()>;
        fn select(self: Pin<&mut Values>, out: u32, condition: u32, yes: u32, no: u32) -> Result<()>;

        fn reduce(
            self: Pin<&mut Values>,
            out: u32,
            x: u32,
            axes: &[i32],
            op: FoldOp,
            ddof: i32,
            kind: Kind,
        ) -> Result<()>;
        fn arg_reduce(self: Pin<&mut Values>, out: u32, x: u32, axis: i32, largest: bool) -> Result<()>;
        fn softmax(self: Pin<&mut Values>, out: u32, x: u32, axis: i32, kind: Kind) -> Result<()>;
        fn norm(
            self: Pin<&mut Values>,
            out: u32,
            x: u32,
            weight: u32,
            bias: u32,
            eps: f32,
            is_rms: bool,
            kind: Kind,
        ) -> Result<()>;
        fn sort(self: Pin<&mut Values>, out: u32, x: u32, axis: i32, indices: bool) -> Result<()>;
        fn cumsum(
            self: Pin<&mut Values>,
            out: u32,
            x: u32,
            axis: i32,
            reverse: bool,
            inclusive: bool,
            kind: Kind,
        ) -> Result<()>;
        fn random_bits(self: Pin<&mut Values>, out: u32, shape: &[i32], high: u32, low: u32, kind: Kind) -> Result<()>;

        fn matmul(self: Pin<&mut Values>, out: u32, a: u32, b: u32, lhs: u32, rhs: u32, kind: Kind) -> Result<()>;
        fn quant_matmul(
            self: Pin<&mut Values>,
            out: u32,
            x: u32,
            w: &Weights,
            transpose: bool,
            lhs: u32,
            rhs: u32,
            kind: Kind,
        ) -> Result<()>;
        fn dequantize(self: Pin<&mut Values>, out: u32, w: &Weights, kind: Kind) -> Result<()>;
        fn rope(
            self: Pin<&mut Values>,
            out: u32,
            x: u32,
            dims: i32,
            interleaved: bool,
            scale: f32,
            first: i64,
            position: u32,
            base: f32,
            periods: u32,
            kind: Kind,
        ) -> Result<()>;
        fn attention(
            self: Pin<&mut Values>,
            out: u32,
            q: u32,
            k: u32,
            v: u32,
            mask: u32,
            causal: bool,
            window: i64,
            scale: f32,
            kind: Kind,
        ) -> Result<()>;
        fn conv(
            self: Pin<&mut Values>,
            out: u32,
            x: u32,
            w: u32,
            shape: &[i32],
            stride: &[i32],
            padding: &[i32],
            dilation: &[i32],
            groups: i32,
            transposed: bool,
            kind: Kind,
        ) -> Result<()>;
        fn gated_delta(
            self: Pin<&mut Values>,
            out: u32,
            state_out: u32,
            operands: &[u32],
            kind: Kind,
            state_kind: Kind,
        ) -> Result<()>;

        fn take(self: Pin<&mut Values>, out: u32, x: u32, index: u32, axis: i32) -> Result<()>;
        fn take_along(self: Pin<&mut Values>, out: u32, x: u32, index: u32, axis: i32) -> Result<()>;
        fn gather(self: Pin<&mut Values>, out: u32, x: u32, indices: &[u32]) -> Result<()>;
        fn scatter(self: Pin<&mut Values>, out: u32, base: u32, updates: u32, indices: &[u32], add: bool)
        -> Result<()>;
        fn scatter_slice(self: Pin<&mut Values>, out: u32, base: u32, updates: u32, indices: &[u32]) -> Result<()>;
        fn check_index(
            self: Pin<&mut Values>,
            clipped: u32,
            index: u32,
            coordinate: u32,
            size: i64,
            wraps: bool,
        ) -> Result<()>;
        fn run_kernel(self: Pin<&mut Values>, kernel: &Kernel) -> Result<()>;
        fn take_checks(self: Pin<&mut Values>, out: u32) -> Result<usize>;
    }
}

// SAFETY: arrays are counted atomically, and whoever changes or evaluates one holds the lock.
unsafe impl Send for ffi::Values {}
// SAFETY: as above; a shared reference only copies or asks for a shape.
unsafe impl Sync for ffi::Values {}

static LOCK: Mutex<()> = Mutex::new(());

/// MLX, for one thread at a time.
pub(crate) fn lock() -> MutexGuard<'static, ()> {
    // A panic elsewhere leaves MLX as it was: its arrays never change.
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    ffi::enter();
    guard
}
