//! The tables of ExecuTorch's `program.fbs` and `flat_tensor.fbs`, under their names there.

use crate::error::{Fault, Result};
use crate::field::{Field, codes, read, records};
use crate::wire::{Entry, Table, WireValue};
use ptero_tensor::{DType, byte_count};
use std::ops::Range;

codes! {
    /// How a tensor's shape may vary.
    TensorShapeDynamism "shape dynamism" {
        /// `sizes` is the shape.
        0 Static,
        /// `sizes` is the largest shape.
        1 DynamicBound,
        /// `sizes` says nothing.
        2 DynamicUnbound,
    }
    /// Where a tensor's data is.
    TensorDataLocation "tensor data location" {
        /// In the program file.
        0 Segment,
        /// In a data file, under the tensor's name.
        1 External,
    }
    /// The device that a tensor or buffer wants to be on.
    DeviceType "device type" {
        /// The host.
        0 Cpu,
        /// An NVIDIA device.
        1 Cuda,
    }
    /// Where a delegate's data is.
    DataLocation "data location" {
        /// In `backend_delegate_data`.
        0 Inline,
        /// In `segments`.
        1 Segment,
    }
}

/// Bytes inside the table of contents itself, as a range. Only old files have them; ptero never writes them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Inline(pub(crate) Range<usize>);

impl Field for Inline {
    fn absent() -> Option<Self> {
        Some(Self::default())
    }

    fn get(entry: Entry<'_>) -> Result<Self> {
        entry.vector(1).map(|vector| Inline(vector.range()))
    }

    fn wire_value(&self) -> WireValue<'_> {
        WireValue::Absent
    }
}

