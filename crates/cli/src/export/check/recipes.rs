//! `--check-recipes`: what each way to store weights costs and gains, beside the same graph in f32.
//!
//! Programs are exported, compared and measured one after the other, so that besides f32 there is never more than one on disk.

use super::compare::Checked;
use super::{Check, build, exact};
use crate::bench::{Align, Column, Decoding, Figures, Table, decimals, or_dash, range};
use crate::export::report::name_of;
use crate::print::size;
use anyhow::Result;
use ptero::Method;
use ptero::export::{QUANTIZATIONS, Quantization, named};
use ptero_export::{Recipe, Storage, bits_per_weight, export, model_weights};
use serde::Serialize;
use std::fmt;

/// What is compared, besides the recipe that was chosen: names of `--quantize`, and sizes of groups; `None` is the default
/// for the model.
const COMPARED: [(&str, Option<usize>); 4] =
    [("int8", Some(32)), ("int4", Some(32)), ("int4", Some(64)), ("int4-mixed", None)];

/// The recipes, f32 first.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(in crate::export) struct RecipeTable(Vec<Row>);

/// A recipe, what it costs and what it gains.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// The name in the table.
    recipe: String,
    /// The value of `--quantize`.
    quantize: &'static str,
    /// The size of groups; `None` if weights are not quantized.
    group_size: Option<usize>,
    /// The storage of embeddings.
    embed: &'static str,
    /// `true` for the recipe of the program that was written.
    chosen: bool,
    /// The size of all weights.
    weight_bytes: u64,
    bits_per_weight: f64,
    /// Same as the test `decode` of `ptero bench`.
    decode_tokens_per_s: Figures,
    /// The perplexity; `None` for random tokens.
    perplexity: Option<f64>,
    /// By how much the perplexity is larger than in f32.
    perplexity_cost_percent: Option<f64>,
    /// Same as in `check`; `None` for f32, as the next two.
    logits_error: Option<f64>,
    divergence: Option<f64>,
    same_best: Option<f64>,
}

impl RecipeTable {
    /// Measures f32, the first row.
    pub(super) fn begin(check: &Check<'_>) -> Result<Self> {
        Ok(Self(vec![Row::measured(check, &exact(check.chosen), &check.decoding()?)?]))
    }

    /// Adds a row for each recipe. `checked` is what the chosen one costs.
    pub(super) fn fill(&mut self, check: &Check<'_>, checked: &Checked, exact: &mut Method) -> Result<()> {
        if let (Some(row), Some(perplexity)) = (self.0.first_mut(), checked.perplexity) {
            (row.perplexity, row.perplexity_cost_percent) = (Some(perplexity.exact), Some(0.0));
        }
        let decoding = check.decoding()?;
        for recipe in compared(check)? {
            let mut row = Row::measured(check, &recipe, &decoding)?;
            if row.chosen {
                row.add(checked);
            } else {
                row.add(&check.compare(&recipe, exact)?);
            }
            self.0.push(row);
        }
        Ok(())
    }
}

/// Returns the recipes to compare, each once.
fn compared(check: &Check<'_>) -> Result<Vec<Recipe>> {
    let weights = model_weights(check.from)?;
    let recipes =
        COMPARED.iter().filter_map(|(name, group)| Some(check.args.recipe_with(named(QUANTIZATIONS, name)?, *group)));
    let mut recipes = recipes.map(|recipe| recipe.resolve(|| Ok(weights))).collect::<Result<Vec<_>>>()?;
    // The first row is f32 already.
    if !recipes.contains(check.chosen) && *check.chosen != exact(check.chosen) {
        recipes.push(check.chosen.clone());
    }
    Ok(recipes)
}

impl Check<'_> {
    fn decoding(&self) -> Result<Decoding> {
        Decoding::new(&self.args.check.device, self.args.quiet)
    }
}

