//! ExecuTorch's own programs, one test each: they open, their structure is sound, their nodes are those that the suite
//! counted, and reading what we write gives the same program. The sampling heads in `conformance/heads` are always tested;
//! the rest of the corpus is where `PTERO_CORPUS` names its folder (`just rewrite`), else one test is shown as ignored.

use libtest_mimic::{Arguments, Failed, Trial};
use ptero_pte::{Bytes, Limits, Program, Verified};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = trials_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/heads"));
    match std::env::var_os("PTERO_CORPUS") {
        Some(folder) => trials.extend(trials_of(Path::new(&folder))),
        None => trials.push(
            Trial::test("corpus (needs PTERO_CORPUS: just rewrite)", || Err("PTERO_CORPUS is not set".into()))
                .with_ignored_flag(true),
        ),
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials_of(folder: &Path) -> Vec<Trial> {
    let entries = std::fs::read_dir(folder).expect("a folder of cases");
    let mut cases: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    cases.retain(|case| case.join("model.pte").exists());
    cases.sort();
    assert!(!cases.is_empty(), "{} holds no case with a model.pte", folder.display());
    let trial = |case: PathBuf| {
        let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Trial::test(name, move || check(&case))
    };
    cases.into_iter().map(trial).collect()
}

fn check(case: &Path) -> Result<(), Failed> {
    let program = Program::open(&case.join("model.pte"), &Limits::DEFAULT)?;
    let program = Verified::new(program, &Limits::DEFAULT)?;

    let mut counts = BTreeMap::<String, u64>::new();
    for node in program.methods.iter().flat_map(|method| method.mlx_delegates()).flat_map(|(_, graph)| graph.nodes()) {
        *counts.entry(format!("{}Node", node.name())).or_default() += 1;
    }
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(case.join("case.json"))?)?;
    let wanted: BTreeMap<String, u64> = serde_json::from_value(json.get("node_counts").cloned().unwrap_or_default())?;
    if counts != wanted {
        return Err(format!("nodes are {counts:?}, the suite counted {wanted:?}").into());
    }

    let mut bytes = Vec::new();
    program.write(&mut bytes)?;
    let again = Verified::new(Program::read(&Bytes::from(bytes.clone()), &Limits::DEFAULT)?, &Limits::DEFAULT)?;
    if again != program {
        return Err("what we write reads back as another program".into());
    }
    let mut same = Vec::new();
    again.write(&mut same)?;
    if same != bytes {
        return Err("writing twice gives different bytes".into());
    }
    Ok(())
}
