//! The random bits of MLX 0.32.4, word for word.

use ptero_sampling::threefry::{KeySequence, bits, key};
use serde_json::Value;

#[test]
fn all_147_vectors_of_mlx_are_met() {
    let file: Value = serde_json::from_str(include_str!("rng_vectors.json")).unwrap();
    let vectors = file["bits"].as_array().unwrap();
    assert_eq!(vectors.len(), 147);
    for vector in vectors {
        let seed: u64 = vector["seed"].as_str().unwrap().parse().unwrap();
        let (width, count) = (integers(&vector["width"])[0], integers(&vector["n"])[0]);
        let what = format!("seed {seed}, {count} elements of {width} bytes");
        assert_eq!(key(seed).map(u64::from).as_slice(), integers(&vector["key"]), "{what}");
        assert_eq!(integers(&vector["shape"]).iter().product::<u64>(), count, "{what}");

        let bytes = bits(key(seed), usize::try_from(width).unwrap(), usize::try_from(count).unwrap());
        assert_eq!(u64::from(crc32(&bytes)), integers(&vector["crc32"])[0], "{what}");
        let elements = elements(&bytes, usize::try_from(width).unwrap());
        assert_eq!(elements.len() as u64, count, "{what}");
        assert!(elements.starts_with(&integers(&vector["first"])), "{what}");
        assert!(elements.ends_with(&integers(&vector["last"])), "{what}");
        if !vector["full"].is_null() {
            assert_eq!(elements, integers(&vector["full"]), "{what}");
        }
    }
}

#[test]
fn the_unseeded_sequence_of_mlx_is_met() {
    let file: Value = serde_json::from_str(include_str!("rng_vectors.json")).unwrap();
    let draws = file["global_sequence"]["draws"].as_array().unwrap();
    assert_eq!(draws.len(), 3);
    let mut keys = KeySequence::new(0);
    for draw in draws {
        assert_eq!(elements(&bits(keys.next_key(), 4, 5), 4), integers(draw));
    }
}

/// The numbers of an array, or the one number.
fn integers(value: &Value) -> Vec<u64> {
    let one = std::slice::from_ref(value);
    value.as_array().map_or(one, Vec::as_slice).iter().map(|number| number.as_u64().expect("an integer")).collect()
}

fn elements(bytes: &[u8], width: usize) -> Vec<u64> {
    bytes
        .chunks_exact(width)
        .map(|chunk| chunk.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
        .collect()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}
