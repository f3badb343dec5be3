//! Writing a program: data into segments, everything else into the table of contents.

use crate::container::Segments;
use crate::program::{Delegate, Method, NamedData, Payload, Program};
use crate::schema::{DataLocation, raw};
use ptero_tensor::Bytes;
use std::io::{self, Write};

/// Entries of the constant and mutable segments start at multiples of this.
const ENTRY_ALIGN: usize = 16;

impl Program {
    /// Writes the program; the same program gives the same bytes. Data that came from `.ptd` files becomes part of it.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut segments = Segments::default();
        let constant_segment = Some(entries(&self.constants, &mut segments));
        let mutable_data_segments = self.mutable_data.iter().map(|list| entries(list, &mut segments)).collect();
        let execution_plan = self.methods.iter().map(|method| plan(method, &mut segments)).collect();
        let named = |entry: &NamedData| raw::NamedData {
            key: entry.key.clone(),
            segment_index: segments.add(entry.data.clone()),
        };
        let named_data = self.named_data.iter().chain(&self.external_data).map(named).collect();
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

/// Puts the entries into one segment. Entry 0, which stands for "none", exists even where there is nothing else.
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

fn written(delegate: &Delegate, segments: &mut Segments) -> raw::BackendDelegate {
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
