//! The proof, with arithmetic of its own.

pub mod arithmetic;
