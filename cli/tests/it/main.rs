//! The command as a user has it: the binary, its files and its words.

mod bench;
mod chat;
mod cpu;
mod device;
mod doctor;
mod eval;
mod gguf;
mod killed;
mod official_loader;
mod refusals;
mod releases;
mod restore;
mod serve;
mod steady;
mod support;
mod verify;
mod whole_way;
