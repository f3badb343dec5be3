//! Which neighbours are joined to one token, and in which order.

use super::super::keys::Keys;
use super::vocabulary::{TokenUse, Vocabulary};
use crate::error::at_most;
use crate::{Fault, Result, Step, Value};
use ptero_tensor::fault::AtStep;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The longest piece. Finding the pairs of a piece takes time quadratic in its length.
const LONGEST_PIECE_BYTES: u64 = 512;

/// The most pairs; real vocabularies of a quarter of a million pieces have half a million. A vocabulary of all short texts
/// would have a pair for nearly every byte of the file, each of which takes tens of bytes here and in the JSON.
const MOST_PAIRS: u64 = 1 << 22;

/// The pairs that the file lists.
pub(super) fn listed<'a>(keys: &Keys<'_>, vocabulary: &'a Vocabulary) -> Result<Vec<(&'a str, &'a str)>> {
    let key = "tokenizer.ggml.merges";
    let ids = vocabulary.ids();
    let known = |text: &str| ids.get_key_value(text).map(|(token, _)| *token);
    let merges = keys.required(key, keys.texts(key)?)?;
    let mut pairs = Vec::new();
    for (merge, at) in merges.iter().zip(0_u64..) {
        // A pair may start with a space, so the first character never divides it.
        let dividing = merge.char_indices().skip(1).find(|(_, char)| *char == ' ');
        let Some((left, right)) = dividing.and_then(|(at, _)| Some((merge.get(..at)?, merge.get(at + 1..)?))) else {
            let not_a_pair = Fault::NotOfType("two tokens with a space between them");
            return Err(not_a_pair).at(|| Step::Indexed("element", at)).at(|| Step::named("key", key));
        };
        // A pair of unknown tokens never occurs; the reader of the JSON would refuse it.
        if let (Some(left), Some(right)) = (known(left), known(right))
            && ids.contains_key([left, right].concat().as_str())
        {
            pairs.push((left, right));
        }
    }
    Ok(pairs)
}

/// The pairs that follow from scores: every way to split a piece into two others, the piece of the highest score first.
pub(super) fn scored<'a>(keys: &Keys<'_>, vocabulary: &'a Vocabulary) -> Result<Vec<(&'a str, &'a str)>> {
    let scores = scores(keys, vocabulary.tokens.len())?;
    // Only tokens of texts; the others are matched before.
    let pieces = || vocabulary.iter().filter(|(_, _, used)| matches!(used, TokenUse::Normal | TokenUse::UserDefined));
    let ids: HashMap<&str, usize> = pieces().map(|(id, piece, _)| (piece, id)).collect();
    let mut pairs: Vec<(f32, (&str, &str))> = Vec::new();
    for ((id, piece, _), score) in pieces().filter_map(|piece| Some((piece, *scores.get(piece.0)?))) {
        let at_token = || Step::Indexed("element", id as u64);
        at_most("bytes of a token", piece.len() as u64, LONGEST_PIECE_BYTES)
            .at(at_token)
            .at(|| Step::named("key", "tokenizer.ggml.tokens"))?;
        let mut ways: Vec<_> = piece
            .char_indices()
            .skip(1)
            .filter_map(|(at, _)| piece.split_at_checked(at))
            .filter_map(|(left, right)| Some(((*ids.get(left)?, *ids.get(right)?), (left, right))))
            .collect();
        ways.sort_by_key(|(ids, _)| *ids);
        pairs.extend(ways.into_iter().map(|(_, pair)| (score, pair)));
        at_most("pairs of tokens", pairs.len() as u64, MOST_PAIRS)
            .at(|| Step::named("key", "tokenizer.ggml.tokens"))?;
    }
    let lengths = |(left, right): (&str, &str)| (Reverse(left.chars().count()), Reverse(right.chars().count()));
    pairs.sort_by(|(score, pair), (other_score, other)| {
        other_score.total_cmp(score).then_with(|| lengths(*pair).cmp(&lengths(*other)))
    });
    Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
}

fn scores(keys: &Keys<'_>, tokens: usize) -> Result<Vec<f32>> {
    let key = "tokenizer.ggml.scores";
    let array = keys.required(key, keys.array(key)?)?;
    let score = |value: Value| if let Value::F32(score) = value { Some(score) } else { None };
    let scores: Vec<f32> = array.iter().map_while(score).collect();
    if scores.len() < tokens {
        return keys.refuse(key, Fault::NotOfType("an array of 32-bit floats, as long as the list of tokens"));
    }
    Ok(scores)
}
