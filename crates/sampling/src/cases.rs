//! Random cases on which devices are compared with the reference.
//!
//! A case is a function of its number, the same on every machine. Most are small, so that a hundred thousand take less than a
//! minute; two in a thousand have up to two million logits.
#![allow(clippy::indexing_slicing, reason = "indices are drawn below the length of what they index")]

use half::{bf16, f16};
use ptero_arithmetic::{exp, ln};
use ptero_tensor::DType;

use crate::adjust::{MASK_BITS, OwnedAdjustments};
use crate::log_probabilities::{LogProbabilities, RowLogProbabilities};
use crate::noise::seed_key;
use crate::reference::{Keys, sample};
use crate::settings::{Penalties, Settings};
use crate::threefry::{Key, threefry2x32};

/// Vocabularies of real models; the last is the largest of all cases.
pub const REAL_VOCABULARIES: [usize; 6] = [32_000, 49_152, 128_256, 151_936, 248_320, 262_144];

/// The most rows of a case.
pub const MOST_ROWS: usize = 256;

/// The most logits of a case.
pub const MOST_LOGITS: usize = 1 << 21;

/// The types that logits come in.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Rows of logits and what is asked of the sampler.
#[derive(Clone, Debug)]
pub struct Case {
    /// Which case it is.
    pub number: u64,
    /// How many rows.
    pub rows: usize,
    /// How many logits a row has.
    pub vocabulary: usize,
    /// The type of the logits.
    pub dtype: DType,
    /// The kind of each row.
    pub kinds: Vec<Kind>,
    /// The logits, row after row. Each is a number of the type.
    pub logits: Vec<f32>,
    /// One for all rows or one for each.
    pub settings: Vec<Settings>,
    /// One for each row, or none at all.
    pub adjustments: Vec<OwnedAdjustments>,
    /// Where the random words come from.
    pub seeds: Seeds,
}

/// Where the random words of a case come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// One seed draws for all rows together.
    Shared(i64),
    /// One for each row.
    PerRow(Vec<i64>),
}

macro_rules! kinds {
    ($( #[doc = $text:literal] $name:ident, )*) => {
        /// How the logits of a row are distributed, before some are replaced by infinities or NaN.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $( #[doc = $text] $name ),* }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Self] = &[$( Self::$name ),*];
        }
    };
}

kinds! {
    /// Normal with a deviation of 2 to 3, and up to four peaks: what models give.
    Realistic,
    /// One number all over.
    Equal,
    /// Hardly different from each other.
    Flat,
    /// One logit far above the others.
    Peaked,
    /// Minus infinity but for one.
    OneFinite,
    /// Few different numbers: ties at every boundary.
    Ties,
    /// Zeros of both signs.
    Zeros,
    /// Uniform in a range.
    Uniform,
    /// Each above the one before it.
    Rising,
    /// Each below the one before it.
    Falling,
    /// Up to the largest numbers of the type; divided by the temperature many are infinite.
    Huge,
    /// Below the smallest normal numbers of the type, or near them.
    Tiny,
    /// Any bits at all.
    Bits,
    /// Nothing to draw from: minus infinity and NaN.
    Nothing,
}

impl Case {
    /// The case of that number, with valid settings.
    pub fn number(number: u64) -> Self {
        let mut draws = Draws::new(number);
        let (rows, vocabulary) = draws.size();
        let dtype = draws.one_of(&DTYPES);
        let several = draws.one_in(2);
        let mut settings: Vec<Settings> =
            (0..if several { rows } else { 1 }).map(|_| draws.settings(vocabulary)).collect();
        let seeds = if draws.one_in(2) {
            Seeds::Shared(draws.seed())
        } else {
            Seeds::PerRow((0..rows).map(|_| draws.seed()).collect())
        };
        let is_adjusted = draws.one_in(3);
        let adjustments = (0..if is_adjusted { rows } else { 0 }).map(|_| draws.adjustments(vocabulary)).collect();
        let kinds: Vec<Kind> = (0..rows).map(|_| draws.kind()).collect();
        let mut logits = vec![0.0; rows * vocabulary];
        for (row, &kind) in logits.chunks_exact_mut(vocabulary).zip(&kinds) {
            draws.fill(row, kind, dtype);
            draws.spoil(row);
        }
        for logit in &mut logits {
            *logit = rounded(*logit, dtype);
        }
        // Drawn apart, so that all else stays as it was before there was an exact tail.
        let mut draws = Draws::new(number ^ 1 << 63);
        settings.iter_mut().for_each(|settings| settings.exact_tail = draws.one_in(4));
        Self { number, rows, vocabulary, dtype, kinds, logits, settings, adjustments, seeds }
    }

