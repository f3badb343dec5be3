//! What a device can do beyond the primitives.

/// What a device offers to passes. Every device runs every primitive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Applies an elementwise function to a product before it is stored ([`crate::prim::Epilogue`]).
    pub epilogues: bool,
    /// Runs kernels that programs carry as Metal source ([`crate::graph::Op::Foreign`]). Other devices run our equivalents of
    /// known kernels, and refuse the rest by name.
    pub foreign_kernels: bool,
    /// The number of steps per run that pays off for graphs that sample their own tokens; 0 and 1 are the same.
    pub burst: usize,
    /// Results need only be within tolerances, so canonicalisations do not run.
    pub is_inexact: bool,
}
