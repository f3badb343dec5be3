//! The difference between two runs of a model.

use ptero::TokenId;
use serde::Serialize;
use std::fmt;

/// How much the logits of a program differ from those in f32.
#[derive(Clone, Debug, Serialize)]
pub(in crate::export) struct Checked {
    /// The number of input tokens.
    tokens: usize,
    /// The root mean square of the difference of logits, divided by that of the logits.
    pub(super) logits_error: f64,
    /// The mean Kullback-Leibler divergence from the probabilities in f32, in nats.
    pub(super) divergence: f64,
    /// The largest divergence of any position.
    largest_divergence: f64,
    /// The share of positions where both find the same token the most likely.
    pub(super) same_best: f64,
    /// The perplexity; `None` for random tokens.
    pub(super) perplexity: Option<Perplexity>,
    /// The same as `logits_error` for the output of each layer.
    layers: Vec<f64>,
}

/// The perplexity of the tokens.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Perplexity {
    pub(super) exact: f64,
    pub(super) program: f64,
    pub(super) cost_percent: f64,
}

/// Sums of the squares of differences and of exact values.
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    difference: f64,
    exact: f64,
}

impl Squares {
    fn add(&mut self, checked: &[f32], exact: &[f32]) {
        for (checked, exact) in checked.iter().zip(exact) {
            self.difference += f64::from(checked - exact).powi(2);
            self.exact += f64::from(*exact).powi(2);
        }
    }

    fn relative(self) -> f64 {
        (self.difference / self.exact.max(f64::MIN_POSITIVE)).sqrt()
    }
}

/// Sums over the positions so far.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    logits: Squares,
    layers: Vec<Squares>,
    positions: usize,
    same_best: usize,
    divergence: f64,
    largest_divergence: f64,
    predicted: usize,
    /// The losses of the checked and of the exact program.
    losses: [f64; 2],
}

impl Comparison {
    /// Adds the outputs of a chunk, each with the length of its rows; `next` are the tokens after each position.
    pub(super) fn add(&mut self, checked: &[(usize, Vec<f32>)], exact: &[(usize, Vec<f32>)], next: &[TokenId]) {
        let ([(width, checked), checked_layers @ ..], [(_, exact), exact_layers @ ..]) = (checked, exact) else {
            return;
        };
        self.logits.add(checked, exact);
        let rows = checked.chunks(*width).zip(exact.chunks(*width));
        for (at, (checked, exact)) in rows.enumerate() {
            self.add_row(checked, exact, next.get(at).and_then(|token| usize::try_from(*token).ok()));
        }
        self.layers.resize(checked_layers.len(), Squares::default());
        for (sum, ((_, checked), (_, exact))) in self.layers.iter_mut().zip(checked_layers.iter().zip(exact_layers)) {
            sum.add(checked, exact);
        }
    }

    fn add_row(&mut self, checked: &[f32], exact: &[f32], next: Option<usize>) {
        let norms = [checked, exact].map(log_sum_exp);
        let [checked_norm, exact_norm] = norms;
        let log_ratio = |(checked, exact): (&f32, &f32)| {
            let (p, q) = (f64::from(*exact) - exact_norm, f64::from(*checked) - checked_norm);
            p.exp() * (p - q)
        };
        let divergence: f64 = checked.iter().zip(exact).map(log_ratio).sum();
        self.divergence += divergence;
        self.largest_divergence = self.largest_divergence.max(divergence);
        self.positions += 1;
        self.same_best += usize::from(best(checked) == best(exact));
        if let Some(next) = next {
            self.predicted += 1;
            for ((loss, row), norm) in self.losses.iter_mut().zip([checked, exact]).zip(norms) {
                *loss += norm - row.get(next).copied().map_or(0.0, f64::from);
            }
        }
    }

    /// Returns the result for `tokens` tokens; only text has a perplexity.
    pub(super) fn finish(self, tokens: usize, is_text: bool) -> Checked {
        let positions = self.positions.max(1) as f64;
        let [program, exact] = self.losses.map(|loss| (loss / self.predicted.max(1) as f64).exp());
        let perplexity = Perplexity { exact, program, cost_percent: 100.0 * (program / exact - 1.0) };
        Checked {
            tokens,
            logits_error: self.logits.relative(),
            divergence: self.divergence / positions,
            largest_divergence: self.largest_divergence,
            same_best: self.same_best as f64 / positions,
            perplexity: is_text.then_some(perplexity),
            layers: self.layers.into_iter().map(Squares::relative).collect(),
        }
    }
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let most = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    row.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln() + most
}

fn best(row: &[f32]) -> usize {
    let better = |best: (usize, f32), (at, x): (usize, &f32)| if *x > best.1 { (at, *x) } else { best };
    row.iter().enumerate().fold((0, f32::NEG_INFINITY), better).0
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let random = if self.perplexity.is_some() { "" } else { "random " };
        writeln!(f, "beside the same graph in f32, on {} {random}tokens:", self.tokens)?;
        if let Some(Perplexity { exact, program, cost_percent }) = self.perplexity {
            writeln!(f, "  perplexity       {program:.4}, in f32 {exact:.4}: {cost_percent:+.2} %")?;
        }
        writeln!(f, "  logits           {:.3} % off", 100.0 * self.logits_error)?;
        writeln!(f, "  divergence       {:.5} nats, at most {:.4}", self.divergence, self.largest_divergence)?;
        writeln!(f, "  same best token  {:.1} %", 100.0 * self.same_best)?;
        let mut layers = self.layers.iter().enumerate();
        layers.try_for_each(|(layer, error)| writeln!(f, "  layer {layer:<10} {:.3} % off", 100.0 * error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_are_no_distance_apart() {
        let mut comparison = Comparison::default();
        let row = vec![(2, vec![1.0, 3.0, 2.0, 0.0]), (1, vec![1.0, 2.0])];
        comparison.add(&row, &row, &[1]);
        let checked = comparison.finish(2, true);
        assert_eq!((checked.logits_error, checked.divergence, checked.same_best), (0.0, 0.0, 1.0));
        assert_eq!(checked.layers, [0.0]);
        let perplexity = checked.perplexity.expect("tokens were text");
        assert!((perplexity.exact - (1.0 + (-2_f64).exp())).abs() < 1e-12);
        assert_eq!(perplexity.cost_percent, 0.0);
    }

    #[test]
    fn a_program_that_is_sure_of_the_wrong_token_pays_for_it() {
        let mut comparison = Comparison::default();
        comparison.add(&[(2, vec![10.0, 0.0])], &[(2, vec![0.0, 0.0])], &[1]);
        let checked = comparison.finish(2, true);
        let perplexity = checked.perplexity.expect("tokens were text");
        assert!((perplexity.exact - 2.0).abs() < 1e-12);
        assert!(perplexity.program > 1e4);
        assert!((checked.divergence - (5.0 - 2_f64.ln())).abs() < 1e-4);
    }
}
