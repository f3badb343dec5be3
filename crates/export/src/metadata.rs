//! Constant methods, as upstream's exporter stores a program's metadata.

use ptero_pte::Method;
use ptero_pte::schema::{Bool, ContainerMetadata, EValue, Int};

/// Set in programs that return token ids, not logits (S1.1).
pub const USE_SAMPLING: &str = "use_sampling";

/// How upstream describes one value that is no container.
pub(crate) const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

/// A piece of metadata that is a bool.
pub fn flag(name: &str, value: bool) -> Method {
    constant(name, EValue::Bool(Bool { bool_val: value }))
}

/// A piece of metadata that is an integer.
pub fn int(name: &str, value: i64) -> Method {
    constant(name, EValue::Int(Int { int_val: value }))
}

/// A piece of metadata that is several integers: a method with as many outputs, as upstream writes a list.
pub fn ints(name: &str, values: &[i64]) -> Method {
    let count = i32::try_from(values.len()).unwrap_or(i32::MAX);
    let values = values.iter().map(|value| EValue::Int(Int { int_val: *value })).collect();
    Method { values, outputs: (0..count).collect(), ..int(name, 0) }
}

fn constant(name: &str, value: EValue) -> Method {
    let container = ContainerMetadata { encoded_inp_str: String::new(), encoded_out_str: format!("[1, {LEAF}]") };
    Method { container: Some(container), ..Method::metadata(name, value) }
}
