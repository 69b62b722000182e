//! The model: configuration, weights, cache, forward pass, chat.

pub mod chat;
