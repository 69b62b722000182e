//! The proof, with arithmetic of its own.
