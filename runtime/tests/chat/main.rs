//! Chat against reference data: prompts, ids and answers that other programs made.
//!
//! `W4PACK_CONFORMANCE` names the folder that holds `conformance/` and `data/`; without it these
//! tests print that they were skipped. What needs no reference data is tested beside the code and
//! in [`answers`] and [`faults`].

mod answers;
mod faults;
mod held;
mod prompts;
mod references;
mod template_coverage;
mod vocabulary;