    /// The case with settings that [`Settings::check`] refuses, in one field or in several. Devices give the reference's tokens for
    /// them too.
    pub fn without_meaning(number: u64) -> Self {
        const TEMPERATURES: [f32; 4] = [-0.0, -1.0, f32::NAN, f32::INFINITY];
        const TOP_KS: [i64; 4] = [0, -1, i64::MIN, 1 << 40];
        const TOP_PS: [f32; 6] = [0.0, -0.5, 1.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        const MIN_PS: [f32; 4] = [-0.5, 1.5, f32::NAN, f32::INFINITY];
        let mut case = Self::number(number);
        let mut draws = Draws::new(!number);
        for settings in &mut case.settings {
            while settings.check().is_ok() {
                match draws.below(4) {
                    0 => settings.temperature = draws.one_of(&TEMPERATURES),
                    1 => settings.top_k = draws.one_of(&TOP_KS),
                    2 => settings.top_p = draws.one_of(&TOP_PS),
                    _ => settings.min_p = draws.one_of(&MIN_PS),
                }
            }
        }
        case
    }

    /// The logits as the type stores them, little-endian.
    pub fn bytes(&self) -> Vec<u8> {
        match self.dtype {
            DType::F16 => self.logits.iter().flat_map(|&logit| f16::from_f32(logit).to_le_bytes()).collect(),
            DType::Bf16 => self.logits.iter().flat_map(|&logit| bf16::from_f32(logit).to_le_bytes()).collect(),
            _ => self.logits.iter().flat_map(|logit| logit.to_le_bytes()).collect(),
        }
    }

    /// The settings of each row.
    pub fn settings_of_rows(&self) -> Vec<Settings> {
        (0..self.rows).map(|row| if let [same] = *self.settings { same } else { self.settings[row] }).collect()
    }

    /// The tokens of the reference.
    pub fn expected(&self) -> Vec<u32> {
        let per_row: Vec<Key>;
        let keys = match &self.seeds {
            Seeds::Shared(seed) => Keys::Shared(seed_key(*seed)),
            Seeds::PerRow(seeds) => {
                per_row = seeds.iter().copied().map(seed_key).collect();
                Keys::PerRow(&per_row)
            }
        };
        sample(&self.adjusted(), self.vocabulary, &self.settings, keys)
    }

    /// The logits that tokens are drawn from.
    fn adjusted(&self) -> Vec<f32> {
        let mut logits = self.logits.clone();
        for (row, adjustments) in logits.chunks_exact_mut(self.vocabulary).zip(&self.adjustments) {
            adjustments.borrowed().apply(row);
        }
        logits
    }

    /// The log-probabilities of tokens, one for each row.
    pub fn log_probabilities(&self, which: LogProbabilities, tokens: &[u32]) -> Vec<RowLogProbabilities> {
        let logits = if which == LogProbabilities::Processed { self.adjusted() } else { self.logits.clone() };
        let rows = logits.chunks_exact(self.vocabulary).zip(self.settings_of_rows()).zip(tokens);
        let of_row = |((logits, settings), token): ((&[f32], Settings), &u32)| match which {
            LogProbabilities::None => RowLogProbabilities::NONE,
            LogProbabilities::Model => RowLogProbabilities::of_model(logits, *token as usize),
            LogProbabilities::Processed => RowLogProbabilities::of_processed(logits, &settings, *token as usize),
        };
        rows.map(of_row).collect()
    }
}

/// The nearest number of the type. Every NaN becomes the same NaN, because conversions differ in its payload.
fn rounded(number: f32, dtype: DType) -> f32 {
    match dtype {
        _ if number.is_nan() => f32::NAN,
        DType::F16 => f16::from_f32(number).to_f32(),
        DType::Bf16 => bf16::from_f32(number).to_f32(),
        _ => number,
    }
}

/// The random numbers that make a case.
struct Draws {
    key: Key,
    next: u32,
    spare: Option<u32>,
}

impl Draws {
    fn new(number: u64) -> Self {
        Self { key: crate::threefry::key(number ^ 0x7074_6572_6f00_0000), next: 0, spare: None }
    }

    fn word(&mut self) -> u32 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let [word, spare] = threefry2x32(self.key, [self.next, 0]);
        self.next += 1;
        self.spare = Some(spare);
        word
    }

