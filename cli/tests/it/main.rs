//! The command as a user has it: the binary, its files and its words.

mod doctor;
mod eval;
mod gguf;
mod official_loader;
mod refusals;
mod support;
mod whole_way;
