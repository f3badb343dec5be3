//! Tests of tasks, sleeping, panics and memory of the pool.

use super::*;

#[test]
fn every_task_runs_once_on_any_number_of_threads() {
    for threads in [1, 2, 5] {
        let (pool, mut scratch) = (Pool::new(threads), Scratch::default());
        let mut workers = Workers { pool: &pool, scratch: &mut scratch };
        let mut counts = vec![0_u32; 37];
        for _ in 0..if cfg!(miri) { 3 } else { 500 } {
            workers.chunks(&mut counts, 4, |_, chunk, _| chunk.iter_mut().for_each(|count| *count += 1));
        }
        assert!(counts.iter().all(|count| *count == counts[0] && *count > 0), "{counts:?}");
        let (mut halves, mut thirds) = (vec![0; 10], vec![0; 14]);
        workers.chunk_pairs((&mut halves, 2), (&mut thirds, 3), |task, half, third, _| {
            half.fill(task + 1);
            third.fill(task + 1);
        });
        assert_eq!(halves, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        assert_eq!(thirds, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5]);
        let mut matrix = vec![0_usize; 5 * 7];
        workers.stripes(&mut matrix, 7, 3, |task, stripe, _| {
            for row in 0..stripe.rows() {
                let start = stripe.start();
                stripe
                    .row(row)
                    .iter_mut()
                    .zip(start..)
                    .for_each(|(cell, column)| *cell = 100 * task + 10 * row + column);
            }
        });
        let expected = |index: usize| 100 * (index % 7 / 3) + 10 * (index / 7) + index % 7;
        assert_eq!(matrix, (0..35).map(expected).collect::<Vec<_>>());
    }
}

#[test]
fn sleeping_workers_wake_and_busy_ones_are_not_waited_for() {
    let pool = Pool::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut scratch = Scratch::default();
                let mut workers = Workers { pool: &pool, scratch: &mut scratch };
                for turn in 0..4 {
                    let mut cells = vec![0; 64];
                    workers.chunks(&mut cells, 8, |task, chunk, _| chunk.fill(task + turn));
                    assert!(cells.iter().enumerate().all(|(index, cell)| *cell == index / 8 + turn));
                    std::thread::sleep(std::time::Duration::from_millis(if cfg!(miri) { 0 } else { 2 }));
                }
            });
        }
    });
}

#[test]
fn a_panic_in_a_task_reaches_the_caller_and_the_pool_still_works() {
    let (pool, mut scratch) = (Pool::new(3), Scratch::default());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.run(64, &mut scratch, &|task, _| assert!(task != 33, "task 33"));
    }));
    assert!(caught.is_err());
    let done = AtomicUsize::new(0);
    pool.run(64, &mut scratch, &|_, _| {
        done.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 64);
}

#[test]
fn scratch_memory_comes_in_pieces() {
    let mut scratch = Scratch::default();
    let ([a, b], [c]) = (scratch.floats.pieces([3, 5]), scratch.ints.pieces([2]));
    a.fill(1.0);
    b.fill(2.0);
    c.fill(3);
    assert_eq!((a.len(), b.len(), c.len()), (3, 5, 2));
    let [a, b] = scratch.floats([17, 1]);
    assert_eq!((a.len(), b.len()), (17, 1));
    if !cfg!(miri) {
        assert!([a.as_ptr().addr(), b.as_ptr().addr()].iter().all(|start| start % 64 == 0));
    }
}

#[test]
fn prepared_memory_is_separate_from_the_memory_of_the_tasks() {
    let (pool, mut scratch) = (Pool::new(2), Scratch::default());
    let mut workers = Workers { pool: &pool, scratch: &mut scratch };
    let mut cells = vec![0.0; 10];
    let addresses = |workers: &mut Workers<'_>| {
        workers.prepared(|shared, workers| {
            let inner = workers.prepared(|inner, _| inner.floats([3])[0].as_ptr().addr());
            (shared.floats([3])[0].as_ptr().addr(), inner)
        })
    };
    let before = addresses(&mut workers);
    assert_ne!(before.0, before.1);
    workers.prepared(|shared, workers| {
        let [numbers] = shared.floats([3]);
        numbers.fill(2.0);
        workers.chunks(&mut cells, 3, |_, chunk, scratch| {
            scratch.floats([3])[0].fill(1.0);
            chunk.fill(numbers[1]);
        });
    });
    assert!(cells.iter().all(|cell| *cell == 2.0));
    assert_eq!(addresses(&mut workers), before);
}