    /// A whole number below `end`.
    #[allow(clippy::cast_possible_truncation, reason = "the product is below `end` << 32")]
    fn below(&mut self, end: usize) -> usize {
        ((u64::from(self.word()) * end as u64) >> 32) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// In [0, 1), all 24 bits.
    #[allow(clippy::cast_precision_loss, reason = "24 bits are exact")]
    fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 / 16_777_216.0
    }

    fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Log-uniform.
    fn scale(&mut self, low: f32, high: f32) -> f32 {
        exp(self.between(ln(low), ln(high))).clamp(low, high)
    }

    /// A whole number from 1 to `most`, each power of two as likely as the next.
    fn magnitude(&mut self, most: usize) -> usize {
        let low = 1 << self.below(most.ilog2() as usize + 1);
        low + self.below((2 * low).min(most + 1) - low)
    }

    /// Near enough to a normal number with deviation 1: a sum of four uniform ones.
    fn normal(&mut self) -> f32 {
        let sum = self.unit() + self.unit() + self.unit() + self.unit();
        (sum - 2.0) * 1.732
    }

    fn size(&mut self) -> (usize, usize) {
        let (largest, most_logits) = match self.below(1000) {
            0..890 => (1 << 12, 1 << 14),
            890..978 => (1 << 15, 1 << 16),
            978..998 => (1 << 18, 1 << 19),
            _ => (1 << 18, MOST_LOGITS),
        };
        let vocabulary = if largest == 1 << 18 && !self.one_in(3) {
            self.one_of(&REAL_VOCABULARIES)
        } else {
            self.magnitude(largest)
        };
        let most_rows = (most_logits / vocabulary).min(MOST_ROWS);
        let rows = match self.below(8) {
            0 => most_rows,
            1..4 => 1,
            _ => self.magnitude(most_rows),
        };
        (rows, vocabulary)
    }

    fn seed(&mut self) -> i64 {
        let random = (i64::from(self.word()) << 32 | i64::from(self.word())) ^ i64::MIN;
        match self.below(4) {
            0 => self.one_of(&[0, 1, -1, 42, 1 << 31, -(1 << 31), 1 << 32, 1 << 40, i64::MAX, i64::MIN]),
            1 => i64::from(self.word() >> 16),
            _ => random,
        }
    }

    fn settings(&mut self, vocabulary: usize) -> Settings {
        let temperature = match self.below(8) {
            0 => 0.0,
            1 => 1.0,
            2..5 => self.between(0.2, 2.0),
            5 => self.one_of(&[1e-4, 0.01, 0.5, 2.0, 100.0]),
            _ => self.scale(1e-4, 100.0),
        };
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let top_k = match self.below(8) {
            0..3 => i64::MAX,
            3 => self.one_of(&[1, 2, 20, 40, 64]),
            4 => self.one_of(&[count(vocabulary), count(vocabulary) + 1, count(vocabulary - 1).max(1), 1 << 32]),
            _ => count(self.magnitude(vocabulary)),
        };
        let top_p = match self.below(8) {
            0..3 => 1.0,
            3 => self.one_of(&[1e-6, 0.1, 0.25, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0 - f32::EPSILON / 2.0]),
            4..6 => self.between(0.5, 1.0),
            6 => self.unit().max(1e-6),
            _ => self.scale(1e-6, 1.0),
        };
        let min_p = match self.below(8) {
            0..5 => 0.0,
            5 => self.one_of(&[0.01, 0.05, 0.1, 0.5, 1.0]),
            6 => self.unit(),
            _ => self.scale(1e-9, 1.0),
        };
        Settings { temperature, top_k, top_p, min_p, exact_tail: false }
    }

    fn penalties(&mut self) -> Penalties {
        if self.one_in(3) {
            return Penalties::NONE;
        }
        let repetition = if self.one_in(3) { 1.0 } else { self.between(0.5, 2.0) };
        let presence = if self.one_in(2) { 0.0 } else { self.between(-2.0, 2.0) };
        let frequency = if self.one_in(2) { 0.0 } else { self.between(-2.0, 2.0) };
        Penalties { repetition, presence, frequency }
    }

    /// A token; one in 64 is outside the vocabulary.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "a vocabulary is small")]
    fn token(&mut self, vocabulary: usize) -> i32 {
        match self.below(64) {
            0 => self.one_of(&[-1, i32::MIN, i32::MAX, vocabulary as i32]),
            1..16 => self.below(vocabulary.min(8)) as i32,
            _ => self.below(vocabulary) as i32,
        }
    }

