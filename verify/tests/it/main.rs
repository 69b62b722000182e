//! The verifier against the reference sets, against slow oracles, and against damage.

mod canonical_steps;
mod conformance_groups;
mod oracle;
mod recovery;
mod support;
