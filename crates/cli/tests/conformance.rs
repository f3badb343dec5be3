//! Programs with known results: our own small corpus, and ExecuTorch's heads and tiny whole models. Its 895 op programs
//! are run by `.ci/run` where their archive is available.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

fn conformance(folder: &Path, more: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ptero")).arg("conformance").arg(folder).args(more).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn s0_8_tokens_are_those_of_an_independent_implementation() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/cases");
    for more in [&[][..], &["--without", "fuse-maps"], &["--without", "fuse-sampler"]] {
        let (passed, table) = conformance(&cases, more);
        assert!(passed, "{table}");
        assert!(table.contains("passed   33 of 33 (33 bit-equal, 0 within tolerance)"), "{table}");
    }
}

#[test]
fn committed_programs_pass_on_every_device() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let devices = if cfg!(feature = "mlx") { &["cpu", "reference", "mlx"][..] } else { &["cpu", "reference"] };
    for (suite, count) in [("exported", 4), ("heads", 9), ("models", 5), ("sliding", 3)] {
        for device in devices {
            let (passed, table) = conformance(&folder.join(suite), &["--device", device]);
            assert!(
                passed && table.contains(&format!("passed   {count} of {count} (")),
                "{suite} on {device}: {table}"
            );
        }
    }
}

#[test]
fn a_wrong_result_is_a_failure() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/cases/bigram_greedy");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong");
    let case = folder.join("case");
    std::fs::create_dir_all(&case).unwrap();
    let model = cases.join("../../../models/bigram.pte").canonicalize().unwrap();
    std::fs::write(case.join("case.json"), format!("{{\"model\": {model:?}, \"rtol\": 0.0, \"atol\": 0.0}}")).unwrap();
    std::fs::copy(cases.join("input.bin"), case.join("input.bin")).unwrap();
    let mut wanted = std::fs::read(cases.join("expected_output.bin")).unwrap();
    *wanted.get_mut(16).unwrap() += 1;
    std::fs::write(case.join("expected_output.bin"), wanted).unwrap();
    let (passed, table) = conformance(&folder, &[]);
    assert!(
        !passed && table.contains("FAILED   case: call 0: output 0: element 0 is 97, not 98 (off by 1e0)"),
        "{table}"
    );
}
