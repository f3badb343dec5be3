//! Making programs from checkpoints.

use crate::errors::{OrRaise, raise};
use crate::progress::progress;
use ptero::export::{FLOATS, HEADS, Names, QUANTIZATIONS, Recipe, STORAGES, named};
use pyo3::prelude::*;
use std::path::PathBuf;

/// The sizes of groups.
const GROUP_SIZES: [usize; 3] = [32, 64, 128];

/// Makes a program from a checkpoint, and returns its size in bytes.
#[pyfunction]
#[pyo3(signature = (checkpoint, output, quantize, sample, group_size, embed, dtype, max_context, max_prefill, files, report))]
#[allow(clippy::too_many_arguments, reason = "the arguments of Python's function")]
pub(crate) fn export(
    py: Python<'_>,
    checkpoint: PathBuf,
    output: PathBuf,
    quantize: &str,
    sample: Option<&str>,
    group_size: Option<usize>,
    embed: Option<&str>,
    dtype: &str,
    max_context: Option<u32>,
    max_prefill: Option<u32>,
    files: bool,
    report: Option<Py<PyAny>>,
) -> PyResult<u64> {
    if let Some(size) = group_size.filter(|size| !GROUP_SIZES.contains(size)) {
        return Err(raise("SettingError", format!("`group_size` is {size}; it must be one of {GROUP_SIZES:?}")));
    }
    let recipe = chosen("quantize", QUANTIZATIONS, quantize)?.recipe();
    let recipe = Recipe {
        dtype: chosen("dtype", FLOATS, dtype)?,
        embedding: embed.map_or(Ok(recipe.embedding), |name| chosen("embed", STORAGES, name))?,
        group: group_size,
        max_context,
        max_prefill,
        sample: sample.map(|name| chosen("sample", HEADS, name)).transpose()?,
        embed_files: files,
        ..recipe
    };
    let progress = progress(report);
    py.detach(|| ptero::export::export(&checkpoint, &output, &recipe, &progress)).or_raise()
}

/// Returns the value with a name, or says which names there are.
fn chosen<T: Copy>(argument: &str, names: Names<T>, name: &str) -> PyResult<T> {
    named(names, name).ok_or_else(|| {
        let names: Vec<_> = names.iter().map(|(name, ..)| *name).collect();
        raise("SettingError", format!("`{argument}` is `{name}`; it must be one of: {}", names.join(", ")))
    })
}

/// Returns the names that the arguments of [`export`] take, and what they mean.
#[pyfunction]
pub(crate) fn choices() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    fn texts<T>(names: Names<T>) -> Vec<(&'static str, &'static str)> {
        names.iter().map(|(name, _, help)| (*name, *help)).collect()
    }
    vec![
        ("quantize", texts(QUANTIZATIONS)),
        ("sample", texts(HEADS)),
        ("embed", texts(STORAGES)),
        ("dtype", texts(FLOATS)),
    ]
}
