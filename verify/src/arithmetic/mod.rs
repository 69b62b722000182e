//! The proof's own arithmetic: exact integers, no floating-point comparison, nothing of convert.
//!
//! The way: [`recover`] finds codes and the exact step interval of 32 source values, from the
//! half-way points around each value ([`bf16`]) as exact fractions ([`ratio`], [`interval`]);
//! [`confirm`] comes to the same answer faster where the stored codes are the usual right ones,
//! from a [`look`] at all 32 lanes at once that [`leaves`] compiles for each instruction set.
//! [`canonical`] finds the step that a dtype must store for them by walking that dtype's
//! [`numbers`]. [`judge`] compares a stored group with both;
//! [`step_rule`] names the rule of steps that are not canonical.

pub mod bf16;
pub mod canonical;
pub mod confirm;
pub mod interval;
pub mod judge;
pub mod leaves;
pub mod look;
pub mod numbers;
pub mod ratio;
pub mod recover;
pub mod step_rule;
