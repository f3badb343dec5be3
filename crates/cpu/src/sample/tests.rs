use super::*;
use crate::pool::{Pool, Scratch, Workers};
use half::{bf16, f16};
use ptero_sampling::reference;
use ptero_sampling::threefry;

/// A sequence of numbers that is the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        self.0 ^ self.0 >> 29
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).expect("31 bits") % end
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// From 0 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 16_777_216.0
    }

    /// Nearly normal.
    fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.unit() - 0.5).sum::<f32>() * 1.414
    }

    fn row(&mut self, length: usize) -> Vec<f32> {
        let kind = self.below(12);
        let mut row: Vec<f32> = match kind {
            0 => vec![self.normal(); length],
            1 => (0..length).map(|_| self.below(4) as f32 - 2.0).collect(),
            2 => vec![f32::NEG_INFINITY; length],
            3 => vec![f32::NAN; length],
            4 => (0..length).map(|_| self.of(&[-0.0, 0.0, f32::NAN, f32::NEG_INFINITY, 1e-40])).collect(),
            5 => (0..length).map(|_| f32::from_bits((self.next() >> 32) as u32)).collect(),
            6 => (0..length).map(|_| -40.0 * self.unit()).collect(),
            _ => (0..length).map(|_| 2.5 * self.normal()).collect(),
        };
        // Peaks, some of them infinite, or the only numbers there are.
        for _ in 0..self.of(&[0, 0, 1, 2, 5]) {
            let peak = self.of(&[5.0, 9.0, 12.0, 20.0, 60.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
            let at = self.below(length);
            row[at] = peak + self.of(&[0.0, 0.25]);
        }
        row
    }

    fn settings(&mut self, length: usize) -> Settings {
        let temperature =
            self.of(&[0.0, 1e-4, 0.3, 0.7, 0.8, 1.0, 1.0, 1.5, 3.0, 100.0, 1e30, f32::INFINITY, f32::NAN, -1.0]);
        let several = self.below(length + 5).cast_signed() as i64;
        let top_k = self.of(&[1, 2, 5, 40, 50, i64::MAX, i64::MAX, i64::MAX, 0, several, several]);
        let share = self.unit();
        let top_p = self.of(&[1.0, 1.0, 0.95, 0.95, 0.5, 1e-6, 0.999_999, share, share, 0.0, f32::NAN, 1.5]);
        Settings { temperature, top_k, top_p }
    }
}

/// Rows, and what to do with them.
struct Case {
    rows: Vec<f32>,
    vocabulary: usize,
    settings: Vec<Settings>,
    keys: Vec<Key>,
    is_shared: bool,
}

impl Case {
    fn new(random: &mut Random, count: usize, vocabulary: usize) -> Self {
        let rows = (0..count).flat_map(|_| random.row(vocabulary)).collect();
        let settings = if random.below(2) == 0 { 1 } else { count };
        let settings = (0..settings).map(|_| random.settings(vocabulary)).collect();
        let keys = (0..count).map(|_| threefry::key(random.next())).collect();
        Self { rows, vocabulary, settings, keys, is_shared: random.below(2) == 0 }
    }

    fn keys(&self) -> Keys<'_> {
        if self.is_shared { Keys::Shared(self.keys[0]) } else { Keys::PerRow(&self.keys) }
    }

    /// In every type, against the reference.
    fn check(&self, isa: Isa, workers: &mut Workers<'_>) {
        let halves: Vec<f16> = self.rows.iter().map(|x| f16::from_f32(*x)).collect();
        let brains: Vec<bf16> = self.rows.iter().map(|x| bf16::from_f32(*x)).collect();
        let widened: [Vec<f32>; 3] = [
            self.rows.clone(),
            halves.iter().map(|x| x.to_f32()).collect(),
            brains.iter().map(|x| x.to_f32()).collect(),
        ];
        let elements = [Elements::F32(&self.rows), Elements::F16(&halves), Elements::Bf16(&brains)];
        for (widened, elements) in widened.iter().zip(elements) {
            let expected = reference::sample(widened, self.vocabulary, &self.settings, self.keys());
            let mut tokens = vec![u32::MAX; expected.len()];
            let rows = Rows::contiguous(elements, self.vocabulary);
            sample_rows(workers, isa, &rows, &self.settings, self.keys(), &mut tokens);
            let Self { vocabulary, settings, is_shared, .. } = self;
            let threads = workers.pool.threads();
            assert_eq!(tokens, expected, "{vocabulary} {settings:?} {is_shared} {} {threads}", isa.name());
        }
    }
}

fn check(seed: u64, cases: usize, length: impl Fn(&mut Random) -> (usize, usize)) {
    let mut random = Random(seed);
    let mut pools: Vec<(Pool, Scratch)> = [1, 2, 5].map(|threads| (Pool::new(threads), Scratch::default())).into();
    for _ in 0..cases {
        let (count, vocabulary) = length(&mut random);
        let case = Case::new(&mut random, count, vocabulary);
        for isa in Isa::available() {
            let at = random.below(pools.len());
            let (pool, scratch) = &mut pools[at];
            case.check(isa, &mut Workers { pool, scratch });
        }
    }
}

#[test]
fn short_rows_get_the_tokens_of_the_reference() {
    check(1, if cfg!(miri) { 3 } else { 3000 }, |random| (1 + random.below(5), 1 + random.below(300)));
}

#[test]
fn middling_rows_get_the_tokens_of_the_reference() {
    check(2, if cfg!(miri) { 0 } else { 400 }, |random| (1 + random.below(5), 1025 + random.below(5000)));
}

#[test]
fn long_rows_get_the_tokens_of_the_reference() {
    check(3, if cfg!(miri) { 0 } else { 40 }, |random| {
        let length = random.of(&[8192, 8193, 16_384, 32_000, 50_257, 151_936, 262_144]);
        (random.of(&[1, 1, 2, 3]), length)
    });
}
