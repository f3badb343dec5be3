use super::*;
use ptero_plan::prim::GatedDelta;

const F32: DType = DType::F32;

#[test]
fn each_token_corrects_what_the_state_says_of_its_key() {
    let mut b = Builder::new();
    // One batch, two tokens, two heads that share their keys, of two elements; values have one.
    let q = b.constant(F32, &[1, 2, 1, 2], &[1.0, 1.0, 2.0, 1.0]);
    let k = b.constant(F32, &[1, 2, 1, 2], &[1.0, 0.0, 0.0, 1.0]);
    let v = b.constant(F32, &[1, 2, 2, 1], &[5.0, 3.0, 1.0, 2.0]);
    let g = b.constant(F32, &[1, 2, 2], &[0.5, 1.0, 1.0, 2.0]);
    let beta = b.constant(F32, &[1, 2, 2], &[1.0, 0.5, 1.0, 1.0]);
    let state = b.constant(F32, &[1, 2, 1, 2], &[1.0, 2.0, 0.0, 0.0]);
    let (out, state_out) = (b.value(F32, &[1, 2, 2, 1]), b.value(F32, &[1, 2, 1, 2]));
    let rule = GatedDelta { out, state_out, q, k, v, g, beta, state };
    b.device(Prim::GatedDelta(Box::new(rule)));
    b.output(out);
    b.output(state_out);
    let mut session = b.start();
    session.run().unwrap();
    // First head: [0.5, 1] misses 5 by 4.5: [5, 1] gives 6; [5, 1] misses 1 by nothing: 2 * 5 + 1.
    // Second: [0, 0] misses 3, half of which is learnt: [1.5, 0]; doubled, it misses 2: [3, 2] gives 2 * 3 + 2.
    assert_eq!(numbers(&*session, 0), [6.0, 1.5, 11.0, 8.0]);
    assert_eq!(numbers(&*session, 1), [5.0, 1.0, 3.0, 2.0]);
}

#[test]
fn heads_use_the_keys_of_their_group_and_the_state_is_kept() {
    let mut b = Builder::new();
    // Two batches of one token; four heads in two groups; keys and values of one element.
    let ones = b.constant(F32, &[], &[1.0]);
    let q = b.broadcast(ones, &[2, 1, 2, 1]);
    let k = b.constant(F32, &[2, 1, 2, 1], &[1.0, 10.0, 2.0, 20.0]);
    let (v, g) = (b.broadcast(ones, &[2, 1, 4, 1]), b.broadcast(ones, &[2, 1, 4]));
    let zero = b.constant(F32, &[], &[0.0]);
    let (none, all) = (b.broadcast(zero, &[2, 1, 4]), g);
    let state = b.state(F32, &[2, 4, 1, 1]);
    let mut step = |beta| {
        let before = b.load(state);
        let (out, state_out) = (b.value(F32, &[2, 1, 4, 1]), b.value(F32, &[2, 4, 1, 1]));
        b.device(Prim::GatedDelta(Box::new(GatedDelta { out, state_out, q, k, v, g, beta, state: before })));
        b.store(state, state_out);
        out
    };
    let (first, out) = (step(all), step(none));
    let expected = [1.0, 1.0, 10.0, 10.0, 2.0, 2.0, 20.0, 20.0];
    b.output(first);
    b.output(out);
    let mut session = b.start();
    session.run().unwrap();
    assert_eq!(numbers(&*session, 0), expected);
    assert_eq!(numbers(&*session, 1), expected);
}

#[test]
fn without_tokens_the_state_stays() {
    let mut b = Builder::new();
    let none = b.constant(F32, &[0], &[]);
    let mut tokens = |shape: &[i64]| b.strided(none, shape, &vec![0; shape.len()], 0);
    let (q, v, g) = (tokens(&[1, 0, 1, 1]), tokens(&[1, 0, 1, 1]), tokens(&[1, 0, 1]));
    let state = b.constant(F32, &[1, 1, 1, 1], &[7.0]);
    let (out, state_out) = (b.value(F32, &[1, 0, 1, 1]), b.value(F32, &[1, 1, 1, 1]));
    let rule = GatedDelta { out, state_out, k: q, q, v, beta: g, g, state };
    b.device(Prim::GatedDelta(Box::new(rule)));
    assert_eq!(b.read(state_out), [7.0]);
}