impl Row {
    /// A row without its error: measures how fast the program decodes as it would be exported.
    fn measured(check: &Check<'_>, recipe: &Recipe, decoding: &Decoding) -> Result<Self> {
        let args = check.args;
        let timed = Recipe { every_position: false, embed_files: false, ..recipe.clone() };
        let forms = export(check.from, &timed)?.forms();
        let is_chosen = recipe == check.chosen;
        let test = if is_chosen && !args.every_position {
            decoding.measure(args.check.device.options().open_program(&args.output)?)?
        } else {
            let (_file, program) = build(check.from, &timed, "timed", args)?;
            decoding.measure(program)?
        };
        Ok(Self {
            recipe: name(recipe),
            quantize: Quantization::of(recipe).name(),
            group_size: recipe.group.filter(|_| has_groups(recipe)),
            embed: name_of(recipe.embedding),
            chosen: is_chosen,
            weight_bytes: forms.iter().map(|form| form.bytes).sum(),
            bits_per_weight: bits_per_weight(&forms),
            decode_tokens_per_s: test.tokens_per_s,
            perplexity: None,
            perplexity_cost_percent: None,
            logits_error: None,
            divergence: None,
            same_best: None,
        })
    }

    fn add(&mut self, checked: &Checked) {
        self.perplexity = checked.perplexity.map(|perplexity| perplexity.program);
        self.perplexity_cost_percent = checked.perplexity.map(|perplexity| perplexity.cost_percent);
        self.logits_error = Some(checked.logits_error);
        self.divergence = Some(checked.divergence);
        self.same_best = Some(checked.same_best);
    }

    fn cells(&self) -> Vec<String> {
        let percent = |share: f64, digits: usize| format!("{:.digits$} %", 100.0 * share);
        vec![
            format!("{}{}", self.recipe, if self.chosen { " (chosen)" } else { "" }),
            size(self.weight_bytes),
            format!("{:.2}", self.bits_per_weight),
            or_dash(self.perplexity.map(|perplexity| format!("{perplexity:.3}"))),
            or_dash(self.perplexity_cost_percent.map(|cost| format!("{cost:+.2} %"))),
            or_dash(self.logits_error.map(|error| percent(error, 2))),
            or_dash(self.divergence.map(|divergence| format!("{divergence:.5}"))),
            or_dash(self.same_best.map(|share| percent(share, 1))),
            decimals(self.decode_tokens_per_s.median),
            range(self.decode_tokens_per_s, decimals),
        ]
    }
}

fn has_groups(recipe: &Recipe) -> bool {
    [recipe.linear, recipe.embedding].iter().any(|storage| matches!(storage, Storage::Int4 | Storage::Int8))
}

/// Returns a short name, such as `int4, groups of 64`.
fn name(recipe: &Recipe) -> String {
    let quantization = Quantization::of(recipe);
    let mut name = match recipe.linear {
        Storage::Plain => recipe.dtype.dtype().name().to_owned(),
        Storage::AsInCheckpoint | Storage::Int4 | Storage::Int8 => quantization.name().to_owned(),
    };
    if let Some(group) = recipe.group.filter(|_| has_groups(recipe)) {
        name += &format!(", groups of {group}");
    }
    if recipe.embedding != quantization.embedding() {
        name += &format!(", embeddings {}", name_of(recipe.embedding));
    }
    name
}

const COLUMNS: &[Column] = &[
    ("recipe", Align::Left),
    ("weights", Align::Right),
    ("bits/weight", Align::Right),
    ("perplexity", Align::Right),
    ("cost", Align::Right),
    ("logits off", Align::Right),
    ("divergence", Align::Right),
    ("same best", Align::Right),
    ("decode tokens/s", Align::Right),
    ("range", Align::Right),
];

impl fmt::Display for RecipeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (steps, repeats) = (Decoding::STEPS, Decoding::REPEATS);
        writeln!(f, "\nrecipes, beside f32; decoding {steps} tokens from position 0, median of {repeats}:\n")?;
        write!(f, "{}", Table { columns: COLUMNS, rows: self.0.iter().map(Row::cells).collect() }.markdown())
    }
}
