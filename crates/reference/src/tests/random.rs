use super::*;

#[test]
fn a_seed_gives_the_words_of_mlx_in_row_major_order() {
    let seeded = |dtype, shape: &[i64]| {
        Builder::new().result(dtype, shape, |out| Prim::RandomBits { out, seed: Some(Dim::fixed(0)) })
    };
    assert!(seeded(DType::U32, &[1, 8]).starts_with(&[2285895361.0, 1501764800.0, 1518642379.0, 4090693311.0]));
    assert!(seeded(DType::U32, &[2, 5]).starts_with(&[1524306142.0, 2595015335.0]));
    assert!(seeded(DType::U16, &[1, 8]).starts_with(&[20137.0, 63263.0, 1497.0]));
    assert_eq!(seeded(DType::U8, &[1]), [89.0]);
    assert_eq!(seeded(DType::U32, &[0]), [0.0; 0]);
}

#[test]
fn a_negative_seed_is_its_64_bits() {
    let found = Builder::new().result(DType::U32, &[8], |out| Prim::RandomBits { out, seed: Some(Dim::fixed(-1)) });
    let words = ptero_sampling::threefry::words([u32::MAX; 2], 8);
    assert_eq!(found, words.into_iter().map(f64::from).collect::<Vec<_>>());
}

#[test]
fn without_a_seed_each_state_draws_from_its_own_sequence() {
    let mut b = Builder::new();
    let out = b.value(DType::U32, &[5]);
    b.device(Prim::RandomBits { out, seed: None });
    b.output(out);
    let executable = Arc::from(b.compile().unwrap());
    let draw = |state: &mut RunningGraph| {
        state.run().unwrap();
        numbers(&**state, 0)
    };
    let (mut first, mut second) = (RunningGraph::new(&executable, 0), RunningGraph::new(&executable, 0));
    let mut other = RunningGraph::new(&executable, 1);
    // `random::seed(0)` and two draws in MLX.
    let draws = [
        vec![310927892.0, 87303217.0, 4207726453.0, 3773898244.0, 706834738.0],
        vec![3540263158.0, 2140569784.0, 214417662.0, 329677782.0, 3673740340.0],
    ];
    assert_eq!((draw(&mut first), draw(&mut first)), (draws[0].clone(), draws[1].clone()));
    assert_eq!(draw(&mut second), draws[0]);
    assert_ne!(draw(&mut other), draws[0]);
    second.reset().unwrap();
    assert_eq!(draw(&mut second), draws[1]);
}

#[test]
fn floats_are_not_random_bits() {
    let mut b = Builder::new();
    let out = b.value(DType::F32, &[1]);
    b.device(Prim::RandomBits { out, seed: None });
    assert!(b.compile_error().ends_with("random bits are unsigned"));
}
