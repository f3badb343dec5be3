//! Families of models: one file each, which reads like the model's card.

mod gemma4;
mod llama;
mod qwen3_5_moe;

use crate::builder::Tensor;
use crate::config::Size;
use crate::error::{ExportError, Result};
use crate::net::Net;
use serde_json::Value;

/// Models that are built the same way.
#[derive(Debug)]
pub struct Family {
    /// What we call it.
    pub name: &'static str,
    /// What configurations call it: their `model_type`.
    pub model_types: &'static [&'static str],
    pub(crate) build: fn(&mut Net<'_>, &Value) -> Result<Model>,
}

/// All families.
pub const FAMILIES: &[Family] = &[llama::FAMILY, gemma4::FAMILY, qwen3_5_moe::FAMILY];

/// A model that was built: where its logits are.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) logits: Tensor,
    pub(crate) dtype: ptero_pte::DType,
    pub(crate) vocabulary: Size,
    pub(crate) layers: Size,
}

/// The family that a configuration belongs to.
pub(crate) fn family_of(config: &Value) -> Result<&'static Family> {
    let found = config.get("model_type").and_then(Value::as_str).ok_or(ExportError::NoModelType)?;
    let family = FAMILIES.iter().find(|family| family.model_types.contains(&found));
    family.ok_or_else(|| ExportError::UnknownFamily { found: found.to_owned() })
}
