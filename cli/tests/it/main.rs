//! The command as a user has it: the binary, its files and its words.

mod bench;
mod chat;
mod cpu;
mod device;
mod doctor;
mod eval;
mod gguf;
#[cfg(feature = "hub")]
mod hub;
mod killed;
mod load;
mod notebook;
mod official_loader;
mod refusals;
mod releases;
mod restore;
mod serve;
mod serve_cache;
mod served;
mod speculate;
mod steady;
mod support;
mod verify;
mod whole_way;
