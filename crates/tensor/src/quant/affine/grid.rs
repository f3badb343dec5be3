//! The grids of groups: which scale and which bias.
//!
//! Eight groups are looked at side by side, a lane each: then every step is the same arithmetic on eight numbers, which the
//! compiler turns into vector instructions of whatever processor it builds for, without sums across and without branches.
#![allow(
    clippy::indexing_slicing,
    clippy::needless_range_loop,
    reason = "indices count lanes, and no group is larger than `MAX_GROUP`"
)]

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{Affine, MAX_GROUP, ScaleType};

/// Groups that are looked at together.
pub(super) const LANES: usize = 8;
/// A number of each group.
type Lanes = [f32; LANES];

/// Parts of the range that the first grids span. Wide codes lose more by clipping than they gain by finer steps.
const SPANS: &[f32] = &[1.0, 0.92, 0.84];
const SPANS_OF_WIDE_CODES: &[f32] = &[1.0];
/// How often the best grid is fitted to its own codes.
const FITS: usize = 2;

/// Added to a number from 0 to 255, leaves its nearest integer in the lowest byte of the sum.
const ROUNDER: f32 = 8_388_608.0;

/// Levels at `scale * code + bias`, for codes up to `top`.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) scale: f32,
    pub(super) bias: f32,
    /// From a distance to the bias to a position between codes.
    inverse: f32,
    top: f32,
}

/// A grid for each group, and its error: the sum of squares, with the group's range as unit.
struct Grids {
    scale: Lanes,
    bias: Lanes,
    inverse: Lanes,
    top: Lanes,
    error: Lanes,
}

/// Groups side by side, and what is known of them.
struct Search<'a> {
    values: &'a [Lanes],
    low: Lanes,
    high: Lanes,
    per_range: Lanes,
    top: f32,
    float: ScaleType,
}

/// The best grid found for each group; `None` where a group is not finite or too large.
pub(super) fn fit<'a>(
    groups: impl Iterator<Item = &'a [f32]>,
    format: Affine,
    float: ScaleType,
) -> [Option<Grid>; LANES] {
    let mut values = [[0.0; LANES]; MAX_GROUP];
    for (lane, group) in (0..LANES).zip(groups) {
        values.iter_mut().zip(group).for_each(|(row, value)| row[lane] = *value);
    }
    let search = Search::new(&values[..format.group()], format.top().into(), float);
    let mut best = Grids::NONE;
    // First, because the first of equally good grids is kept, and these hold zero exactly.
    search.symmetric(&mut best);
    for span in if format.bits() <= 4 { SPANS } else { SPANS_OF_WIDE_CODES } {
        search.spanning(*span, &mut best);
    }
    for _ in 0..FITS {
        search.refitted(&mut best);
    }
    std::array::from_fn(|lane| {
        let Grids { scale, bias, inverse, top, error } = &best;
        let grid = Grid { scale: scale[lane], bias: bias[lane], inverse: inverse[lane], top: top[lane] };
        (error[lane] < f32::INFINITY).then_some(grid)
    })
}

impl<'a> Search<'a> {
    fn new(values: &'a [Lanes], top: f32, float: ScaleType) -> Self {
        let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
        for row in values {
            for lane in 0..LANES {
                low[lane] = if row[lane] < low[lane] { row[lane] } else { low[lane] };
                high[lane] = if row[lane] > high[lane] { row[lane] } else { high[lane] };
            }
        }
        let mut per_range = [0.0; LANES];
        for lane in 0..LANES {
            let range = high[lane] - low[lane];
            // A range too small to divide by is as good as none; one too large, or not finite, spoils every error.
            let inverse = if range.recip() < f32::INFINITY { range.recip() } else { 0.0 };
            per_range[lane] = if range < f32::INFINITY { inverse } else { f32::NAN };
        }
        Self { values, low, high, per_range, top, float }
    }

    /// Tries the grids in the middle of the ranges that span this part of them.
    fn spanning(&self, span: f32, best: &mut Grids) {
        let [mut scale, mut bias] = [[0.0; LANES]; 2];
        for lane in 0..LANES {
            let range = self.high[lane] - self.low[lane];
            scale[lane] = range * span / self.top;
            bias[lane] = self.low[lane] + range * (0.5 - 0.5 * span);
        }
        self.attempt(scale, bias, best);
    }

    /// Tries grids that symmetric formats are made on: the extreme is the lowest level, or both signs reach equally far.
    fn symmetric(&self, best: &mut Grids) {
        let zero = 0.5 * (self.top + 1.0);
        for levels in [-zero, zero - 1.0] {
            let [mut scale, mut bias] = [[0.0; LANES]; 2];
            for lane in 0..LANES {
                let extreme = if self.high[lane] > -self.low[lane] { self.high[lane] } else { self.low[lane] };
                scale[lane] = extreme / levels;
                bias[lane] = -scale[lane] * zero;
            }
            self.attempt(scale, bias, best);
        }
    }

