//! Elements: functions of them, and where they come from and go to.

pub(crate) mod index;
pub(crate) mod map;
pub(crate) mod order;
pub(crate) mod random;
