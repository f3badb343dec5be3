//! Kernels that programs bring as Metal source, where the user allows them. Experimental: compiled everywhere, and run on Apple
//! GPUs only, of which none has tested it.

use crate::bridge::ffi::{Kernel, KernelArgument, KernelResult, Kind};
use crate::frame::{Frame, device, small};
use crate::kind::kind;
use ptero_backend::Fault;
use ptero_plan::graph::Foreign;
use ptero_tensor::DType;

const NOT_LAUNCHED: Fault = Fault::Contract("a kernel has three sizes of its grid and three of its thread groups");
const NO_ARGUMENT: Fault = Fault::Contract("a kernel is compiled for ints, bools and element types");

pub(crate) fn foreign(frame: &mut Frame<'_>, foreign: &Foreign) -> Result<(), Fault> {
    let kernel = &*foreign.kernel;
    let numbers = foreign.numbers.iter().map(|number| small(frame.eval(number)));
    let launch = numbers.collect::<Result<Vec<i32>, Fault>>()?;
    if launch.len() != 6 {
        return Err(NOT_LAUNCHED);
    }
    let mut results = Vec::new();
    for out in &foreign.outs {
        results.push(KernelResult { out: out.0, shape: frame.shape(*out)?.to_vec(), kind: frame.kind(*out)? });
    }
    let names = |names: &Option<Vec<String>>| names.clone().unwrap_or_default();
    let codes = kernel.template_arg_kinds.iter().flatten().zip(kernel.template_arg_values.iter().flatten());
    let arguments = kernel.template_arg_names.iter().flatten().zip(codes).map(|(name, (code, value))| {
        let dtype = || i8::try_from(*value).ok().and_then(DType::from_code).ok_or(NO_ARGUMENT);
        let kind = match code {
            0 | 1 => Kind::I32,
            2 => kind(dtype()?)?,
            _ => return Err(NO_ARGUMENT),
        };
        Ok(KernelArgument { name: name.clone(), code: *code, value: *value, kind })
    });
    let kernel = Kernel {
        name: kernel.name.clone(),
        source: kernel.source.clone(),
        header: kernel.header.clone().unwrap_or_default(),
        input_names: names(&kernel.input_names),
        output_names: names(&kernel.output_names),
        inputs: foreign.ins.iter().map(|value| value.0).collect(),
        results,
        arguments: arguments.collect::<Result<_, Fault>>()?,
        launch,
        is_row_contiguous: kernel.ensure_row_contiguous,
        is_atomic: kernel.atomic_outputs,
        has_init: kernel.init_value.is_some(),
        init: kernel.init_value.unwrap_or_default(),
    };
    frame.arrays().run_kernel(&kernel).map_err(device)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::bridge::{ffi, lock};

    #[test]
    fn mlx_runs_a_kernel_or_says_that_it_has_no_metal() {
        let _guard = lock();
        let mut values = ffi::new_values(2);
        let floats = |numbers: [f32; 2]| numbers.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        values.pin_mut().store(0, &floats([1.5, -2.0]), &[2], Kind::F32).unwrap();
        let argument = KernelArgument { name: "FACTOR".to_owned(), code: 0, value: 2, kind: Kind::I32 };
        let kernel = Kernel {
            name: "twice".to_owned(),
            source: "uint at = thread_position_in_grid.x; out[at] = FACTOR * x[at];".to_owned(),
            header: String::new(),
            input_names: vec!["x".to_owned()],
            output_names: vec!["out".to_owned()],
            inputs: vec![0],
            results: vec![KernelResult { out: 1, shape: vec![2], kind: Kind::F32 }],
            arguments: vec![argument],
            launch: vec![2, 1, 1, 1, 1, 1],
            is_row_contiguous: true,
            is_atomic: false,
            has_init: false,
            init: 0.0,
        };
        let outcome = values.pin_mut().run_kernel(&kernel);
        if ffi::has_metal() {
            outcome.unwrap();
            let mut found = vec![0; 8];
            values.pin_mut().read(1, &mut found).unwrap();
            assert_eq!(found, floats([3.0, -4.0]));
        } else {
            assert!(outcome.unwrap_err().what().contains("Metal"));
        }
    }
}
