//! Layers that see a window keep no more than they need, and see what they should however the tokens come.

use crate::draw::Session;
use crate::tiny::{CLOSE, Golden, distance, exact, feed, folder, open, program};
use ptero_cpu::Cpu;
use ptero_export::Recipe;
use ptero_pte::{Role, Verified};

/// Tiny models with a window, and how wide it is.
const WINDOWS: [(&str, usize); 5] =
    [("gemma4", 6), ("gemma4_capped", 5), ("gemma4_shared", 6), ("gemma4_per_layer", 2), ("mistral", 7)];

fn narrow(name: &str, context: usize, prefill: usize) -> Verified {
    let small = |count: usize| Some(u32::try_from(count).unwrap());
    let recipe = Recipe { max_context: small(context), max_prefill: small(prefill), ..exact() };
    program(&open(&folder(name)), &recipe)
}

/// Feeds positions in calls of these lengths, again and again, and checks the logits after each.
fn check(session: &mut Session<'_>, golden: &Golden, from: usize, to: usize, lengths: &[usize], what: &str) {
    let mut at = from;
    for length in lengths.iter().cycle() {
        if at == to {
            break;
        }
        let end = to.min(at + length);
        let far = distance(&feed(session, &golden.tokens, at, end, None), &golden.logits[end - 1]);
        assert!(far <= CLOSE, "{what}: after {at}..{end} position {} is {far:e} away", end - 1);
        at = end;
    }
}

#[test]
fn s2_1_windows_see_the_same_however_many_tokens_a_call_takes() {
    for (name, _) in WINDOWS {
        let golden = Golden::read(&folder(name));
        let count = golden.tokens.len();
        for prefill in 1..=12 {
            let program = narrow(name, 64, prefill);
            let fresh = Session::new(&program, &Cpu::new());
            let ways = [vec![prefill], vec![1, prefill], vec![prefill, 1, 2.min(prefill)], (1..=prefill).collect()];
            for lengths in ways {
                let what = format!("{name}, calls of {lengths:?} of at most {prefill}");
                check(&mut fresh.another(), &golden, 0, count, &lengths, &what);
            }
        }
    }
}

#[test]
fn a_state_can_start_again_and_go_back_by_as_much_as_a_call_takes() {
    for (name, _) in WINDOWS {
        let golden = Golden::read(&folder(name));
        let count = golden.tokens.len();
        for prefill in [1, 3, 4] {
            let program = narrow(name, 64, prefill);
            let mut session = Session::new(&program, &Cpu::new());
            check(&mut session, &golden, 0, count, &[prefill], name);
            check(&mut session, &golden, 0, count, &[1, prefill], &format!("{name}, again from the start"));
            for back in 1..=prefill {
                check(&mut session, &golden, count - back, count, &[1], &format!("{name}, back by {back}"));
            }
        }
    }
}

/// Positions that each state has room for.
fn rooms(program: &Verified) -> Vec<i32> {
    let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
    let slots = 0..u32::try_from(graph.tensor_count()).unwrap();
    let states = slots.filter(|slot| graph.role(*slot) == Some(Role::State));
    states.map(|slot| graph.meta(slot).unwrap().shape[2].value).collect()
}

fn count(program: &Verified, name: &str) -> usize {
    let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
    graph.nodes().filter(|node| node.name() == name).count()
}

#[test]
fn states_of_windows_have_room_for_the_window_and_a_call() {
    let program = narrow("gemma4", 64, 10);
    let (full, window) = ([64; 2].as_slice(), [15; 2].as_slice());
    assert_eq!(rooms(&program), [window, window, full, window, window, full].concat());
    assert_eq!(count(&program, "SliceUpdate"), 4 * 4 + 2 * 2, "in two runs where it goes round");
    assert_eq!(count(&program, "Less"), 1, "all layers share what is seen");
    let short = narrow("gemma4", 12, 10);
    assert_eq!(rooms(&short), [12; 12], "no more than the context");
    assert_eq!((count(&short, "SliceUpdate"), count(&short, "Less")), (6 * 2, 1));
    let all = narrow("gemma4", 6, 4);
    assert_eq!((rooms(&all), count(&all, "Less")), (vec![6; 12], 0), "a window over the whole context is none");
    assert_eq!(rooms(&narrow("gemma4_shared", 64, 10)).len(), 6, "layers that read the keys of others have no state");
}

#[test]
fn a_context_that_is_shorter_than_window_and_call_gives_the_same_logits() {
    for (name, window) in WINDOWS {
        let golden = Golden::read(&folder(name));
        for context in [window - 1, window, window + 1, 2 * window] {
            for prefill in 1..=context {
                let program = narrow(name, context, prefill);
                let what = format!("{name}, a context of {context}, calls of {prefill}");
                check(&mut Session::new(&program, &Cpu::new()), &golden, 0, context, &[prefill, 1], &what);
            }
        }
    }
}
