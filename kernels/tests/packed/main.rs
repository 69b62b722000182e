//! Packed matrices: every instruction set of this machine, for every number of tokens, against the
//! same arithmetic spelled out in integers, bit for bit, and against sums in f64.

mod error;
mod exact;
mod fast;
mod support;
