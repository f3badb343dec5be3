//! The kernels of primitives: their sources, and those that are compiled and loaded.

pub(crate) mod attention;
pub(crate) mod elements;
pub(crate) mod follow;
pub(crate) mod head;
pub(crate) mod join;
pub(crate) mod products;
pub(crate) mod quant;
pub(crate) mod reductions;
mod rehearsal;
pub(crate) mod rows;
pub(crate) mod state;
pub(crate) mod together;
mod variants;

pub use variants::{VARIANTS, files_of_parts, launches};

use crate::cache::Cache;
use crate::context::{Device, Version};
use crate::error::Result;
use crate::kernels::rehearsal::Rehearsal;
use crate::launch::Kernel;
use crate::module::{Module, Source, Variant, nvrtc_version};
use crate::sample::{LogitType, Sampler};
use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// Names and contents of files in `kernels/`, by folder.
macro_rules! headers {
    ($($folder:literal: $($file:literal)*;)*) => {
        &[$($(($file, include_str!(concat!("kernels/", $folder, $file)))),*),*]
    };
}

/// What kernels of primitives may include: headers, and kernels that are parts of launches.
pub(crate) const HEADERS: &[(&str, &str)] = headers! {
    "attention/":
        "attention_row.cu" "rope_row.cu";
    "elements/":
        "gather.cu" "index.cuh" "map.cu" "map.cuh";
    "":
        "follow.cu";
    "products/":
        "choice_tile.cuh" "matmul_row.cu" "normed.cuh";
    "quant/":
        "dequantize.cu" "quant.cuh" "quant_args.cuh" "quant_cell.cuh" "quant_row.cu" "whole_numbers.cuh";
    "reductions/":
        "normalize_rows.cu" "route.cu" "sum_rows.cu";
    "shared/":
        "arithmetic.cuh" "block.cuh" "element.cuh" "fused.cuh" "norm_row.cuh" "operand.cuh" "scalar.cuh" "strands.cuh" "threefry.cuh" "view.cuh";
    "state/":
        "conv_state.cu" "delta_rule.cuh" "gated_delta.cu" "gated_delta_row.cu";
};

/// The source of a file in `kernels/`.
macro_rules! source {
    ($file:literal) => {
        crate::module::Source {
            name: $file,
            text: include_str!($file),
            headers: crate::kernels::HEADERS,
            fused_multiply_add: false,
        }
    };
}
pub(crate) use source;

/// The value of a macro that is asked for by `#if`.
pub(crate) fn flag(is_set: bool) -> &'static str {
    if is_set { "1" } else { "0" }
}

/// The name of what is compiled.
fn module_key(source: &Source, variant: Variant<'_>) -> String {
    let mut key = String::with_capacity(96);
    key.push_str(source.name);
    for (define, value) in variant.defines {
        key.extend([" ", define, "=", value]);
    }
    if !variant.generated.is_empty() {
        key.extend([" ", blake3::hash(variant.generated.as_bytes()).to_hex().as_str()]);
    }
    key
}

/// From CUDA 12.1 on, kernels take more bytes of arguments.
fn most_argument_bytes(device: &Device) -> usize {
    let has_more = |version: Version| version >= Version { major: 12, minor: 1 };
    if has_more(device.info().driver) && nvrtc_version().is_ok_and(has_more) { 32_764 } else { 4096 }
}

/// The compiled kernels of a device.
#[derive(Debug)]
pub(crate) struct Kernels {
    device: Device,
    cache: Cache,
    loaded: Mutex<Loaded>,
    samplers: Mutex<HashMap<LogitType, Arc<Sampler>>>,
    rehearsal: Rehearsal,
    /// The most bytes of arguments of a kernel.
    pub(crate) most_argument_bytes: usize,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<String, Arc<Module>>,
    /// Kernels of any argument struct, by module and name.
    kernels: HashMap<String, Arc<dyn Any + Send + Sync>>,
}

impl Kernels {
    pub(crate) fn new(device: Device, cache: Cache) -> Self {
        let most_argument_bytes = most_argument_bytes(&device);
        let (loaded, samplers, rehearsal) = (Mutex::default(), Mutex::default(), Rehearsal::default());
        Self { device, cache, loaded, samplers, rehearsal, most_argument_bytes }
    }

    /// A kernel for arguments of that many bytes, compiled if it was never used.
    pub(crate) fn kernel<A: ?Sized + 'static>(
        &self,
        source: &'static Source,
        variant: Variant<'_>,
        (name, bytes): (&'static str, usize),
    ) -> Result<Arc<Kernel<A>>> {
        let mut key = module_key(source, variant);
        let module_length = key.len();
        key.extend([" ", name]);
        let find = |loaded: &Loaded| loaded.kernels.get(&key).cloned().and_then(|kernel| kernel.downcast().ok());
        let lock = || self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = find(&lock()) {
            return Ok(kernel);
        }
        let module = self.module(key.split_at(module_length).0, source, variant)?;
        let kernel = Arc::new(module.kernel_of::<A>(name, bytes)?);
        let shared: Arc<dyn Any + Send + Sync> = kernel.clone();
        lock().kernels.insert(key, shared);
        Ok(kernel)
    }

    fn module(&self, key: &str, source: &'static Source, variant: Variant<'_>) -> Result<Arc<Module>> {
        let lock = || self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().modules.get(key).cloned();
        if let Some(module) = known {
            return Ok(module);
        }
        // Not under the lock: other threads go on with what is compiled.
        let module = Arc::new(Module::load_from(&self.cache, &self.device, source, variant)?);
        lock().modules.insert(key.to_owned(), Arc::clone(&module));
        Ok(module)
    }

    /// The sampler for a type of logits.
    pub(crate) fn sampler(&self, logits: LogitType) -> Result<Arc<Sampler>> {
        let mut samplers = self.samplers.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match samplers.entry(logits) {
            Entry::Occupied(known) => Arc::clone(known.get()),
            Entry::Vacant(new) => Arc::clone(new.insert(Arc::new(Sampler::new(&self.device, logits)?))),
        })
    }
}
