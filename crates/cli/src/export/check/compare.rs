//! How far two runs of a model are apart.

use anyhow::Result;
use ptero::TokenId;
use serde::Serialize;

/// What the logits of two programs have in common.
#[derive(Clone, Debug, Serialize)]
pub(in crate::export) struct Checked {
    /// Tokens that were given.
    tokens: usize,
    /// Root mean square of the difference of logits, over that of the logits themselves.
    logits_error: f64,
    /// Mean divergence of the probabilities from those in f32, in nats.
    divergence: f64,
    /// The largest divergence of any position.
    largest_divergence: f64,
    /// How often both find the same token the most likely.
    same_best: f64,
    /// Perplexity of the tokens, where they are text.
    perplexity: Option<Perplexity>,
    /// What each layer gives: root mean square of the difference, over that of what it gives in f32.
    layers: Vec<f64>,
}

/// How well the tokens are predicted.
#[derive(Clone, Copy, Debug, Serialize)]
struct Perplexity {
    exact: f64,
    program: f64,
    cost_percent: f64,
}

/// A sum of squares of differences, and of what they are differences from.
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
#[derive(Debug)]
pub(super) struct Comparison {
    tokens: usize,
    is_text: bool,
    logits: Squares,
    layers: Vec<Squares>,
    positions: usize,
    same_best: usize,
    divergence: f64,
    largest_divergence: f64,
    predicted: usize,
    /// Of the program that is checked, and of the exact one.
    losses: [f64; 2],
}

impl Comparison {
    pub(super) fn new(tokens: usize, is_text: bool) -> Self {
        Self {
            tokens,
            is_text,
            logits: Squares::default(),
            layers: Vec::new(),
            positions: 0,
            same_best: 0,
            divergence: 0.0,
            largest_divergence: 0.0,
            predicted: 0,
            losses: [0.0; 2],
        }
    }

    /// Adds the outputs of a chunk, each with the width of its rows; `next` are the tokens that follow each position.
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

    pub(super) fn finish(self) -> Checked {
        let positions = self.positions.max(1) as f64;
        let [program, exact] = self.losses.map(|loss| (loss / self.predicted.max(1) as f64).exp());
        let perplexity = Perplexity { exact, program, cost_percent: 100.0 * (program / exact - 1.0) };
        Checked {
            tokens: self.tokens,
            logits_error: self.logits.relative(),
            divergence: self.divergence / positions,
            largest_divergence: self.largest_divergence,
            same_best: self.same_best as f64 / positions,
            perplexity: self.is_text.then_some(perplexity),
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

impl Checked {
    /// For people, on stdout.
    pub(in crate::export) fn print(&self) -> Result<()> {
        anstream::println!(
            "beside the same graph in f32, on {} {}:",
            self.tokens,
            if self.perplexity.is_some() { "tokens" } else { "random tokens" },
        );
        if let Some(Perplexity { exact, program, cost_percent }) = self.perplexity {
            anstream::println!("  perplexity       {program:.4}, in f32 {exact:.4}: {cost_percent:+.2} %");
        }
        anstream::println!("  logits           {:.3} % off", 100.0 * self.logits_error);
        anstream::println!("  divergence       {:.5} nats, at most {:.4}", self.divergence, self.largest_divergence);
        anstream::println!("  same best token  {:.1} %", 100.0 * self.same_best);
        for (layer, error) in self.layers.iter().enumerate() {
            anstream::println!("  layer {layer:<10} {:.3} % off", 100.0 * error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_are_no_distance_apart() {
        let mut comparison = Comparison::new(2, true);
        let row = vec![(2, vec![1.0, 3.0, 2.0, 0.0]), (1, vec![1.0, 2.0])];
        comparison.add(&row, &row, &[1]);
        let checked = comparison.finish();
        assert_eq!((checked.logits_error, checked.divergence, checked.same_best), (0.0, 0.0, 1.0));
        assert_eq!(checked.layers, [0.0]);
        let perplexity = checked.perplexity.expect("tokens were text");
        assert!((perplexity.exact - (1.0 + (-2_f64).exp())).abs() < 1e-12);
        assert_eq!(perplexity.cost_percent, 0.0);
    }

    #[test]
    fn a_program_that_is_sure_of_the_wrong_token_pays_for_it() {
        let mut comparison = Comparison::new(2, true);
        comparison.add(&[(2, vec![10.0, 0.0])], &[(2, vec![0.0, 0.0])], &[1]);
        let checked = comparison.finish();
        let perplexity = checked.perplexity.expect("tokens were text");
        assert!((perplexity.exact - 2.0).abs() < 1e-12);
        assert!(perplexity.program > 1e4);
        assert!((checked.divergence - (5.0 - 2_f64.ln())).abs() < 1e-4);
    }
}
