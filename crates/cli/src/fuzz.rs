//! What the fuzz targets do with their input. They live here so that a test on stable Rust replays the committed seeds
//! through the very same functions.

use crate::inspect::{Report, TEMPLATE, nodes, page, summary, weights};
use ptero_plan::passes::optimize;
use ptero_plan::{KvCache, Options, lower};
use ptero_pte::{Bytes, DType, Error, Fault, Limits, Program, TensorData, Verified, check};

/// What a target does with one input.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 4] =
    [("open", open), ("read_write_read", read_write_read), ("inspect", inspect), ("plan", plan)];

/// Reads the input as a program and as tensor data, and checks what was read.
pub fn open(input: &[u8]) {
    let bytes = Bytes::from(input.to_vec());
    if let Ok(program) = Program::read(&bytes, &Limits::DEFAULT) {
        // Only that it answers matters here.
        let _ = Verified::new(program, &Limits::DEFAULT);
    }
    let _ = TensorData::read(&bytes, &Limits::DEFAULT);
}

/// What can be read is written, and what was written reads back as the same: compared as bytes, since a NaN differs from
/// itself as a number.
///
/// # Panics
/// When it does not.
pub fn read_write_read(input: &[u8]) {
    let Ok(program) = Program::read(&Bytes::from(input.to_vec()), &Limits::DEFAULT) else { return };
    let first = written(&program);
    let again = Program::read(&Bytes::from(first.clone()), &Limits::DEFAULT).expect("reads what it wrote");
    assert!(written(&again) == first, "reading and writing again changed the bytes");
    let [before, after] = [&program, &again].map(|program| check(program, &Limits::DEFAULT).err());
    // Writing lays data out anew, so data that lay askew does not any more.
    if !matches!(before.as_ref().map(Error::fault), Some(Fault::Misaligned { .. })) {
        let text = |verdict: Option<Error>| verdict.map(|error| error.to_string());
        assert_eq!(text(before), text(after), "writing changed what the verifier says");
    }
}

fn written(program: &Program) -> Vec<u8> {
    let mut bytes = Vec::new();
    program.write(&mut bytes).expect("writing to memory does not fail");
    bytes
}

/// Shows whatever can be read, in every form.
///
/// # Panics
/// When a form cannot show it.
pub fn inspect(input: &[u8]) {
    let Ok(program) = Program::read(&Bytes::from(input.to_vec()), &Limits::DEFAULT) else { return };
    let problem = check(&program, &Limits::DEFAULT).err().map(|error| error.to_string());
    let report = Report::new(&program, "fuzz.pte".to_owned(), input.len() as u64, problem);
    let mut text = Vec::new();
    summary(&report, &mut text).expect("writing to memory does not fail");
    nodes(&report, &mut text).expect("writing to memory does not fail");
    weights(&report, &mut text).expect("writing to memory does not fail");
    let text = String::from_utf8(text).expect("text is UTF-8");
    let control = |char: char| char.is_control() && char != '\n' && char != '\x1b';
    assert!(!text.contains(control), "a control character reached the terminal");
    let page = page(&report).expect("every report is JSON");
    let scripts = |page: &str| page.matches("<script").count();
    assert_eq!(scripts(&page), scripts(TEMPLATE), "the program's text must not add a script");
}

/// Lowers every graph of a sound program, with and without passes, and prints the plans.
///
/// # Panics
/// When a pass changes what a plan gives its caller.
pub fn plan(input: &[u8]) {
    let Ok(program) = Program::read(&Bytes::from(input.to_vec()), &Limits::DEFAULT) else { return };
    let Ok(program) = Verified::new(program, &Limits::DEFAULT) else { return };
    let cache = KvCache { capacity: 16, layers: 2, kv_heads: 2, head_dim: 8, dtype: DType::F32 };
    let options = Options { kv_cache: Some(cache) };
    for (_, graph) in program.methods.iter().flat_map(|method| method.graphs()) {
        if let Ok(mut plan) = lower(&program, graph, &options) {
            let steps = plan.to_string().lines().count();
            let notes = optimize(&mut plan, &[]);
            assert!(plan.to_string().lines().count() <= steps, "passes do not add steps: {notes:?}");
        }
    }
}
