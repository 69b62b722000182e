//! Evaluations from questions to results, against a scripted answerer, a server on loopback and a
//! small checkpoint.

mod bfcl;
mod bfcl_rules;
mod compare;
mod data;
mod local;
mod recall;
mod resume;
mod server;
mod support;
