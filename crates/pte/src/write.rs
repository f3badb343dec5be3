//! Writing a program: data into segments, everything else into the table of contents.

use crate::container::{SegmentWriter, Segments};
use crate::program::{DelegateEntry, Method, NamedData, Payload, Program};
use crate::schema::{DataLocation, raw};
use ptero_tensor::Bytes;
use std::io::{self, Write};

/// Entries of the constant and mutable segments start at multiples of this.
const ENTRY_ALIGN: usize = 16;

/// Data that the caller writes after everything else: its name and its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its name.
    pub key: String,
    /// Its size.
    pub bytes: u64,
}

impl Program {
    /// Writes the program; the same program gives the same bytes. Data that came from `.ptd` files becomes part of it.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_before(&[], out)?.finish().map(drop)
    }

    /// Writes the program except for the pending data, which the caller writes to the result, in order: weights can be
    /// encoded while they are written, and are never all in memory.
    pub fn write_before<W: Write>(&self, pending: &[Pending], out: W) -> io::Result<SegmentWriter<W>> {
        let mut segments = Segments::default();
        let constant_segment = Some(entries(&self.constants, &mut segments));
        let mutable_data_segments = self.mutable_data.iter().map(|list| entries(list, &mut segments)).collect();
        let execution_plan = self.methods.iter().map(|method| plan(method, &mut segments)).collect();
        let here = |entry: &NamedData| (entry.key.clone(), segments.add(entry.data.clone()));
        let mut keys: Vec<(String, u32)> = self.named_data.iter().chain(&self.external_data).map(here).collect();
        keys.extend(pending.iter().map(|entry| (entry.key.clone(), segments.reserve(entry.bytes))));
        let named_data = keys.into_iter().map(|(key, segment_index)| raw::NamedData { key, segment_index }).collect();
        let program = raw::Program {
            version: 0,
            execution_plan,
            constant_buffer: Vec::new(),
            backend_delegate_data: Vec::new(),
            segments: segments.table(),
            constant_segment,
            mutable_data_segments,
            named_data,
        };
        segments.write_program(&program, out)
    }
}

/// Puts the entries into one segment. Entry 0, which stands for "none", exists even if the list is empty.
fn entries(list: &[Bytes], segments: &mut Segments) -> raw::SubsegmentOffsets {
    let mut data = Vec::new();
    let mut offsets = Vec::with_capacity(list.len().max(1));
    for entry in list {
        data.resize(data.len().next_multiple_of(ENTRY_ALIGN), 0);
        offsets.push(data.len() as u64);
        data.extend_from_slice(entry);
    }
    if offsets.is_empty() {
        offsets.push(0);
    }
    raw::SubsegmentOffsets { segment_index: segments.add(data.into()), offsets }
}

fn plan(method: &Method, segments: &mut Segments) -> raw::ExecutionPlan {
    raw::ExecutionPlan {
        name: method.name.clone(),
        container_meta_type: method.container.clone(),
        values: method.values.clone(),
        inputs: method.inputs.clone(),
        outputs: method.outputs.clone(),
        chains: method.chains.clone(),
        operators: method.operators.clone(),
        delegates: method.delegates.iter().map(|delegate| written(delegate, segments)).collect(),
        non_const_buffer_sizes: method.buffer_sizes.clone(),
        non_const_buffer_device: method.buffer_devices.clone(),
    }
}

fn written(delegate: &DelegateEntry, segments: &mut Segments) -> raw::BackendDelegate {
    let data = match &delegate.payload {
        Payload::Mlx(graph) => graph.bytes().into(),
        Payload::Foreign(data) => data.clone(),
    };
    raw::BackendDelegate {
        id: delegate.id.clone(),
        processed: raw::DataReference { location: DataLocation::Segment, index: segments.add(data) },
        compile_specs: delegate.specs.clone(),
    }
}
