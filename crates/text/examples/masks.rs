//! What masks cost: `masks TOKENIZER.JSON LOGITS [SCHEMA.JSON…]` follows JSON Schemas with random tokens that they allow, eight texts of up
//! to 256 tokens for each, and prints the time for a mask of that many logits: the median, the mean, the 99th of a hundred, the longest.

use ptero_text::{Grammar, Limits, Matcher, Tokenizer, Vocabulary};
use std::time::{Duration, Instant};

const TEXTS: usize = 8;
const TOKENS: usize = 256;

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 % u64::from(bound.max(1))).unwrap_or(0)
    }
}

/// The token with a number among those that are allowed.
fn allowed(mask: &[u32], mut number: u32) -> Option<u32> {
    for (bits, first) in mask.iter().zip((0..).step_by(32)) {
        if number < bits.count_ones() {
            return (0..32).filter(|bit| bits >> bit & 1 == 1).nth(number as usize).map(|bit| first + bit);
        }
        number -= bits.count_ones();
    }
    None
}

fn print(name: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len() - 1)).map_or(0.0, microseconds);
    let mean = microseconds(&times.iter().sum()) / times.len() as f64;
    let [median, late, last] = [50, 99, 100].map(at);
    println!(
        "{name:24} {:6} masks: {median:8.1} us, mean {mean:8.1}, 99 % {late:8.1}, longest {last:8.1}",
        times.len()
    );
}

fn microseconds(time: &Duration) -> f64 {
    1e6 * time.as_secs_f64()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (tokenizer, logits) =
        arguments.next().zip(arguments.next()).ok_or("usage: masks TOKENIZER.JSON LOGITS SCHEMA.JSON…")?;
    let tokenizer = Tokenizer::from_json(&std::fs::read(tokenizer)?, None, &Limits::default())?;
    let started = Instant::now();
    let vocabulary = Vocabulary::new(&tokenizer, logits.parse()?)?;
    println!("{} logits; the vocabulary took {:.0} ms", vocabulary.size(), 1e-3 * microseconds(&started.elapsed()));
    let (mut random, mut all, mut starts) = (Random(7), Vec::new(), Vec::new());
    for file in arguments {
        let started = Instant::now();
        let grammar = Grammar::json_schema(&std::fs::read_to_string(&file)?, &Limits::default())?;
        let start = Matcher::new(&grammar, &vocabulary, &[])?;
        starts.push(started.elapsed());
        let mut times = Vec::new();
        for _ in 0..TEXTS {
            let mut matcher = start.clone();
            for _ in 0..TOKENS {
                let started = Instant::now();
                let mask = matcher.mask()?;
                times.push(started.elapsed());
                let count = mask.iter().map(|bits| bits.count_ones()).sum();
                let Some(token) = allowed(mask, random.below(count)) else { break };
                matcher.accept(token)?;
                if matcher.is_finished() {
                    break;
                }
            }
        }
        all.extend_from_slice(&times);
        print(file.rsplit('/').next().unwrap_or(&file), &mut times);
    }
    print("all", &mut all);
    print("reading a schema", &mut starts);
    Ok(())
}
