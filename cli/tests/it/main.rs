//! The command as a user has it: the binary, its files and its words.

mod eval;
mod killed;
mod official_loader;
mod refusals;
mod restore;
mod steady;
mod support;
mod whole_way;
