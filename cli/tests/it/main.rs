//! The command as a user has it: the binary, its files and its words.

mod eval;
mod official_loader;
mod refusals;
mod releases;
mod support;
mod whole_way;
