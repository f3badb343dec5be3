//! Every source compiles, for an old arch and for Hopper. Needs NVRTC, and no device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ptero_cuda::{Arch, Error, SOURCES, Source, compile, nvrtc_version};
use std::path::Path;

const AMPERE: Arch = Arch { major: 8, minor: 0 };
const HOPPER: Arch = Arch { major: 9, minor: 0 };

const TESTS: Source = Source {
    name: "kernels.cu",
    text: include_str!("kernels.cu"),
    headers: &[("common.cuh", include_str!("common.cuh"))],
    fused_multiply_add: false,
};

/// Returns `true` if NVRTC was found; prints the reason if not.
fn has_nvrtc() -> bool {
    let found = nvrtc_version();
    match &found {
        Ok(version) => println!("NVRTC {version}"),
        Err(error) => println!("skipped: {error}"),
    }
    found.is_ok()
}

#[test]
fn every_source_compiles_without_a_warning() {
    if !has_nvrtc() {
        return;
    }
    for source in SOURCES.iter().chain([&TESTS]) {
        for arch in [AMPERE, HOPPER] {
            let compiled = compile(source, arch).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(compiled.log, "", "{} for {arch}", source.name);
            assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} for {arch}", source.name);
            println!("{} for {arch}: {} bytes", source.name, compiled.cubin.len());
        }
    }
}

#[test]
fn every_file_of_kernels_is_listed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let Ok(entries) = folder.read_dir() else {
        println!("skipped: the sources are not here");
        return;
    };
    for path in entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension() == Some("cu".as_ref())) {
        let name = path.file_name().unwrap().to_string_lossy();
        let is_listed = SOURCES.iter().any(|source| source.name.starts_with(&*name));
        assert!(is_listed, "{} is not in `SOURCES`", path.display());
    }
}

#[test]
fn what_does_not_compile_shows_where_and_why() {
    if !has_nvrtc() {
        return;
    }
    let source = Source { name: "wrong.cu", text: "\nint f() { return missing; }\n", ..TESTS };
    let error = compile(&source, HOPPER).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("`wrong.cu` does not compile for sm_90a (NVRTC "), "{text}");
    assert!(text.contains("wrong.cu(2): error: identifier \"missing\" is undefined"), "{text}");
}

#[test]
fn headers_that_are_not_given_do_not_exist() {
    if !has_nvrtc() {
        return;
    }
    for header in ["common.cuh", "cuda_fp16.h", "cuda_bf16.h", "stdint.h"] {
        let text: &'static str = format!("#include \"{header}\"\n").leak();
        let error = compile(&Source { name: "alone.cu", text, headers: &[], ..TESTS }, HOPPER).unwrap_err();
        assert!(error.to_string().contains(header), "{error}");
    }
}

#[test]
fn an_arch_that_nvrtc_does_not_know_is_named() {
    if !has_nvrtc() {
        return;
    }
    let error = compile(&TESTS, Arch { major: 99, minor: 9 }).unwrap_err();
    assert!(matches!(error, Error::UnknownArch { .. }), "{error}");
    assert!(error.to_string().contains("sm_999"), "{error}");
}

#[test]
fn a_source_with_a_zero_byte_is_refused() {
    if !has_nvrtc() {
        return;
    }
    let error = compile(&Source { name: "zero.cu", text: "\0", ..TESTS }, HOPPER).unwrap_err();
    assert_eq!(error.to_string(), "`zero.cu` holds a zero byte");
}
