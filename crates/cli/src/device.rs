//! The devices that this build knows.
#![allow(clippy::indexing_slicing, reason = "a constant loop over a constant table")]

use anyhow::{Result, bail};
use ptero_backend::{Backend, Reference};
use ptero_cpu::Cpu;
use ptero_plan::passes::PASSES;

/// Their names.
pub const NAMES: [&str; 2] = ["cpu", "reference"];
/// The one that is taken unless another is named.
pub const DEFAULT: &str = "cpu";

/// The passes that plans go through before a device gets them.
pub const PASS_NAMES: [&str; PASSES.len()] = {
    let mut names = [""; PASSES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = PASSES[at].name;
        at += 1;
    }
    names
};

/// The device of that name.
pub fn open(name: &str) -> Result<Box<dyn Backend>> {
    match name {
        "cpu" => Ok(Box::new(Cpu::new())),
        "reference" => Ok(Box::new(Reference)),
        other => bail!("no device `{other}` (there is: {})", NAMES.join(", ")),
    }
}
