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
    let (out, state_out) = (b.temporary(F32, &[1, 2, 2, 1]), b.temporary(F32, &[1, 2, 1, 2]));
    let rule = GatedDelta { out: out.clone(), state_out: state_out.clone(), q, k, v, g, beta, state };
    b.device(Prim::GatedDelta(Box::new(rule)));
    b.output(&out);
    b.output(&state_out);
    let mut session = b.start();
    session.run().unwrap();
    // First head: [0.5, 1] misses 5 by 4.5: [5, 1] gives 6; [5, 1] misses 1 by nothing: 2 * 5 + 1.
    // Second: [0, 0] misses 3, half of which is learnt: [1.5, 0]; doubled, it misses 2: [3, 2] gives 2 * 3 + 2.
    assert_eq!(numbers(session.as_ref(), 0), [6.0, 1.5, 11.0, 8.0]);
    assert_eq!(numbers(session.as_ref(), 1), [5.0, 1.0, 3.0, 2.0]);
}

#[test]
fn heads_use_the_keys_of_their_group_and_the_state_may_be_kept_in_place() {
    let mut b = Builder::new();
    // Two batches of one token; four heads in two groups; keys and values of one element.
    let ones = b.constant(F32, &[], &[1.0]);
    let q = window(&ones, &[2, 1, 2, 1], &[0; 4], 0);
    let k = b.constant(F32, &[2, 1, 2, 1], &[1.0, 10.0, 2.0, 20.0]);
    let (v, g) = (window(&ones, &[2, 1, 4, 1], &[0; 4], 0), window(&ones, &[2, 1, 4], &[0; 3], 0));
    let zero = b.constant(F32, &[], &[0.0]);
    let (none, all) = (window(&zero, &[2, 1, 4], &[0; 3], 0), g.clone());
    let state = b.state(F32, &[2, 4, 1, 1]);
    let out = b.temporary(F32, &[2, 1, 4, 1]);
    let (first, again) = (b.temporary(F32, &[2, 1, 4, 1]), state.clone());
    let rule = |beta, out: &View| {
        let (out, k) = (out.clone(), k.clone());
        let (q, v, g) = (q.clone(), v.clone(), g.clone());
        Prim::GatedDelta(Box::new(GatedDelta { out, state_out: again.clone(), q, k, v, g, beta, state: again.clone() }))
    };
    let (learn, recall) = (rule(all, &first), rule(none, &out));
    b.device(learn);
    b.device(recall);
    let expected = [1.0, 1.0, 10.0, 10.0, 2.0, 2.0, 20.0, 20.0];
    b.output(&first);
    b.output(&out);
    let mut session = b.start();
    session.run().unwrap();
    assert_eq!(numbers(session.as_ref(), 0), expected);
    assert_eq!(numbers(session.as_ref(), 1), expected);
}

#[test]
fn without_tokens_the_state_stays() {
    let mut b = Builder::new();
    let none = b.constant(F32, &[0], &[]);
    let tokens = |shape: &[i64]| window(&none, shape, &vec![0; shape.len()], 0);
    let (q, v, g) = (tokens(&[1, 0, 1, 1]), tokens(&[1, 0, 1, 1]), tokens(&[1, 0, 1]));
    let state = b.constant(F32, &[1, 1, 1, 1], &[7.0]);
    let (out, state_out) = (b.temporary(F32, &[1, 0, 1, 1]), b.temporary(F32, &[1, 1, 1, 1]));
    let rule = GatedDelta { out, state_out: state_out.clone(), k: q.clone(), q, v, beta: g.clone(), g, state };
    b.device(Prim::GatedDelta(Box::new(rule)));
    assert_eq!(b.read(&state_out), [7.0]);
}
