//! The Hub room against a Hub on loopback: real HTTP, real faults.

mod chunk_store;
mod download;
mod hostile;
mod listing;
mod publish;
mod ranges;
mod refusals;
mod support;
