//! `ptero devices` on whatever machine this is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::process::Command;

fn shown(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ptero")).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_kind_of_device_is_there_or_the_reason_why_not() {
    let text = shown(&["devices"]);
    assert!(text.starts_with("cpu     "), "{text}");
    assert!(text.contains("\ncuda    none: ") || text.contains("\ncuda:0  "), "{text}");

    let json: Value = serde_json::from_str(&shown(&["devices", "--json"])).unwrap();
    let field = |path| json.pointer(path);
    assert!(field("/cpu/threads").and_then(Value::as_u64) > Some(0));
    let why = field("/cuda/none").and_then(Value::as_str);
    let wanted = if cfg!(feature = "cuda") { "driver" } else { "feature `cuda`" };
    assert!(field("/cuda/devices/0/name").is_some() || why.is_some_and(|why| why.contains(wanted)), "{json}");
}
