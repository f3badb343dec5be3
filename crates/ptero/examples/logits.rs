//! Prints the most likely next tokens, with their probabilities: `cargo run --release --example logits -- logits.pte "The sky is"`.
//!
//! The program must return logits: `ptero export CHECKPOINT -o logits.pte`, without `--sample`.

use ptero::TokenSettings;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which program that returns logits?")?;
    let model = ptero::Model::open(path)?;
    let prompt = model.encode(&arguments.next().ok_or("which text?")?)?;
    let mut session = model.session()?;
    session.prefill(&prompt, &TokenSettings::GREEDY)?;
    let logits = session.logits().ok_or("the program samples; export it without `--sample`")?;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let mut ranked: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    ranked.sort_by(|left, right| right.0.total_cmp(&left.0));
    for (logit, token) in ranked.into_iter().take(10) {
        println!("{:6.2} %  {:?}", 100.0 * (logit - largest).exp() / sum, model.decode(&[token])?);
    }
    Ok(())
}
