//! Every source compiles, for every arch that kernels are written for. Those tests need NVRTC, but no device.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use ptero_cuda::{Arch, Error, SOURCES, Source, VARIANTS, Variant, compile, files_of_parts, launches};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

const AMPERE: Arch = Arch { major: 8, minor: 0 };
const HOPPER: Arch = Arch { major: 9, minor: 0 };
/// Of servers and of workstations.
const BLACKWELL: [Arch; 2] = [Arch { major: 10, minor: 0 }, Arch { major: 12, minor: 0 }];

const TESTS: Source = Source {
    name: "kernels.cu",
    text: include_str!("kernels.cu"),
    headers: &[("common.cuh", include_str!("common.cuh"))],
    fused_multiply_add: false,
};

/// A source, what it is compiled with, and the arch.
type Job<'a> = (Source, Variant<'a>, Arch);

/// Compiles until no job is left.
fn compile_all(jobs: &Mutex<Vec<Job<'_>>>) {
    loop {
        let job = jobs.lock().unwrap().pop();
        let Some((source, variant, arch)) = job else { return };
        let compiled = compile(&source, variant, arch).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(compiled.log, "", "{} for {arch}", source.name);
        assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} for {arch}", source.name);
        println!("{} for {arch}: {} bytes", source.name, compiled.cubin.len());
    }
}

#[test]
#[ignore = "needs libnvrtc.so, but no GPU: just cuda-compile"]
fn every_source_compiles_without_a_warning() {
    let plain = SOURCES.iter().chain([&TESTS]).map(|source| (*source, Variant::default()));
    let (together, texts) = launches();
    let parts = texts.iter().map(|text| (together, Variant { defines: &[], generated: text }));
    let primitives = VARIANTS.iter().copied().chain(parts);
    let archs = [AMPERE, HOPPER, BLACKWELL[0], BLACKWELL[1]];
    let jobs: Vec<Job<'_>> =
        plain.chain(primitives).flat_map(|(source, variant)| archs.map(|arch| (source, variant, arch))).collect();
    let jobs = Mutex::new(jobs);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| compile_all(&jobs));
        }
    });
}

#[test]
fn every_file_of_kernels_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = |folder: &Path| folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let subjects = files(&folder.join("kernels")).into_iter().filter(|path| path.is_dir());
    let folders: Vec<_> = [folder.clone(), folder.join("kernels")].into_iter().chain(subjects).collect();
    let files = folders.iter().flat_map(|folder| files(folder));
    let (together, _) = launches();
    for path in files.filter(|path| path.extension() == Some("cu".as_ref())) {
        let name = path.file_name().unwrap().to_string_lossy();
        let mut sources = SOURCES.iter().chain(VARIANTS.iter().map(|(source, _)| source)).chain([&together]);
        let is_listed =
            sources.any(|source| source.name.starts_with(&*name)) || files_of_parts().any(|file| file == name);
        assert!(is_listed, "{} is not in `SOURCES` or `VARIANTS`", path.display());
    }
}

#[test]
fn every_kernel_has_at_most_one_parameter() {
    let sources = SOURCES.iter().chain([&TESTS]).chain(VARIANTS.iter().map(|(source, _)| source));
    for source in sources {
        for kernel in source.text.split("extern \"C\" __global__").skip(1) {
            let head = kernel.split('{').next().unwrap();
            // What follows the name: bounds of a launch come before it.
            let parameters = head.trim().rsplit('(').next().unwrap();
            assert!(!parameters.contains(',') && parameters.ends_with(')'), "{}: {head}", source.name);
        }
    }
}

#[test]
#[ignore = "needs libnvrtc.so, but no GPU: just cuda-compile"]
fn what_does_not_compile_shows_where_and_why() {
    let source = Source { name: "wrong.cu", text: "\nint f() { return missing; }\n", ..TESTS };
    let error = compile(&source, Variant::default(), HOPPER).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("`wrong.cu` does not compile for sm_90a (NVRTC "), "{text}");
    assert!(text.contains("wrong.cu(2): error: identifier \"missing\" is undefined"), "{text}");
}

#[test]
#[ignore = "needs libnvrtc.so, but no GPU: just cuda-compile"]
fn headers_that_are_not_given_do_not_exist() {
    for header in ["common.cuh", "cuda_fp16.h", "cuda_bf16.h", "stdint.h"] {
        let text: &'static str = format!("#include \"{header}\"\n").leak();
        let error =
            compile(&Source { name: "alone.cu", text, headers: &[], ..TESTS }, Variant::default(), HOPPER).unwrap_err();
        assert!(error.to_string().contains(header), "{error}");
    }
}

#[test]
#[ignore = "needs libnvrtc.so, but no GPU: just cuda-compile"]
fn an_arch_that_nvrtc_does_not_know_is_named() {
    let error = compile(&TESTS, Variant::default(), Arch { major: 99, minor: 9 }).unwrap_err();
    assert!(matches!(error, Error::UnknownArch { .. }), "{error}");
    assert!(error.to_string().contains("sm_999"), "{error}");
}

#[test]
#[ignore = "needs libnvrtc.so, but no GPU: just cuda-compile"]
fn a_source_with_a_zero_byte_is_refused() {
    let error = compile(&Source { name: "zero.cu", text: "\0", ..TESTS }, Variant::default(), HOPPER).unwrap_err();
    assert_eq!(error.to_string(), "`zero.cu` holds a zero byte");
}
