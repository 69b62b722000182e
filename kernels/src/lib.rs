//! Arithmetic on packed words.