records! {
    /// How the inputs and outputs of a method were nested in Python; JSON that ptero keeps and does not read.
    ContainerMetadata {
        /// The inputs.
        encoded_inp_str: String = String::new(),
        /// The outputs.
        encoded_out_str: String = String::new(),
    }
    /// Where an activation lies in a planned buffer.
    AllocationDetails {
        /// Which buffer of the method.
        memory_id: u32,
        /// Low half of the offset.
        memory_offset_low: u32,
        /// High half of the offset.
        memory_offset_high: u32,
    }
    /// Additional properties of a tensor.
    ExtraTensorInfo {
        /// Which of the mutable data segments holds its first value.
        mutable_data_segments_idx: u64,
        /// Its name in the model.
        fully_qualified_name: Option<String>,
        /// Where its data is.
        location: TensorDataLocation,
        /// The device it wants to be on.
        device_type: DeviceType,
        /// Which of those devices.
        device_index: i8,
    }
    /// A tensor of a method.
    Tensor {
        /// Its element type.
        scalar_type: DType,
        /// Elements before the first; always 0.
        storage_offset: i32,
        /// Its sizes, or their upper bounds.
        sizes: Vec<i32> = Vec::new(),
        /// The order of its dimensions in memory.
        dim_order: Vec<u8> = Vec::new(),
        /// Not used.
        requires_grad: bool,
        /// Which constant it is; 0 for none.
        data_buffer_idx: u32,
        /// Where it lies, if that was planned.
        allocation_info: Option<AllocationDetails>,
        /// Not used.
        layout: u8,
        /// How its shape may vary.
        shape_dynamism: TensorShapeDynamism,
        /// Additional properties of a tensor.
        extra_tensor_info: Option<ExtraTensorInfo>,
    }
    /// No value.
    Null {}
    /// An integer.
    Int {
        /// The integer.
        int_val: i64,
    }
    /// A bool.
    Bool {
        /// The bool.
        bool_val: bool,
    }
    /// A float.
    Double {
        /// The float.
        double_val: f64,
    }
    /// A text.
    Text {
        /// The text.
        string_val: String = String::new(),
    }
    /// Integers, each the index of a value.
    IntList {
        /// The indices.
        items: Vec<i64> = Vec::new(),
    }
    /// Floats.
    DoubleList {
        /// The floats.
        items: Vec<f64> = Vec::new(),
    }
    /// Bools.
    BoolList {
        /// The bools.
        items: Vec<bool> = Vec::new(),
    }
    /// Tensors, each the index of a value.
    TensorList {
        /// The indices.
        items: Vec<i32> = Vec::new(),
    }
    /// Tensors, each the index of a value, or -1 for none.
    OptionalTensorList {
        /// The indices.
        items: Vec<i32> = Vec::new(),
    }
    /// The name of a kernel that is not in a delegate.
    Operator {
        /// For example `aten::copy_`.
        name: String = String::new(),
        /// For example `out`.
        overload: String = String::new(),
    }
    /// Runs a kernel.
    KernelCall {
        /// Which of the method's operators.
        op_index: i32,
        /// Indices of values.
        args: Vec<i32> = Vec::new(),
    }
    /// Runs a delegate.
    DelegateCall {
        /// Which of the method's delegates.
        delegate_index: i32,
        /// Indices of values: the graph's inputs in its order, then its outputs.
        args: Vec<i32> = Vec::new(),
    }
    /// Copies a value.
    MoveCall {
        /// Index of the value read.
        move_from: i32,
        /// Index of the value written.
        move_to: i32,
    }
    /// Jumps unless a value is true.
    JumpFalseCall {
        /// Index of the value.
        cond_value_index: i32,
        /// Index of the instruction to go on with.
        destination_instruction: i32,
    }
    /// Frees a tensor's memory.
    FreeCall {
        /// Index of the value.
        value_index: i32,
    }
    /// A straight run of calls. Stack traces that a file may carry are dropped.
    CallChain {
        /// Indices of the values that enter.
        inputs: Vec<i32> = Vec::new(),
        /// Indices of the values that leave.
        outputs: Vec<i32> = Vec::new(),
        /// The calls.
        instructions: Vec<Call> = Vec::new(),
    }
    /// One option that a delegate was compiled with.
    CompileSpec {
        /// Its name.
        key: String = String::new(),
        /// Its value, in a form that only that delegate knows.
        value: Vec<u8> = Vec::new(),
    }
    /// The device of a planned buffer.
    NonConstBufferDevice {
        /// Which buffer.
        buffer_idx: i32,
        /// The device.
        device_type: DeviceType,
        /// Which of those devices.
        device_index: i8,
    }
}

/// Tables that the public types of [`crate::program`] replace.
#[allow(unreachable_pub, reason = "`records!` writes `pub` for all")]
pub(crate) mod raw {
    use super::*;

    records! {
        DataReference { location: DataLocation, index: u32 }
        BackendDelegate {
            id: String = String::new(),
            processed: DataReference,
            compile_specs: Vec<CompileSpec> = Vec::new(),
        }
        ExecutionPlan {
            name: String,
            container_meta_type: Option<ContainerMetadata>,
            values: Vec<EValue> = Vec::new(),
            inputs: Vec<i32> = Vec::new(),
            outputs: Vec<i32> = Vec::new(),
            chains: Vec<CallChain> = Vec::new(),
            operators: Vec<Operator> = Vec::new(),
            delegates: Vec<BackendDelegate> = Vec::new(),
            non_const_buffer_sizes: Vec<i64> = Vec::new(),
            non_const_buffer_device: Option<Vec<NonConstBufferDevice>>,
        }
        InlineData { data: Inline }
        DataSegment { offset: u64, size: u64 }
        SubsegmentOffsets { segment_index: u32, offsets: Vec<u64> = Vec::new() }
        NamedData { key: String, segment_index: u32 }
        Program {
            version: u32,
            execution_plan: Vec<ExecutionPlan> = Vec::new(),
            constant_buffer: Vec<InlineData> = Vec::new(),
            backend_delegate_data: Vec<InlineData> = Vec::new(),
            segments: Vec<DataSegment> = Vec::new(),
            constant_segment: Option<SubsegmentOffsets>,
            mutable_data_segments: Vec<SubsegmentOffsets> = Vec::new(),
            named_data: Vec<NamedData> = Vec::new(),
        }

        TensorLayout { scalar_type: DType, sizes: Vec<i32> = Vec::new(), dim_order: Vec<u8> = Vec::new() }
        NamedTensor { key: String, segment_index: u32, tensor_layout: Option<TensorLayout> }
        FlatTensor {
            version: u32,
            segments: Vec<DataSegment> = Vec::new(),
            named_data: Vec<NamedTensor> = Vec::new(),
        }
    }
}

