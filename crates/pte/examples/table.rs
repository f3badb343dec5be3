//! Prints the table of nodes, one line a row; `conformance/check_table.py` compares it with upstream's schema.

use ptero_pte::Node;

fn main() {
    for row in Node::ROWS {
        let fields = row.fields.iter().map(|[name, ty, default]| format!("{name}: {ty} = {default}"));
        println!("{} {} | {}", row.tag, row.name, fields.collect::<Vec<_>>().join(" | "));
    }
}
