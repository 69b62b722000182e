//! The command as a user has it: the binary, its files and its words.

mod eval;
mod official_loader;
mod refusals;
mod support;
mod verify;
mod whole_way;
