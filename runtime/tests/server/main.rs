//! The server over loopback, with the small trained model behind it.

mod access;
mod chat;
mod clients;
mod completions;
mod forced;
mod held;
mod hostile;
mod leaving;
mod limits;
mod operation;
mod refusals;
mod responses;
mod speculation;
mod support;
