//! `ptero devices` on whatever machine this is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{done, root};
use serde_json::Value;

#[test]
fn every_kind_of_device_is_there_or_the_reason_why_not() {
    let text = done(&root(), &["devices"]);
    assert!(text.starts_with("cpu     "), "{text}");
    assert!(text.contains("\nmlx     ") && text.contains("\nauto    "), "{text}");
    assert!(text.contains("\ncuda    none: ") || text.contains("\ncuda:0  "), "{text}");

    let json: Value = serde_json::from_str(&done(&root(), &["devices", "--json"])).unwrap();
    let field = |path| json.pointer(path);
    assert!(field("/cpu/threads").and_then(Value::as_u64) > Some(0));
    let why = field("/cuda/none").and_then(Value::as_str);
    let wanted = if cfg!(feature = "cuda") { "driver" } else { "feature `cuda`" };
    let mlx = field("/mlx/none").and_then(Value::as_str);
    assert_eq!(mlx.is_none(), cfg!(feature = "mlx"), "{json}");
    assert!(["cpu", "mlx"].contains(&field("/auto").and_then(Value::as_str).unwrap()), "{json}");
    assert!(field("/cuda/devices/0/name").is_some() || why.is_some_and(|why| why.contains(wanted)), "{json}");
}
