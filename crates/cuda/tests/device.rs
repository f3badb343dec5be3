//! Tests on a device. They are ignored unless asked for (`just cuda`), and then fail without one.
//!
//! The executable needs nothing of this folder: it can be carried to a machine with a device.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use bytemuck::{Pod, Zeroable};
use common::stream;
use ptero_cuda::{Buffer, Cache, Device, Error, Grid, In, Kernel, Module, Out, Source, Stream, Variant, devices};
use std::thread;

const KERNELS: Source = Source {
    name: "kernels.cu",
    text: include_str!("kernels.cu"),
    headers: &[("common.cuh", include_str!("common.cuh"))],
    fused_multiply_add: false,
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ScaleArgs {
    x: In<f32>,
    out: Out<f32>,
    len: u32,
    factor: f32,
}
const _: () = assert!(size_of::<ScaleArgs>() == 24);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct CountArgs {
    count: Out<u32>,
}
const _: () = assert!(size_of::<CountArgs>() == 8);

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct MeetArgs {
    arrived: Out<u32>,
    seen: Out<u32>,
    len: u32,
    zero: u32,
}
const _: () = assert!(size_of::<MeetArgs>() == 24);

/// Returns a stream on the first device, and the test kernels, compiled anew each time.
fn kernels() -> (Stream, Module) {
    let stream = stream();
    let module = Module::load_from(&Cache::none(), stream.device(), &KERNELS, Variant::default())
        .unwrap_or_else(|error| panic!("{error}"));
    (stream, module)
}

fn numbers(count: u16) -> Vec<f32> {
    (0..count).map(f32::from).collect()
}

fn doubled(numbers: &[f32]) -> Vec<f32> {
    numbers.iter().map(|number| number * 2.0).collect()
}

/// `out = x * 2`, on all of `x`.
fn launch_scale(kernel: &Kernel<ScaleArgs>, stream: &Stream, x: &Buffer<f32>, out: &mut Buffer<f32>) {
    assert_eq!(x.len(), out.len());
    let len = u32::try_from(x.len()).unwrap();
    kernel
        .launch(stream, Grid::new(len.div_ceil(128), 128), |bind| ScaleArgs {
            x: bind.read(x),
            out: bind.write(out),
            len,
            factor: 2.0,
        })
        .unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn devices_are_what_they_say() {
    let stream = stream();
    let (device, all) = (stream.device(), devices().unwrap());
    println!("{:#?}", device.info());
    assert_eq!(&all[0], device.info());
    assert!(device.info().multiprocessors > 0 && device.info().l2_bytes > 0 && device.info().shared_bytes >= 48 << 10);
    let error = Device::open(all.len()).unwrap_err();
    assert!(matches!(error, Error::NoSuchDevice { .. }), "{error}");
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn buffers_hold_what_is_written() {
    let stream = stream();
    let mut buffer = Buffer::from_slice(&stream, &[1_u16, 2, 3, 4, 5]).unwrap();
    buffer.write(1, &[20, 30]).unwrap();
    assert_eq!(buffer.read().unwrap(), [1, 20, 30, 4, 5]);
    let mut part = [0; 2];
    buffer.read_into(3, &mut part).unwrap();
    assert_eq!(part, [4, 5]);
    buffer.zero().unwrap();
    assert_eq!(buffer.read().unwrap(), [0; 5]);
    assert_eq!(Buffer::<u64>::zeroed(&stream, 3).unwrap().read().unwrap(), [0; 3]);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn large_and_empty_buffers_hold_what_is_written() {
    let stream = stream();
    let numbers: Vec<u32> = (0..10_000_000).collect();
    let buffer = Buffer::from_slice(&stream, &numbers).unwrap();
    assert_eq!(buffer.read().unwrap(), numbers);
    let mut empty = Buffer::from_slice(&stream, &[] as &[f32]).unwrap();
    assert!(empty.is_empty());
    empty.write(0, &[]).unwrap();
    empty.zero().unwrap();
    assert_eq!(empty.read().unwrap(), []);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn elements_outside_a_buffer_are_refused() {
    let stream = stream();
    let mut buffer = Buffer::<f32>::zeroed(&stream, 4).unwrap();
    for (start, count) in [(0, 5), (4, 1), (5, 0), (usize::MAX, 1)] {
        let elements = vec![0.0; count];
        let error = buffer.write(start, &elements).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
        let error = buffer.read_into(start, &mut vec![0.0; count]).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn more_than_there_is_cannot_be_allocated() {
    let stream = stream();
    let error = Buffer::<u8>::zeroed(&stream, 1 << 50).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let error = Buffer::<f32>::zeroed(&stream, usize::MAX / 2).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(Buffer::from_slice(&stream, &[7_u8]).unwrap().read().unwrap(), [7], "nothing lingers");
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn a_kernel_does_what_it_says() {
    let (stream, module) = kernels();
    let scale = module.kernel("scale").unwrap();
    for count in [1, 127, 128, 129, 5000] {
        let numbers = numbers(count);
        let x = Buffer::from_slice(&stream, &numbers).unwrap();
        let mut out = Buffer::zeroed(&stream, numbers.len()).unwrap();
        launch_scale(&scale, &stream, &x, &mut out);
        assert_eq!(out.read().unwrap(), doubled(&numbers));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn buffers_and_modules_may_go_while_a_kernel_still_runs() {
    let (stream, module) = kernels();
    let scale = module.kernel("scale").unwrap();
    let numbers = numbers(20_000);
    let mut outs: Vec<_> = (0..64).map(|_| Buffer::zeroed(&stream, numbers.len()).unwrap()).collect();
    for out in &mut outs {
        let x = Buffer::from_slice(&stream, &numbers).unwrap();
        launch_scale(&scale, &stream, &x, out);
        drop(x);
        drop(Buffer::from_slice(&stream, &vec![9_u32; 20_000]).unwrap());
    }
    drop((scale, module));
    for out in outs {
        assert_eq!(out.read().unwrap(), doubled(&numbers));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn everything_can_move_to_another_thread() {
    let (stream, module) = kernels();
    let scale = module.kernel("scale").unwrap();
    let x = Buffer::from_slice(&stream, &numbers(100)).unwrap();
    let mut out = Buffer::zeroed(&stream, 100).unwrap();
    let mut graph = stream
        .capture(|stream| {
            launch_scale(&scale, stream, &x, &mut out);
            Ok(())
        })
        .unwrap();
    let there = thread::spawn(move || {
        graph.launch().unwrap();
        let read = out.read().unwrap();
        drop((x, out, graph, scale, module));
        stream.synchronize().unwrap();
        read
    });
    assert_eq!(there.join().unwrap(), doubled(&numbers(100)));
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn contraction_is_off_when_the_source_says_so() {
    let (stream, module) = kernels();
    let fused = Source { fused_multiply_add: true, ..KERNELS };
    let fused = Module::load_from(&Cache::none(), stream.device(), &fused, Variant::default()).unwrap();
    // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: the last term is lost when the product is rounded.
    let number = 1.0 + 2.0_f32.powi(-12);
    let mut results = Vec::new();
    for module in [&module, &fused] {
        let kernel: Kernel<ScaleArgs> = module.kernel("square_less_one").unwrap();
        let x = Buffer::from_slice(&stream, &[number]).unwrap();
        let mut out = Buffer::zeroed(&stream, 1).unwrap();
        launch_scale(&kernel, &stream, &x, &mut out);
        results.push(out.read().unwrap()[0]);
    }
    assert_eq!(results, [number * number - 1.0, number.mul_add(number, -1.0)]);
    assert_ne!(results[0], results[1]);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn shared_memory_over_48_kib_has_to_be_asked_for() {
    let (stream, module) = kernels();
    let mut turn: Kernel<ScaleArgs> = module.kernel("turn").unwrap();
    let bytes = 64 << 10;
    assert!(stream.device().info().shared_bytes >= bytes, "this test needs a device with 64 KiB of shared memory");
    let numbers = numbers(16 << 10);
    let x = Buffer::from_slice(&stream, &numbers).unwrap();
    let mut out = Buffer::zeroed(&stream, numbers.len()).unwrap();
    let mut launch = |turn: &Kernel<ScaleArgs>| {
        turn.launch(&stream, Grid { shared_bytes: bytes, ..Grid::new(1, 512) }, |bind| ScaleArgs {
            x: bind.read(&x),
            out: bind.write(&mut out),
            len: 16 << 10,
            factor: 1.0,
        })
    };
    let error = launch(&turn).unwrap_err();
    assert!(error.to_string().starts_with("launching kernel `turn`: CUDA_ERROR_"), "{error}");
    turn.allow_shared_bytes(bytes).unwrap();
    launch(&turn).unwrap();
    let turned: Vec<f32> = numbers.into_iter().rev().collect();
    assert_eq!(out.read().unwrap(), turned);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn blocks_of_a_cooperative_launch_can_wait_for_one_another() {
    let (stream, module) = kernels();
    let meet: Kernel<MeetArgs> = module.kernel("meet").unwrap();
    let blocks = meet.resident_blocks(32, 0).unwrap();
    assert!(blocks >= stream.device().info().multiprocessors);
    let mut arrived = Buffer::zeroed(&stream, 1).unwrap();
    let mut seen = Buffer::zeroed(&stream, blocks as usize).unwrap();
    let mut launch = |blocks| {
        meet.launch(&stream, Grid { cooperative: true, ..Grid::new(blocks, 32) }, |bind| MeetArgs {
            arrived: bind.write(&mut arrived),
            seen: bind.write(&mut seen),
            len: blocks,
            zero: 0,
        })
    };
    let error = launch(blocks + 1).unwrap_err();
    assert!(error.to_string().contains("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"), "{error}");
    launch(blocks).unwrap();
    assert_eq!(seen.read().unwrap(), vec![blocks; blocks as usize]);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn launches_that_overlap_still_see_what_was_before() {
    let (stream, module) = kernels();
    assert!(stream.device().info().arch.major >= 9, "this test needs Hopper or newer");
    let scale = module.kernel("scale_overlapping").unwrap();
    let mut a = Buffer::from_slice(&stream, &[1.0; 1000]).unwrap();
    let mut b = Buffer::zeroed(&stream, 1000).unwrap();
    let mut work = |stream: &Stream| {
        for _ in 0..10 {
            scale.launch(stream, Grid { overlapping: true, ..Grid::new(8, 128) }, |bind| ScaleArgs {
                x: bind.read(&a),
                out: bind.write(&mut b),
                len: 1000,
                factor: 2.0,
            })?;
            std::mem::swap(&mut a, &mut b);
        }
        Ok(())
    };
    work(&stream).unwrap();
    let mut graph = stream.capture(work).unwrap();
    graph.launch().unwrap();
    assert_eq!(a.read().unwrap(), vec![2.0_f32.powi(20); 1000]);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn wrong_launches_are_refused() {
    let (stream, module) = kernels();
    let error = module.kernel::<ScaleArgs>("missing").unwrap_err();
    assert_eq!(error.to_string(), "`kernels.cu` has no kernel `missing`");
    if stream.device().info().driver >= (ptero_cuda::Version { major: 12, minor: 4 }) {
        let error = module.kernel::<CountArgs>("scale").unwrap_err();
        assert_eq!(error.to_string(), "kernel `scale` takes [24] bytes of arguments, and is given 8");
        assert!(matches!(module.kernel::<()>("scale"), Err(Error::Arguments { .. })));
        assert!(matches!(module.kernel::<u32>("nothing"), Err(Error::Arguments { .. })));
    }
    let nothing: Kernel<()> = module.kernel("nothing").unwrap();
    for grid in [Grid::new(0, 1), Grid::new(1, 0), Grid::new(1, 1025), Grid { blocks: [1, 0, 1], ..Grid::new(1, 1) }] {
        let error = nothing.launch(&stream, grid, |_| ()).unwrap_err();
        assert!(matches!(error, Error::Grid { .. }), "{error}");
    }
    nothing.launch(&stream, Grid::new(1, 1), |_| ()).unwrap();
    let count: Kernel<CountArgs> = module.kernel("count").unwrap();
    let mut elsewhere = Buffer::zeroed(&stream.device().stream().unwrap(), 1).unwrap();
    let error =
        count.launch(&stream, Grid::new(1, 1), |bind| CountArgs { count: bind.write(&mut elsewhere) }).unwrap_err();
    assert_eq!(error.to_string(), "kernel `count` was given a buffer of another stream");
    stream.synchronize().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn a_graph_works_on_what_buffers_hold_when_it_is_replayed() {
    let (stream, module) = kernels();
    let scale = module.kernel("scale").unwrap();
    let count: Kernel<CountArgs> = module.kernel("count").unwrap();
    let mut x = Buffer::<f32>::zeroed(&stream, 300).unwrap();
    let mut out = Buffer::zeroed(&stream, 300).unwrap();
    let mut counted = Buffer::<u32>::zeroed(&stream, 1).unwrap();
    let mut times = Buffer::<u32>::zeroed(&stream, 1).unwrap();
    let mut graph = stream
        .capture(|stream| {
            launch_scale(&scale, stream, &x, &mut out);
            counted.zero()?;
            for count_in in [&mut counted, &mut times] {
                count.launch(stream, Grid::new(2, 32), |bind| CountArgs { count: bind.write(count_in) })?;
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(times.read().unwrap(), [0], "nothing is done while it is captured");
    for replay in 1..=3_u16 {
        let numbers: Vec<f32> = numbers(300).iter().map(|number| number * f32::from(replay)).collect();
        x.write(0, &numbers).unwrap();
        graph.launch().unwrap();
        assert_eq!(out.read().unwrap(), doubled(&numbers));
        assert_eq!(counted.read().unwrap(), [64]);
        assert_eq!(times.read().unwrap(), [64 * u32::from(replay)]);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn a_graph_keeps_the_memory_and_the_kernels_it_needs() {
    let (stream, module) = kernels();
    let scale = module.kernel("scale").unwrap();
    let mut out = Buffer::zeroed(&stream, 500).unwrap();
    let x = Buffer::from_slice(&stream, &numbers(500)).unwrap();
    let unused = Buffer::from_slice(&stream, &numbers(500)).unwrap();
    let mut graph = stream
        .capture(|stream| {
            launch_scale(&scale, stream, &x, &mut out);
            drop((x, unused));
            Ok(())
        })
        .unwrap();
    drop((scale, module));
    // These would lie where `x` was.
    let others: Vec<_> = (0..8).map(|_| Buffer::from_slice(&stream, &[5.0_f32; 500]).unwrap()).collect();
    graph.launch().unwrap();
    assert_eq!(out.read().unwrap(), doubled(&numbers(500)));
    drop((others, out));
    graph.launch().unwrap();
    stream.synchronize().unwrap();
    drop(graph);
    stream.synchronize().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn what_cannot_be_captured_is_refused_and_the_stream_goes_on() {
    let stream = stream();
    let mut buffer = Buffer::from_slice(&stream, &[1_u32]).unwrap();
    let error = stream.capture(|stream| stream.synchronize()).unwrap_err();
    assert_eq!(error.to_string(), "waiting for a stream cannot be captured in a graph");
    let error = stream.capture(|_| buffer.write(0, &[2])).unwrap_err();
    assert_eq!(error.to_string(), "writing a buffer cannot be captured in a graph");
    assert!(stream.capture(|_| buffer.read().map(drop)).is_err());
    assert!(stream.capture(|stream| Buffer::<u8>::zeroed(stream, 1).map(drop)).is_err());
    assert!(stream.capture(|stream| stream.record().map(drop)).is_err());
    assert!(stream.capture(|stream| stream.capture(|_| Ok(())).map(drop)).is_err());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stream.capture(|_| panic!("on purpose"))));
    assert!(panicked.is_err());
    buffer.write(0, &[3]).unwrap();
    assert_eq!(buffer.read().unwrap(), [3]);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn time_passes_on_a_stream() {
    let (stream, module) = kernels();
    let count: Kernel<CountArgs> = module.kernel("count").unwrap();
    let mut counted = Buffer::<u32>::zeroed(&stream, 1).unwrap();
    let before = stream.record().unwrap();
    for _ in 0..100 {
        count.launch(&stream, Grid::new(100, 256), |bind| CountArgs { count: bind.write(&mut counted) }).unwrap();
    }
    let after = stream.record().unwrap();
    let microseconds = before.microseconds_until(&after).unwrap();
    println!("100 launches: {microseconds:.1} us");
    assert!(microseconds > 0.0);
    assert_eq!(counted.read().unwrap(), [2_560_000]);
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn a_source_that_does_not_compile_shows_its_log() {
    let (stream, _) = kernels();
    let wrong = Source { name: "wrong.cu", text: "int f() { return missing; }", ..KERNELS };
    let error = Module::load_from(&Cache::none(), stream.device(), &wrong, Variant::default()).unwrap_err();
    assert!(error.to_string().contains("identifier \"missing\" is undefined"), "{error}");
}

#[test]
#[ignore = "needs an NVIDIA GPU and libnvrtc.so: just cuda"]
fn the_cache_is_used_and_damage_to_it_does_no_harm() {
    let (stream, _) = kernels();
    let folder = std::env::temp_dir().join(format!("ptero-cuda-device-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let cache = Cache::at(&folder);
    let works = || {
        let module = Module::load_from(&cache, stream.device(), &KERNELS, Variant::default()).unwrap();
        let scale = module.kernel("scale").unwrap();
        let x = Buffer::from_slice(&stream, &numbers(10)).unwrap();
        let mut out = Buffer::zeroed(&stream, 10).unwrap();
        launch_scale(&scale, &stream, &x, &mut out);
        assert_eq!(out.read().unwrap(), doubled(&numbers(10)));
    };
    works();
    let entries: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    let whole = std::fs::read(entry).unwrap();
    works();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(entry, damaged).unwrap();
    works();
    assert_eq!(std::fs::read(entry).unwrap().len(), whole.len(), "the damaged entry was replaced");
    std::fs::remove_dir_all(folder).unwrap();
}
