use super::{Scanned, StopScanner};
use crate::Error;
use proptest::prelude::*;

/// The text up to the first complete stop string, found by looking at every end.
fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
    for end in 0..=text.len() {
        let ending: Vec<_> =
            (0..stops.len()).filter(|&index| text.as_bytes()[..end].ends_with(stops[index].as_bytes())).collect();
        if let Some(&first) = ending.iter().max_by_key(|&&index| (stops[index].len(), std::cmp::Reverse(index))) {
            return (text[..end - stops[first].len()].to_owned(), Some(first));
        }
    }
    (text.to_owned(), None)
}

fn scan(pieces: &[String], stops: &[String]) -> (String, Option<usize>) {
    let mut scanner = StopScanner::new(stops).unwrap();
    let mut text = String::new();
    for piece in pieces {
        let Scanned { text: more, stop } = scanner.push(piece);
        text.push_str(&more);
        if stop.is_some() {
            assert_eq!(scanner.push("more"), Scanned { text: String::new(), stop });
            assert_eq!(scanner.finish(), "");
            return (text, stop);
        }
    }
    text.push_str(&scanner.finish());
    (text, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn pieces_are_scanned_as_the_whole_text_is(
        pieces in prop::collection::vec("[abé😀]{0,4}", 0..12),
        stops in prop::collection::vec("[abé😀]{1,5}", 0..4),
    ) {
        prop_assert_eq!(scan(&pieces, &stops), naive(&pieces.concat(), &stops));
    }

    #[test]
    fn only_the_start_of_a_stop_string_is_held_back(
        pieces in prop::collection::vec("[abé]{0,4}", 0..12),
        stops in prop::collection::vec("[abé]{1,5}", 1..4),
    ) {
        let mut scanner = StopScanner::new(&stops).unwrap();
        let (mut whole, mut given) = (String::new(), String::new());
        for piece in &pieces {
            whole.push_str(piece);
            let Scanned { text, stop } = scanner.push(piece);
            if stop.is_some() {
                break;
            }
            given.push_str(&text);
            let held = whole.strip_prefix(&given).expect("what was given is final");
            let longest = (0..=whole.len())
                .filter(|&from| whole.is_char_boundary(from))
                .find(|&from| stops.iter().any(|stop| stop.starts_with(&whole[from..])));
            prop_assert_eq!(held.len(), whole.len() - longest.unwrap_or(whole.len()));
        }
    }
}

#[test]
fn a_stop_string_over_three_pieces_is_found() {
    let mut scanner = StopScanner::new(&["<|end|>"]).unwrap();
    assert_eq!(scanner.push("Hi <"), Scanned { text: "Hi ".into(), stop: None });
    assert_eq!(scanner.push("|en"), Scanned::default());
    assert_eq!(scanner.push("d|> more"), Scanned { text: String::new(), stop: Some(0) });
}

#[test]
fn what_only_looked_like_a_stop_string_is_given_back() {
    let mut scanner = StopScanner::new(&["aab", "abc"]).unwrap();
    assert_eq!(scanner.push("aa"), Scanned::default());
    assert_eq!(scanner.push("a"), Scanned { text: "a".into(), stop: None });
    assert_eq!(scanner.push("x"), Scanned { text: "aax".into(), stop: None });
    assert_eq!(scanner.push("ab"), Scanned::default());
    assert_eq!(scanner.finish(), "ab");
}

#[test]
fn an_empty_stop_string_is_refused() {
    assert!(matches!(StopScanner::new(&["a", ""]), Err(Error::EmptyStop)));
}
