//! Making programs from checkpoints, and the names of what can be chosen.

use crate::cache::write_program;
use crate::error::{Context, Result};
use crate::hub;
use crate::progress::Progress;
use ptero_checkpoint::{Checkpoint, Limits};
pub use ptero_export::{Recipe, ScaleType, Storage};
pub use ptero_sampling::inputs::Head;
use std::path::{Path, PathBuf};

/// Makes a program from a checkpoint: a Hugging Face folder, a `.safetensors` or `.gguf` file, or with the feature `hub`,
/// `owner/name` of the Hugging Face hub. Returns the size of the file.
///
/// ```no_run
/// use ptero::Progress;
/// use ptero::export::{Head, QUANTIZATIONS, Recipe, export, named};
///
/// let int4 = named(QUANTIZATIONS, "int4").unwrap_or_default();
/// let recipe = Recipe { sample: Some(Head::Full), ..int4.recipe() };
/// export("SmolLM2-135M-Instruct".as_ref(), "smol.pte".as_ref(), &recipe, &Progress::default())?;
/// # Ok::<(), ptero::Error>(())
/// ```
///
/// # Errors
/// When there is no such checkpoint, it cannot be exported, the output is part of it, or the disk is full or fails.
pub fn export(checkpoint: &Path, output: &Path, recipe: &Recipe, progress: &Progress) -> Result<u64> {
    let path = hub::resolve(checkpoint, &hub::Options::from_env(progress.clone()))?;
    let in_checkpoint = || path.display().to_string();
    let checkpoint = Checkpoint::open(&path, &Limits::default())?;
    let export = ptero_export::export(&checkpoint, recipe).context(in_checkpoint)?;
    write_program(&export, output, &kept(&path), progress)
}

/// Names of values, and what they mean.
pub type Names<T> = &'static [(&'static str, T, &'static str)];

/// Returns the value with this name.
pub fn named<T: Copy>(names: Names<T>, name: &str) -> Option<T> {
    names.iter().find(|(found, ..)| *found == name).map(|(_, value, _)| *value)
}

/// How linear layers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// How most are stored.
    pub linear: Storage,
    /// How sensitive layers are stored, if not as the others.
    pub sensitive: Option<Storage>,
}

impl Quantization {
    const fn all(linear: Storage) -> Self {
        Self { linear, sensitive: None }
    }

    /// Returns that of a recipe.
    pub fn of(recipe: &Recipe) -> Self {
        Self { linear: recipe.linear, sensitive: recipe.sensitive }
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        QUANTIZATIONS.iter().find(|(_, found, _)| *found == self).map_or("", |(name, ..)| name)
    }

    /// Returns a recipe that stores weights like this, and the rest as is usual.
    pub fn recipe(self) -> Recipe {
        let (linear, sensitive, embedding) = (self.linear, self.sensitive, self.embedding());
        Recipe { linear, sensitive, embedding, ..Recipe::default() }
    }

    /// Returns how embeddings are stored by default.
    pub fn embedding(self) -> Storage {
        if self.linear == Storage::Int4 { Storage::Int8 } else { self.linear }
    }
}

impl Default for Quantization {
    /// As in the checkpoint.
    fn default() -> Self {
        Self::all(Storage::AsInCheckpoint)
    }
}

/// The sampling heads of programs.
pub const HEADS: Names<Head> =
    &[("plain", Head::Plain, "the head of ExecuTorch's exporter"), ("full", Head::Full, "every option of the sampler")];

/// The ways to store the weights of linear layers.
pub const QUANTIZATIONS: Names<Quantization> = &[
    ("int4", Quantization::all(Storage::Int4), "4 bits per weight"),
    (
        "int4-mixed",
        Quantization { linear: Storage::Int4, sensitive: Some(Storage::Int8) },
        "int4, but down_proj, v_proj, the first and the last layer and the output layer in int8",
    ),
    ("int8", Quantization::all(Storage::Int8), "8 bits per weight"),
    ("none", Quantization::all(Storage::Plain), "Not quantized"),
    (
        "keep",
        Quantization::all(Storage::AsInCheckpoint),
        "As in the checkpoint: GGUF blocks stay blocks or groups of the same codes",
    ),
];

/// The ways to store a table of weights.
pub const STORAGES: Names<Storage> = &[
    ("int4", Storage::Int4, "4 bits per weight"),
    ("int8", Storage::Int8, "8 bits per weight"),
    ("none", Storage::Plain, "Not quantized"),
    ("keep", Storage::AsInCheckpoint, "As in the checkpoint: GGUF blocks stay blocks or groups of the same codes"),
];

/// The types of activations.
pub const FLOATS: Names<ScaleType> = &[
    ("bf16", ScaleType::Bf16, "bfloat16"),
    ("f16", ScaleType::F16, "Half precision"),
    ("f32", ScaleType::F32, "Single precision"),
];

/// Returns the files that the program must not replace: the checkpoint, and in a folder everything except programs.
#[doc(hidden)]
pub fn kept(checkpoint: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(checkpoint).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_program = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pte");
    files.filter(|path| !is_program(path)).chain([checkpoint.to_owned()]).collect()
}
