//! The verifier against the reference sets, against slow oracles, and against damage.

mod canonical_steps;
mod conformance_groups;
mod damage;
mod good_packs;
mod looks;
mod oracle;
mod other_makers;
mod recovery;
mod support;
mod unreadable;
