//! What every sampler must pass, as functions of the sampler: the reference passes them all, each deliberately wrong one fails.

use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::Keys;
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry::{self, Key};

use crate::statistics::{chi_square, kolmogorov_smirnov, total_variation};
use crate::targets::{Shape, VOCABULARY, probabilities};

/// The tokens of rows of logits: all of them, the length of a row, settings for all rows, keys.
pub type Sampler<'a> = &'a (dyn Fn(&[f32], usize, &Settings, Keys<'_>) -> Vec<u32> + Sync);

/// No p-value may be below this.
pub const LEAST_P: f64 = 1e-6;
/// Neither may the test that p-values are uniform.
pub const LEAST_UNIFORMITY: f64 = 1e-4;
/// The most that a million draws of 64 tokens may be off; about 0.003 is expected.
pub const MOST_VARIATION: f64 = 0.005;

/// How the draws of a test get their keys.
#[derive(Clone, Copy, Debug)]
pub enum Keying {
    /// Rows of one batch with one key.
    Batch,
    /// A seed for each draw, one after the other, as a text draws its tokens.
    Seeds,
}

/// The number of draws per group and of groups. Each group has its own p-value; streams share no key.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    pub keying: Keying,
    pub stream: u32,
    pub groups: u32,
    pub draws: u32,
}

impl Draws {
    pub fn million(keying: Keying, stream: u32) -> Self {
        Self { keying, stream, groups: 20, draws: 50_000 }
    }

    /// The draws of a group.
    fn of(self, group: u32, sampler: Sampler<'_>, row: &[f32], settings: &Settings) -> Vec<u32> {
        let batch = row.repeat(self.draws as usize);
        match self.keying {
            Keying::Batch => sampler(&batch, row.len(), settings, Keys::Shared([self.stream, group])),
            Keying::Seeds => {
                let first = i64::from(self.stream) * 1_000_000 + i64::from(group * self.draws);
                let keys: Vec<Key> = (first..first + i64::from(self.draws)).map(seed_key).collect();
                sampler(&batch, row.len(), settings, Keys::PerRow(&keys))
            }
        }
    }

    /// The results of the groups, on all cores, in any order. A wrong one ends it.
    fn each<T: Send>(self, work: impl Fn(u32) -> Result<T, Wrong> + Sync) -> Result<Vec<T>, Wrong> {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let some = |first: usize| (0..self.groups).skip(first).step_by(threads).map(&work).collect();
        let some = &some;
        let parts: Result<Vec<Vec<T>>, Wrong> = std::thread::scope(|scope| {
            let parts: Vec<_> = (0..threads).map(|first| scope.spawn(move || some(first))).collect();
            parts.into_iter().map(|part| part.join().expect("no panic")).collect()
        });
        Ok(parts?.into_iter().flatten().collect())
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Of each group.
    pub p_values: Vec<f64>,
    /// Of all draws together.
    pub p_value: f64,
    /// The p-value of the p-values of the groups being uniform; 1 where only one token can be drawn.
    pub uniformity: f64,
    pub variation: f64,
}

/// Why a sampler is wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrong {
    /// A token was drawn that the settings exclude.
    Excluded(usize),
    /// The counts of tokens are not those of the distribution.
    Counts(f64),
    /// Each group alone could be, but not all of them.
    Uniformity(f64),
    /// The frequencies are too far off.
    Variation(f64),
    /// Draws with neighbouring seeds, or neighbouring rows, depend on each other.
    Dependent(f64),
    /// The same seed gave another token.
    Forgetful,
    /// Temperature 0 gave another token than the first of the largest.
    NotFirst(u32),
    /// The noise of one token outweighed what no noise may.
    Poisoned(u32),
}

/// The p-value of counts, if nothing was drawn that is excluded.
fn judge(counts: &[u64], probabilities: &[f64]) -> Result<f64, Wrong> {
    let mut both = counts.iter().zip(probabilities);
    if let Some(token) = both.position(|(&count, &probability)| count > 0 && probability == 0.0) {
        return Err(Wrong::Excluded(token));
    }
    let p = chi_square(counts, probabilities);
    if p < LEAST_P { Err(Wrong::Counts(p)) } else { Ok(p) }
}

/// S0.8: the draws follow the distribution, and nothing else is ever drawn.
pub fn draws_follow(sampler: Sampler<'_>, shape: &Shape, settings: &Settings, draws: Draws) -> Result<Figures, Wrong> {
    let probabilities = probabilities(&shape.logits, settings);
    let groups = draws.each(|group| {
        let mut counts = vec![0; VOCABULARY];
        for token in draws.of(group, sampler, &shape.logits, settings) {
            counts[token as usize] += 1;
        }
        Ok((judge(&counts, &probabilities)?, counts))
    })?;
    let (p_values, counts): (Vec<f64>, Vec<Vec<u64>>) = groups.into_iter().unzip();
    let total = sum(&counts);
    let p_value = judge(&total, &probabilities)?;
    let certain = p_values.iter().all(|p| *p == 1.0);
    let uniformity = if certain { 1.0 } else { kolmogorov_smirnov(&p_values) };
    if uniformity < LEAST_UNIFORMITY {
        return Err(Wrong::Uniformity(uniformity));
    }
    let variation = total_variation(&total, &probabilities);
    // Fewer draws are expected to be further off.
    if variation > MOST_VARIATION * (1e6 / f64::from(draws.groups * draws.draws)).sqrt() {
        return Err(Wrong::Variation(variation));
    }
    Ok(Figures { p_values, p_value, uniformity, variation })
}

fn sum(counts: &[Vec<u64>]) -> Vec<u64> {
    (0..counts[0].len()).map(|cell| counts.iter().map(|counts| counts[cell]).sum()).collect()
}

/// Draws with neighbouring seeds (or of neighbouring rows) do not depend on each other: pairs have the product of probabilities.
pub fn neighbours_are_independent(sampler: Sampler<'_>, draws: Draws) -> Result<f64, Wrong> {
    const TOKENS: usize = 16;
    let row: Vec<f32> = (0..16_u8).map(|at| f32::from(at * 7 % 16) / 8.0).collect();
    let one = probabilities(&row, &Settings::PLAIN);
    let pairs: Vec<f64> = one.iter().flat_map(|a| one.iter().map(move |b| a * b)).collect();
    let groups = draws.each(|group| {
        let tokens = draws.of(group, sampler, &row, &Settings::PLAIN);
        let mut counts = vec![0; TOKENS * TOKENS];
        for pair in tokens.chunks_exact(2) {
            counts[pair[0] as usize * TOKENS + pair[1] as usize] += 1;
        }
        let p = chi_square(&counts, &pairs);
        if p < LEAST_P { Err(Wrong::Dependent(p)) } else { Ok(counts) }
    })?;
    let p = chi_square(&sum(&groups), &pairs);
    if p < LEAST_P { Err(Wrong::Dependent(p)) } else { Ok(p) }
}

/// The same seed gives the same token, whatever else is in the batch and whatever was drawn before.
pub fn seeds_repeat(sampler: Sampler<'_>, shape: &Shape) -> Result<(), Wrong> {
    let rows = shape.logits.repeat(500);
    let keys: Vec<Key> = (0..500).map(|seed| seed_key(seed * 7919 - 1000)).collect();
    let first = sampler(&rows, VOCABULARY, &Settings::PLAIN, Keys::PerRow(&keys));
    let again = sampler(&rows, VOCABULARY, &Settings::PLAIN, Keys::PerRow(&keys));
    let alone = |key: &Key| sampler(&shape.logits, VOCABULARY, &Settings::PLAIN, Keys::PerRow(&[*key]));
    let each: Vec<u32> = keys.iter().flat_map(alone).collect();
    if first == again && first == each { Ok(()) } else { Err(Wrong::Forgetful) }
}

/// S0.5: temperature 0 takes the first of the largest.
pub fn greedy_takes_the_first(sampler: Sampler<'_>) -> Result<(), Wrong> {
    let rows =
        [[1.0, 3.0, 2.0, 3.0], [-1.0, -1.0, -1.0, -1.0], [f32::NEG_INFINITY, 0.0, -0.0, 0.0], [4.0, 5.0, 6.0, 6.0]];
    let tokens = sampler(&rows.concat(), 4, &Settings::GREEDY, Keys::Shared([0, 0]));
    let wrong = tokens.iter().zip([1, 0, 1, 2]).find(|(token, first)| **token != *first);
    wrong.map_or(Ok(()), |(token, _)| Err(Wrong::NotFirst(*token)))
}

/// S0.4: at a large vocabulary, where the largest random words come up, no noise outweighs 40 logits.
pub fn nothing_is_poisoned(sampler: Sampler<'_>) -> Result<(), Wrong> {
    let (vocabulary, key) = (1 << 18, [0, 104]);
    // Words from here on are 1 when rounded to f32 and divided.
    assert!(threefry::words(key, vocabulary).iter().any(|word| *word >= 0xffff_ff80));
    let mut row = vec![-20.0; vocabulary];
    row[0] = 20.0;
    match sampler(&row, vocabulary, &Settings::PLAIN, Keys::Shared(key))[..] {
        [0] => Ok(()),
        ref tokens => Err(Wrong::Poisoned(tokens[0])),
    }
}