    /// Tries, given the codes of the best grids, the lines of least squares through the weights.
    fn refitted(&self, best: &mut Grids) {
        let [mut code, mut code_code, mut off, mut code_off] = [[0.0; LANES]; 4];
        let mut count = 0.0;
        for row in self.values {
            count += 1.0;
            for lane in 0..LANES {
                let position = (row[lane] - best.bias[lane]) * best.inverse[lane];
                let at = nearest(position, best.top[lane]) - ROUNDER;
                code[lane] += at;
                code_code[lane] += at * at;
                off[lane] += position - at;
                code_off[lane] += at * (position - at);
            }
        }
        let [mut scale, mut bias] = [[0.0; LANES]; 2];
        for lane in 0..LANES {
            // Nothing to fit where all codes are one: a division by zero, whose error is never better.
            let spread = count * code_code[lane] - code[lane] * code[lane];
            let slope = (count * code_off[lane] - code[lane] * off[lane]) / spread;
            let shift = (off[lane] - slope * code[lane]) / count;
            scale[lane] = best.scale[lane] + slope * best.scale[lane];
            bias[lane] = best.bias[lane] + shift * best.scale[lane];
        }
        self.attempt(scale, bias, best);
    }

    /// Rounds grids and keeps those that are better. What is not finite has an error of NaN or infinity: never better.
    fn attempt(&self, mut scale: Lanes, mut bias: Lanes, best: &mut Grids) {
        round(self.float, &mut scale);
        round(self.float, &mut bias);
        let [mut inverse, mut unit] = [[0.0; LANES]; 2];
        let mut top = [self.top; LANES];
        for lane in 0..LANES {
            inverse[lane] = scale[lane].recip();
            unit[lane] = scale[lane] * self.per_range[lane];
            // A scale too small to divide by leaves one level, and errors that are measured by the range.
            let is_grid = inverse[lane].abs() < f32::INFINITY && self.per_range[lane] > 0.0;
            inverse[lane] = if is_grid { inverse[lane] } else { self.per_range[lane] };
            unit[lane] = if is_grid { unit[lane] } else { 1.0 };
            top[lane] = if is_grid { top[lane] } else { 0.0 };
            bias[lane] = if scale[lane].abs() < f32::INFINITY { bias[lane] } else { f32::NAN };
            scale[lane] = if is_grid { scale[lane] } else { 0.0 };
        }
        let mut error = [0.0; LANES];
        for row in self.values {
            for lane in 0..LANES {
                let position = (row[lane] - bias[lane]) * inverse[lane];
                let off = position - (nearest(position, top[lane]) - ROUNDER);
                error[lane] += off * off;
            }
        }
        for lane in 0..LANES {
            error[lane] *= unit[lane] * unit[lane];
            let is_better = error[lane] < best.error[lane];
            let pick = |new: f32, old: f32| if is_better { new } else { old };
            best.scale[lane] = pick(scale[lane], best.scale[lane]);
            best.bias[lane] = pick(bias[lane], best.bias[lane]);
            best.inverse[lane] = pick(inverse[lane], best.inverse[lane]);
            best.top[lane] = pick(top[lane], best.top[lane]);
            best.error[lane] = pick(error[lane], best.error[lane]);
        }
    }
}

impl Grids {
    const NONE: Self = Self {
        scale: [0.0; LANES],
        bias: [0.0; LANES],
        inverse: [0.0; LANES],
        top: [0.0; LANES],
        error: [f32::INFINITY; LANES],
    };
}

impl Grid {
    /// The grid of a group that has none: it decodes to NaN.
    pub(super) const NONE: Self = Self { scale: f32::NAN, bias: f32::NAN, inverse: 0.0, top: 0.0 };

    /// The code of the nearest level. NaN goes to the first.
    #[inline(always)]
    pub(super) fn code(&self, value: f32) -> u8 {
        let [code, ..] = nearest((value - self.bias) * self.inverse, self.top).to_bits().to_le_bytes();
        code
    }
}

/// The nearest code to a position, plus `ROUNDER`.
#[inline(always)]
fn nearest(position: f32, top: f32) -> f32 {
    // Selections, because `clamp` keeps NaN, and `max` takes an instruction more to lose it.
    let position = if position > 0.0 { position } else { 0.0 };
    (if position < top { position } else { top }) + ROUNDER
}

/// Rounds to the type of the scales, as `ScaleType::round`.
fn round(float: ScaleType, values: &mut Lanes) {
    match float {
        ScaleType::F32 => (),
        ScaleType::F16 => {
            let mut halves = [f16::ZERO; LANES];
            halves.convert_from_f32_slice(values);
            halves.convert_to_f32_slice(values);
        }
        ScaleType::Bf16 => values.iter_mut().for_each(|value| *value = float.round(*value)),
    }
}
