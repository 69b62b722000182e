//! The verifier against the reference sets, against slow oracles, and against damage.

mod canonical_steps;
mod conformance_groups;
mod damage;
mod doctor;
mod doctor_gguf;
mod good_packs;
mod inspected;
mod looks;
mod oracle;
mod other_makers;
mod rebuilt;
mod recovery;
mod self_tested;
mod support;
mod unreadable;
