//! Writes a large program for measurements: about 5,000 random nodes, and as many constants of 2 MB as fill the size.
//!
//! `cargo run --release -p ptero-pte --example large -- OUT MEGABYTES`

#[path = "../tests/common/generate.rs"]
mod generate;

use generate::{Rng, program};
use ptero_pte::field::{Slot, Use};
use ptero_pte::{Bytes, DType, Delegate, NamedData, NamedSlot, Payload, ShapeDim, SlotType, SlotVariant, TensorMeta};
use std::fs::File;
use std::io::BufWriter;

const SIDE: i32 = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(megabytes)) = (args.next(), args.next()) else {
        return Err("usage: large OUT MEGABYTES".into());
    };
    let count = megabytes.parse::<u32>()? / 2;
    let mut program = program(&mut Rng::new(5), 3_000);
    for method in &mut program.methods {
        for delegate in &mut method.delegates {
            if let Payload::Mlx(graph) = &mut delegate.payload {
                insert_constants(graph, count);
            }
        }
    }
    for index in 0..count {
        let data = Bytes::from(vec![0; 2 << 20]);
        program.named_data.push(NamedData { key: weight_name(index), data });
    }
    program.write(&mut BufWriter::new(File::create(path)?))?;
    Ok(())
}

fn weight_name(index: u32) -> String {
    format!("1a46/model.layers.{index}.weight")
}

/// Puts `count` constants before all other slots, which move up.
fn insert_constants(graph: &mut Delegate, count: u32) {
    for node in graph.instruction_chains.iter_mut().flatten() {
        node.rewire(&mut |used| match used {
            Use::Read(slot) | Use::Feed(slot) | Use::Collect(slot) | Use::Write(slot) => match slot {
                Slot::Tensor(index) => index + count,
                Slot::Value(index) => index,
            },
            Use::Chain(chain) => chain,
        });
    }
    let maps = [&mut graph.input_map, &mut graph.output_map, &mut graph.mutable_buffer_map];
    let named = graph.named_slots.iter_mut().map(|named| &mut named.slot);
    for slot in maps.into_iter().flatten().chain(named) {
        slot.idx += count;
    }
    graph.num_constant_tensors += count;
    for index in 0..count {
        let slot = SlotVariant { idx: index, slot_type: SlotType::Tensor };
        graph.named_slots.push(NamedSlot { name: weight_name(index), slot });
        let side = ShapeDim { value: SIDE, min_value: 0, max_value: -1 };
        let meta = TensorMeta { shape: vec![side.clone(), side], scalar_type: DType::Bf16, dim_order: None };
        graph.tensor_meta.insert(0, meta);
    }
}