    fn adjustments(&mut self, vocabulary: usize) -> OwnedAdjustments {
        let penalties = self.penalties();
        let length = if self.one_in(4) { 0 } else { self.magnitude(2000) };
        let history: Vec<i32> = (0..length).map(|_| self.token(vocabulary)).collect();
        let prompt_end = if self.one_in(4) { length } else { self.below(length + 2) };
        let bias_count = if self.one_in(2) { 0 } else { self.magnitude(64) };
        let biases = (0..bias_count).map(|_| (self.token(vocabulary), self.between(-100.0, 100.0))).collect();
        let words = vocabulary.div_ceil(MASK_BITS);
        let mask = match self.below(6) {
            0..3 => vec![-1; words],
            // Few tokens are allowed, possibly none.
            3 => (0..words).map(|_| if self.one_in(16) { 1 << self.below(MASK_BITS) } else { 0 }).collect(),
            // Few are excluded.
            4 => (0..words).map(|_| if self.one_in(16) { !(1 << self.below(MASK_BITS)) } else { -1 }).collect(),
            _ => (0..words).map(|_| self.word().cast_signed()).collect(),
        };
        OwnedAdjustments { penalties, history, prompt_end, biases, mask }
    }

    fn kind(&mut self) -> Kind {
        if self.one_in(3) { Kind::Realistic } else { self.one_of(Kind::ALL) }
    }

    /// Logits of a kind.
    #[allow(clippy::cast_precision_loss, reason = "small whole numbers, or steps whose rounding does not matter")]
    fn fill(&mut self, row: &mut [f32], kind: Kind, dtype: DType) {
        let (offset, at) = (self.between(-20.0, 20.0), self.below(row.len()));
        let (largest, smallest) = match dtype {
            DType::F16 => (65_504.0, 6.2e-5),
            _ => (3.3e38, f32::MIN_POSITIVE),
        };
        match kind {
            Kind::Realistic => {
                let deviation = self.between(2.0, 3.0);
                row.fill_with(|| self.normal() * deviation - 3.0);
                for _ in 0..self.below(5) {
                    let peak = self.between(5.0, 18.0);
                    row[self.below(row.len())] = peak;
                }
            }
            Kind::Equal => row.fill(offset),
            Kind::Flat => row.fill_with(|| 1.0 + 1e-3 * self.unit()),
            Kind::Peaked => {
                row.fill_with(|| offset + self.normal());
                row[at] = offset + self.between(5.0, 60.0);
            }
            Kind::OneFinite => {
                row.fill(f32::NEG_INFINITY);
                row[at] = offset;
            }
            Kind::Ties => {
                let (levels, step) = (1 + self.magnitude(30), self.one_of(&[0.25, 0.5, 1.0, 3.0]));
                row.fill_with(|| self.below(levels) as f32 * step - 4.0);
            }
            Kind::Zeros => row.fill_with(|| if self.one_in(2) { 0.0 } else { -0.0 }),
            Kind::Uniform => {
                let width = self.scale(0.01, 1000.0);
                row.fill_with(|| offset + width * self.unit());
            }
            Kind::Rising | Kind::Falling => {
                let step = self.scale(1e-3, 30.0) / row.len() as f32;
                let step = if kind == Kind::Rising { step } else { -step };
                for (at, logit) in row.iter_mut().enumerate() {
                    *logit = offset + step * at as f32;
                }
            }
            Kind::Huge => row.fill_with(|| (2.0 * self.unit() - 1.0) * largest),
            Kind::Tiny => row.fill_with(|| (2.0 * self.unit() - 1.0) * 2.0 * smallest),
            Kind::Bits => {
                // The upper half of an f32 is a bf16.
                let halves = dtype == DType::F16;
                row.fill_with(|| match self.word() {
                    #[allow(clippy::cast_possible_truncation, reason = "16 bits are asked for")]
                    word if halves => f16::from_bits(word as u16).to_f32(),
                    word => f32::from_bits(word),
                });
            }
            Kind::Nothing => row.fill_with(|| if self.one_in(2) { f32::NEG_INFINITY } else { f32::NAN }),
        }
    }

    /// Replaces some logits: by minus infinity (a mask) in one row of eight, by NaN in one of sixteen, by infinity in one of
    /// sixty-four.
    fn spoil(&mut self, row: &mut [f32]) {
        if self.one_in(8) {
            let share = 1 + self.below(8);
            for logit in row.iter_mut() {
                if self.below(8) < share {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        for (rarity, number) in [(16, f32::NAN), (64, f32::INFINITY)] {
            if self.one_in(rarity) {
                for _ in 0..self.magnitude(row.len().min(16)) {
                    let at = self.below(row.len());
                    row[at] = number;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
