//! The model from its files to its answers: loading, the forward pass, the cache, the engine.

mod cache;
mod engine;
mod loading;
mod packed;
mod reference;
mod speculation;
mod support;
