//! What a token leaves for the next ones in states of fixed size: convolutions and the gated delta rule.

pub(crate) mod conv;
pub(crate) mod conv_state;
pub(crate) mod gated_delta;
