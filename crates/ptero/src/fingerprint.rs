//! A name for everything that a text follows from, but for its request and seed.

use crate::device::Device;
use crate::error::Result;
use crate::format::ChatFormat;
use crate::options::Options;
use crate::settings::Defaults;
use crate::source::Contents;
use ptero_engine::Engine;
use std::fmt::Debug;
use std::sync::OnceLock;

/// What a model's texts follow from. The program is read only when its name is asked for.
#[derive(Debug)]
pub(crate) struct Fingerprint {
    conditions: blake3::Hasher,
    arithmetic: String,
    name: OnceLock<String>,
}

impl Fingerprint {
    /// Notes all but the program. Each part is hashed by itself, so that no part can be taken for the beginning of the next.
    pub(crate) fn of(options: &Options, engine: &Engine, format: &ChatFormat) -> Self {
        let mut conditions = blake3::Hasher::new();
        let mut add = |part: &dyn Debug| {
            conditions.update(blake3::hash(format!("{part:?}").as_bytes()).as_bytes());
        };
        add(&format.digest);
        add(&format.ends);
        add(&Defaults::of(&format.generation));
        // The defaults that are followed depend on the sampling head, and the end of a text on the context.
        add(&(engine.samples_itself(), engine.has_full_sampler(), engine.context()));
        add(&options.kv_cache);
        // A canonicalisation that is left out may round otherwise.
        let mut without = options.without.clone();
        without.sort_unstable();
        add(&without);
        let device = options.device.resolve();
        let is_exact = match device {
            // All of these give the same bits, which the version of the arithmetic names.
            Device::Auto | Device::Cpu | Device::Cuda | Device::Reference => true,
            Device::Mlx => false,
        };
        if !is_exact {
            let made_by = crate::devices::mlx().map(|mlx| (mlx.version, mlx.name));
            add(&(made_by, options.foreign_kernels));
        }
        let arithmetic = if is_exact { format!("a{}", ptero_arithmetic::VERSION) } else { device.name().to_owned() };
        Self { conditions, arithmetic, name: OnceLock::new() }
    }

    /// Returns the name: 64 bits of a digest as hexadecimal digits, and the arithmetic.
    ///
    /// # Errors
    /// When a file of the program cannot be read any more.
    pub(crate) fn name(&self, contents: &Contents) -> Result<&str> {
        if let Some(name) = self.name.get() {
            return Ok(name);
        }
        let digest = self.conditions.clone().update(contents.digest()?.as_bytes()).finalize().to_hex();
        Ok(self.name.get_or_init(|| format!("{}-{}", &digest[..16], self.arithmetic)))
    }
}
