//! How a checkpoint becomes a program.

use ptero_sampling::inputs::Head;
use ptero_tensor::ScaleType;

/// The options of [`crate::export`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The type of activations, of the state, and of weights that are not quantized.
    pub dtype: ScaleType,
    /// How the weights of linear layers are stored.
    pub linear: Storage,
    /// How those weights of linear layers are stored whose errors cost the most, if not as the others: every `v_proj` and
    /// `down_proj`, all of the first and of the last layer, and a head that is not tied to the embeddings.
    pub sensitive: Option<Storage>,
    /// How the table of embeddings is stored; a head that is tied to it is the same table.
    pub embedding: Storage,
    /// How many weights share a scale, where they are quantized: 32, 64 or 128; `None` leaves it to [`Recipe::resolve`].
    pub group: Option<usize>,
    /// How many positions the state has room for; without one, what the model was made for, but at most
    /// [`Recipe::CONTEXT`].
    pub max_context: Option<u32>,
    /// How many tokens one call takes; without one, [`Recipe::PREFILL`] or the whole context, if that is less.
    pub max_prefill: Option<u32>,
    /// The head with which the program samples the token itself (S1.1); without one, it returns logits.
    pub sample: Option<Head>,
    /// `true` if the program returns the logits of every position, not only of the last: for comparisons (S4.2).
    pub every_position: bool,
    /// `true` if the program also returns the output of every layer: for comparisons.
    pub tap_layers: bool,
    /// `true` if tokenizer, chat template and similar files become part of the program.
    pub embed_files: bool,
}

/// What the default size of groups depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelWeights {
    /// The number of parameters of the model.
    pub parameters: u64,
    /// `true` if weights of the checkpoint are quantized and [`Recipe::GROUP`] of them share a scale, as in blocks of GGUF.
    pub are_in_groups: bool,
}

/// How a matrix of weights is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In the type of the activations.
    Plain,
    /// Four bits a weight, and a scale and a bias for each group.
    Int4,
    /// Eight bits a weight, and a scale and a bias for each group.
    Int8,
    /// As the checkpoint has them: k-quant blocks of GGUF stay what they are, its older blocks become groups of 32 with the
    /// same codes, the rest is [`Storage::Plain`].
    AsInCheckpoint,
}

impl Recipe {
    /// The default number of positions of the state.
    pub const CONTEXT: u32 = 4096;

    /// The default number of tokens of one call.
    pub const PREFILL: u32 = 512;

    /// The default size of groups.
    pub const GROUP: usize = 32;

    /// The default size of groups for four bits in models of more than [`Recipe::LARGE`] parameters: half a bit less per
    /// weight, and large models lose less by it than small ones. Weights that are in groups of [`Recipe::GROUP`] already
    /// stay in them: two groups in one would be rounded a second time.
    pub const LARGE_GROUP: usize = 64;

    /// The largest number of parameters for which four bits have groups of [`Recipe::GROUP`] by default.
    pub const LARGE: u64 = 1_000_000_000;

    /// Returns the recipe with the size of groups that it left open, which may depend on the weights of the model. This is the
    /// one place that decides it.
    ///
    /// # Errors
    /// When the weights have to be known and `weights` fails.
    pub fn resolve<E>(&self, weights: impl FnOnce() -> Result<ModelWeights, E>) -> Result<Self, E> {
        let group = match self.group {
            Some(group) => group,
            None if self.linear == Storage::Int4 => {
                let ModelWeights { parameters, are_in_groups } = weights()?;
                if parameters > Self::LARGE && !are_in_groups { Self::LARGE_GROUP } else { Self::GROUP }
            }
            None => Self::GROUP,
        };
        Ok(Self { group: Some(group), ..self.clone() })
    }

    /// How sensitive weights are stored.
    pub(crate) fn sensitive(&self) -> Storage {
        self.sensitive.unwrap_or(self.linear)
    }
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            dtype: ScaleType::Bf16,
            linear: Storage::Plain,
            sensitive: None,
            embedding: Storage::Plain,
            group: None,
            max_context: None,
            max_prefill: None,
            sample: None,
            every_position: false,
            tap_layers: false,
            embed_files: true,
        }
    }
}
