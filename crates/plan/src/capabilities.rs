//! What a device can do beyond the primitives.

/// What passes may count on. Every device runs every primitive; a device says here what else it offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Products can go through an elementwise function before they are stored ([`crate::prim::Epilogue`]).
    pub epilogues: bool,
    /// Kernels that programs bring as Metal source can run ([`crate::graph::Op::Foreign`]). Without it they are replaced by
    /// equivalents of ours where there are any, and refused by name where there are none.
    pub foreign_kernels: bool,
    /// How many steps at once pay off ([`crate::graph`]s that draw their own tokens); 0 and 1 are the same.
    pub burst: usize,
    /// Results are held to tolerances and not to the bit, so that canonicalisations need not run.
    pub is_inexact: bool,
}
