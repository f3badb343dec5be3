//! How long the host takes to build a step of decoding and to hand it to MLX, apart from what computing it takes.
//!
//! ```sh
//! cargo run --release -p ptero-mlx --features link --example host_time -- model.pte
//! ```

use ptero_engine::{Engine, SampleOptions};
use ptero_mlx::{Mlx, host_time};
use ptero_pte::{Limits, Verified};
use std::error::Error;
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
/// Tokens in a round; short enough that a text of all rounds fits small contexts.
const TOKENS: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("a program is wanted")?;
    let program = Verified::open(path.as_ref(), &Limits::DEFAULT)?;
    let engine = Engine::new(&program, &Mlx::new(), &[])?;
    let options = SampleOptions { temperature: 0.8, top_k: Some(40), top_p: Some(0.95), ..SampleOptions::default() };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut session = engine.session()?;
        session.ignore_ends(true);
        let mut tokens = session.generate(&[1, 2, 3, 4], &options, TOKENS + 1)?;
        tokens.next().ok_or("the first token of the text")??;
        let (before, start) = (host_time(), Instant::now());
        tokens.by_ref().try_for_each(|token| token.map(drop))?;
        let (after, whole) = (host_time(), start.elapsed());
        let steps = u32::try_from(after.steps - before.steps)?.max(1);
        let of = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(steps);
        rounds.push([of(after.building - before.building), of(after.submitting - before.submitting), of(whole)]);
    }
    for (at, name) in ["building", "submitting", "whole step"].into_iter().enumerate() {
        let mut times: Vec<f64> = rounds.iter().filter_map(|round| round.get(at)).copied().collect();
        times.sort_by(f64::total_cmp);
        if let [least, .., most] = times.as_slice()
            && let Some(median) = times.get(ROUNDS / 2)
        {
            println!("{name:10} {median:.3} ms ({least:.3} to {most:.3})");
        }
    }
    Ok(())
}
