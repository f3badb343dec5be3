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
        Matrices::one(&mut matrix, 7).all().stripes(&mut workers, 3, |stripe, _| {
            for row in 0..stripe.rows() {
                let start = stripe.start();
                let cells = stripe.row(row).iter_mut().zip(start..);
                cells.for_each(|(cell, column)| *cell = 100 * (start / 3) + 10 * row + column);
            }
        });
        let expected = |index: usize| 100 * (index % 7 / 3) + 10 * (index / 7) + index % 7;
        assert_eq!(matrix, (0..35).map(expected).collect::<Vec<_>>());
    }
}

#[test]
fn groups_of_matrices_are_written_where_they_lie() {
    for threads in [1, 3] {
        let (pool, mut scratch) = (Pool::new(threads), Scratch::default());
        let mut workers = Workers { pool: &pool, scratch: &mut scratch };
        // Six matrices of two rows in each of two slices.
        let mut memory = [vec![0_usize; 6 * 2 * 3], vec![0; 6 * 2 * 3]];
        let mut matrices = Matrices::new(memory.iter_mut().map(Vec::as_mut_slice), [2, 3]);
        assert_eq!(matrices.count(), 12);
        let numbers = [7, 0, 3, 11, 2];
        matrices.groups(&mut workers, (&numbers, &[1, 3, 5]), 2, |workers, range, mut rows| {
            assert_eq!(rows.count(), 2 * range.len());
            rows.part(1, usize::MAX).stripes(workers, 2, |stripe, _| {
                for row in 0..stripe.rows() {
                    stripe.row(row).fill(10 * range.start + row + 1);
                }
            });
        });
        drop(matrices);
        let row = |number: usize, row: usize| &memory[number / 6][(number % 6 * 2 + row) * 3..][..3];
        // The first row of each group is left out.
        assert_eq!([row(7, 0), row(7, 1)], [[0; 3], [1; 3]]);
        assert_eq!([row(0, 0), row(0, 1), row(3, 0), row(3, 1)], [[0; 3], [11; 3], [12; 3], [13; 3]]);
        assert_eq!([row(11, 0), row(11, 1), row(2, 0), row(2, 1)], [[0; 3], [31; 3], [32; 3], [33; 3]]);
        assert!([1, 4, 5, 6, 8, 9, 10].iter().all(|other| [row(*other, 0), row(*other, 1)] == [[0; 3]; 2]));
    }
}

#[test]
fn many_slices_are_listed_in_the_memory_that_an_earlier_list_left() {
    let (pool, mut scratch, mut list) = (Pool::new(2), Scratch::default(), SliceMemory::default());
    let mut workers = Workers { pool: &pool, scratch: &mut scratch };
    for count in [20, 3, 17] {
        let mut memory = vec![[0_u8; 4]; count];
        let mut matrices = Matrices::within(&mut list, memory.iter_mut().map(|slice| &mut slice[..]), [2, 2]);
        assert_eq!(matrices.count(), count);
        matrices.all().stripes(&mut workers, 1, |stripe, _| {
            for row in 0..stripe.rows() {
                stripe.row(row).fill(1);
            }
        });
        matrices.leave(&mut list);
        assert_eq!(memory, vec![[1; 4]; count]);
    }
}

#[test]
#[should_panic(expected = "no number twice")]
fn a_matrix_goes_to_one_task_only() {
    let (pool, mut scratch, mut memory) = (Pool::new(2), Scratch::default(), [0; 8]);
    let mut workers = Workers { pool: &pool, scratch: &mut scratch };
    let mut matrices = Matrices::new([memory.as_mut_slice()].into_iter(), [1, 2]);
    matrices.groups(&mut workers, (&[2, 1, 2], &[1, 3]), 1, |_, _, _| {});
}

#[test]
#[should_panic(expected = "groups follow each other")]
fn groups_of_matrices_do_not_overlap() {
    let (pool, mut scratch, mut memory) = (Pool::new(2), Scratch::default(), [0; 8]);
    let mut workers = Workers { pool: &pool, scratch: &mut scratch };
    let mut matrices = Matrices::new([memory.as_mut_slice()].into_iter(), [1, 2]);
    matrices.groups(&mut workers, (&[0, 1, 2], &[2, 1, 3]), 1, |_, _, _| {});
}

#[test]
#[should_panic(expected = "a matrix of each number")]
fn numbers_of_matrices_lie_below_their_count() {
    let mut memory = [0; 8];
    Matrices::new([memory.as_mut_slice()].into_iter(), [1, 2]).some(&[4]);
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
