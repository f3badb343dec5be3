use super::*;

#[test]
fn the_reference_agrees_with_itself() {
    for primitive in PRIMITIVES {
        check(&Reference, primitive, 60, 1).unwrap();
    }
}
