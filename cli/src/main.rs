//! The `w4pack` command.

fn main() {}