/// Declares tables that hold nothing but a union: its tag in entry 0, its table in entry 1.
macro_rules! unions {
    ($($(#[$doc:meta])* $ty:ident $what:literal { $( $code:literal $case:ident($inner:ty) $text:literal ),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is the table of its name")]
        pub enum $ty { $( $case($inner) ),* }

        impl $ty {
            /// What kind it is, in words.
            pub fn kind(&self) -> &'static str {
                match self { $( $ty::$case(_) => $text ),* }
            }
        }

        impl crate::field::Record for $ty {
            fn read(table: &Table<'_>) -> Result<Self> {
                match read::<u8>(table, 0, None)? {
                    $( $code => read(table, 1, None).map($ty::$case), )*
                    other => Err(Fault::UnknownCode { what: $what, value: other.into() }.into()),
                }
            }

            fn written(&self) -> Vec<WireValue<'_>> {
                match self { $( $ty::$case(inner) => vec![WireValue::scalar([$code]), WireValue::Child(inner)] ),* }
            }
        }
    )*};
}

unions! {
    /// A value of a method.
    EValue "value type" {
        1 Null(Null) "null",
        2 Int(Int) "integer",
        3 Bool(Bool) "bool",
        4 Double(Double) "float",
        5 Tensor(Tensor) "tensor",
        6 Text(Text) "text",
        7 IntList(IntList) "integer list",
        8 DoubleList(DoubleList) "float list",
        9 BoolList(BoolList) "bool list",
        10 TensorList(TensorList) "tensor list",
        11 OptionalTensorList(OptionalTensorList) "optional tensor list",
    }
    /// One instruction of a method.
    Call "instruction type" {
        1 Kernel(KernelCall) "kernel call",
        2 Delegate(DelegateCall) "delegate call",
        3 Move(MoveCall) "move",
        4 JumpFalse(JumpFalseCall) "jump",
        5 Free(FreeCall) "free",
    }
}

impl Tensor {
    /// A row-major tensor of fixed sizes that the caller provides.
    pub fn new(scalar_type: DType, sizes: Vec<i32>) -> Self {
        Self {
            scalar_type,
            storage_offset: 0,
            dim_order: (0..).take(sizes.len()).collect(),
            sizes,
            requires_grad: false,
            data_buffer_idx: 0,
            allocation_info: None,
            layout: 0,
            shape_dynamism: TensorShapeDynamism::Static,
            extra_tensor_info: None,
        }
    }

    /// The sizes (upper bounds, where the shape is not fixed).
    pub fn sizes(&self) -> Result<Vec<u64>> {
        sizes(&self.sizes)
    }

    /// The bytes of the tensor at its (largest) shape.
    pub fn byte_count(&self) -> Result<u64> {
        Ok(byte_count(&self.sizes()?, self.scalar_type).ok_or(Fault::CountOverflow)?)
    }
}

pub(crate) fn sizes(sizes: &[i32]) -> Result<Vec<u64>> {
    let size = |&size: &i32| Ok(u64::try_from(size).map_err(|_| Fault::NegativeSize(size.into()))?);
    sizes.iter().map(size).collect()
}

impl AllocationDetails {
    /// The offset in the buffer, in bytes.
    pub fn offset(&self) -> u64 {
        u64::from(self.memory_offset_high) << 32 | u64::from(self.memory_offset_low)
    }
}
