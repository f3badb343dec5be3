//! After the first call, a run takes no memory from the system (S1.3): its own allocator counts.
#![allow(unsafe_code, reason = "an allocator that counts")]

use ptero_backend::suite::{Case, PRIMITIVES};
use ptero_backend::{Backend, OutputValue};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_plan::plan::{Plan, PlanStep};
use ptero_plan::prim::{Prim, View};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as asked.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: it came from `alloc` above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Whether rows of quantized weights are not contiguous, as no file has them; those are copied by every run.
fn has_scattered_weights(plan: &Plan) -> bool {
    let steps = plan.blocks.iter().flat_map(|block| &block.steps);
    let mut weights = steps.filter_map(|step| match step {
        PlanStep::Device(Prim::QuantMatMul { w, .. } | Prim::Dequantize { w, .. }) => Some(w),
        _ => None,
    });
    let is_scattered = |view: &View| !view.strides.last().is_some_and(|stride| stride.is(1));
    weights.any(|w| [&w.codes].into_iter().chain(&w.scales).chain(&w.biases).any(is_scattered))
}

#[test]
fn runs_after_the_first_take_no_memory() {
    let cpu = Cpu::with(2, Isa::best());
    for primitive in PRIMITIVES {
        for number in 0..40 {
            let case = Case::new(primitive, 3, number);
            if has_scattered_weights(case.plan()) {
                continue;
            }
            let mut state =
                cpu.compile(Arc::clone(case.plan())).expect("it is sound").state(1).expect("there is memory");
            // Any thread may take any task, so each may grow its memory in any of the first runs.
            let mut counts = Vec::with_capacity(30);
            let mut value = OutputValue::Int(0);
            for _ in 0..30 {
                let before = ALLOCATIONS.load(Ordering::Relaxed);
                if case.call(state.as_mut(), 0).is_err() {
                    break;
                }
                for output in 0..case.plan().outputs.len() {
                    state.read_into(output, &mut value).expect("it ran");
                }
                counts.push(ALLOCATIONS.load(Ordering::Relaxed) - before);
            }
            assert!(counts.is_empty() || counts.ends_with(&[0, 0, 0]), "`{primitive}`, case {number}: {counts:?}");
        }
    }
}
