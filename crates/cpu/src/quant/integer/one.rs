//! One row, and weights whose rows follow each other in memory: bound by reading them, see `FlatWeights`.

use super::IntegerProduct;
use crate::finish::Finish;
use crate::gemm::Left;
use crate::pool::{OutRows, Workers};
use crate::simd::numeric::element::Float;
use crate::simd::quant::flat::{FlatWeights, LANES};

impl IntegerProduct<'_> {
    /// Writes the product, rounded once, to `out`.
    pub(super) fn one<T: Float>(
        &self,
        flat: &FlatWeights<'_>,
        workers: &mut Workers<'_>,
        left: &impl Left,
        mut out: OutRows<'_, T>,
        finish: &impl Finish,
    ) {
        let (Self { isa, weights, .. }, layout) = (self, flat.layout());
        workers.prepared(|shared, workers| {
            let [table, row, lines] = shared.floats([layout.floats(), self.row_floats(), 2 * weights.columns]);
            self.quantize(left, 0, row, lines);
            layout.arrange(*isa, &self.parts_of(row), table);
            let table = layout.table(table);
            let width = workers.stripe_width(weights.rows, LANES, self.most_columns(workers.pool.threads()));
            out.stripes(workers, width, |stripe, scratch| {
                let (width, columns) = (stripe.width(), stripe.start()..stripe.start() + stripe.width());
                let mut registers = std::mem::take(&mut scratch.registers);
                finish.begin(*isa, &mut registers);
                let [sums, memory] = scratch.floats([width, layout.memory()]);
                flat.products(columns, table, memory, sums);
                self.store(0, (sums, width), stripe, &mut registers, finish);
                scratch.registers = registers;
            });
        });
    }
}
