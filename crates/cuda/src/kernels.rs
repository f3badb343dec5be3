//! The kernels of primitives: their sources, and those that are compiled and loaded.

pub(crate) mod attention;
pub(crate) mod attention_row;
pub(crate) mod by_choice;
pub(crate) mod conv;
pub(crate) mod conv_state;
pub(crate) mod follow;
pub(crate) mod gated_delta;
pub(crate) mod head;
pub(crate) mod index;
pub(crate) mod join;
pub(crate) mod map;
pub(crate) mod matmul;
pub(crate) mod matmul_row;
pub(crate) mod norm;
pub(crate) mod order;
pub(crate) mod product;
pub(crate) mod quant;
pub(crate) mod quant_many;
pub(crate) mod quant_matmul;
pub(crate) mod quant_row;
pub(crate) mod quantize;
pub(crate) mod random;
pub(crate) mod reduce;
mod rehearsal;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod sum_rows;
mod variants;

pub use variants::VARIANTS;

use crate::cache::Cache;
use crate::context::Device;
use crate::error::Result;
use crate::kernels::rehearsal::Rehearsal;
use crate::launch::Kernel;
use crate::module::{Module, Source, Variant};
use crate::sample::{LogitType, Sampler};
use bytemuck::Pod;
use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// What kernels of primitives may include.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("arithmetic.cuh", include_str!("kernels/arithmetic.cuh")),
    ("choice_tile.cuh", include_str!("kernels/choice_tile.cuh")),
    ("element.cuh", include_str!("kernels/element.cuh")),
    ("fused.cuh", include_str!("kernels/fused.cuh")),
    ("norm_row.cuh", include_str!("kernels/norm_row.cuh")),
    ("operand.cuh", include_str!("kernels/operand.cuh")),
    ("quant.cuh", include_str!("kernels/quant.cuh")),
    ("quant_args.cuh", include_str!("kernels/quant_args.cuh")),
    ("quant_cell.cuh", include_str!("kernels/quant_cell.cuh")),
    ("scalar.cuh", include_str!("kernels/scalar.cuh")),
    ("strands.cuh", include_str!("kernels/strands.cuh")),
    ("threefry.cuh", include_str!("kernels/threefry.cuh")),
    ("view.cuh", include_str!("kernels/view.cuh")),
    ("whole_numbers.cuh", include_str!("kernels/whole_numbers.cuh")),
];

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

/// The compiled kernels of a device.
#[derive(Debug)]
pub(crate) struct Kernels {
    device: Device,
    cache: Cache,
    loaded: Mutex<Loaded>,
    samplers: Mutex<HashMap<LogitType, Arc<Sampler>>>,
    rehearsal: Rehearsal,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<String, Arc<Module>>,
    /// Kernels of any argument struct, by module and name.
    kernels: HashMap<String, Arc<dyn Any + Send + Sync>>,
}

impl Kernels {
    pub(crate) fn new(device: Device, cache: Cache) -> Self {
        Self { device, cache, loaded: Mutex::default(), samplers: Mutex::default(), rehearsal: Rehearsal::default() }
    }

    /// A kernel, compiled if it was never used.
    pub(crate) fn kernel<A: Pod>(
        &self,
        source: &'static Source,
        variant: Variant<'_>,
        name: &'static str,
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
        let kernel = Arc::new(module.kernel::<A>(name)?);
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
