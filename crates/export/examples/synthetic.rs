//! Writes a checkpoint of Llama's shape with random weights, as large as wanted: something to measure the exporter on.
//!
//! `cargo run --release -p ptero-export --example synthetic -- FOLDER LAYERS WIDTH INNER VOCABULARY`

use serde_json::{Map, Value, json};
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Bytes that a shard holds at most, unless one tensor is larger.
const SHARD: u64 = 2_000_000_000;

type Tensor = (String, Vec<u64>);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, sizes @ ..] = args.as_slice() else { return Err("FOLDER LAYERS WIDTH INNER VOCABULARY".into()) };
    let sizes = sizes.iter().map(|size| size.parse()).collect::<Result<Vec<u64>, _>>()?;
    let [layers, width, inner, vocabulary] = sizes.as_slice() else { return Err("four sizes".into()) };
    let folder = Path::new(folder);
    fs::create_dir_all(folder)?;
    let config = json!({
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": width / 64, "num_key_value_heads": width / 64,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
    });
    fs::write(folder.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    let mut random = 1;
    let mut map = Map::new();
    for (number, shard) in shards(tensors(*layers, *width, *inner, *vocabulary)).into_iter().enumerate() {
        let name = format!("model-{number:05}.safetensors");
        write(&folder.join(&name), &shard, &mut random)?;
        map.extend(shard.into_iter().map(|(tensor, _)| (tensor, Value::from(name.as_str()))));
    }
    fs::write(folder.join("model.safetensors.index.json"), serde_json::to_vec(&json!({ "weight_map": map }))?)?;
    Ok(())
}

fn tensors(layers: u64, width: u64, inner: u64, vocabulary: u64) -> Vec<Tensor> {
    let layer = |layer: u64| {
        let name = move |rest: &str| format!("model.layers.{layer}.{rest}.weight");
        let square = ["q", "k", "v", "o"].map(|part| (name(&format!("self_attn.{part}_proj")), vec![width, width]));
        let up = ["gate", "up"].map(|part| (name(&format!("mlp.{part}_proj")), vec![inner, width]));
        let norms = ["input_layernorm", "post_attention_layernorm"].map(|part| (name(part), vec![width]));
        square.into_iter().chain(up).chain([(name("mlp.down_proj"), vec![width, inner])]).chain(norms)
    };
    let table = |name: &str| (name.to_owned(), vec![vocabulary, width]);
    let ends = [table("model.embed_tokens.weight"), table("lm_head.weight"), ("model.norm.weight".into(), vec![width])];
    (0..layers).flat_map(layer).chain(ends).collect()
}

fn bytes(shape: &[u64]) -> u64 {
    2 * shape.iter().product::<u64>()
}

fn shards(tensors: Vec<Tensor>) -> Vec<Vec<Tensor>> {
    let mut shards: Vec<Vec<Tensor>> = vec![Vec::new()];
    let mut room = SHARD;
    for tensor in tensors {
        let size = bytes(&tensor.1);
        if size > room && shards.last().is_some_and(|shard| !shard.is_empty()) {
            shards.push(Vec::new());
            room = SHARD;
        }
        room = room.saturating_sub(size);
        shards.last_mut().into_iter().for_each(|shard| shard.push(tensor.clone()));
    }
    shards
}

/// A safetensors file of bf16 whose exponents are those of small numbers.
fn write(path: &Path, tensors: &[Tensor], random: &mut u64) -> Result<(), Box<dyn Error>> {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += bytes(shape);
        header.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }));
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for _ in 0..end / 8 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        // Sign and fraction at random, exponents of 2^-8 to 2^-5.
        out.write_all(&(*random & 0x81ff_81ff_81ff_81ff | 0x3b80_3b80_3b80_3b80).to_le_bytes())?;
    }
    out.write_all(&vec![0; usize::try_from(end % 8)?])?;
    Ok(out.flush()?)
}
