//! `w4pack/laid-out.json`, which a pack that was laid out anew has instead of a manifest: it says
//! nothing about a source, and what it says about the files must be true.

use std::collections::BTreeMap;

use w4pack_format::Result;
use w4pack_format::laid_out::{LAID_OUT_FILE, LaidOut};
use w4pack_format::source::Source;

use super::record_fault;
use crate::findings::Findings;
use crate::ledger::{Class, Side};
use crate::report::{Fault, FaultClass};

/// Compares the list with the result's files, if there is one. `known` holds the hashes of what was
/// read already.
pub fn check(
    result: &dyn Source,
    known: &BTreeMap<String, String>,
    findings: &mut Findings,
) -> Result<()> {
    if result.size(LAID_OUT_FILE).is_none() {
        return Ok(());
    }
    findings.ledger.claim_file(Side::Result, LAID_OUT_FILE, Class::Manifest);
    let fault = |detail: String| Fault::of_file(FaultClass::Manifest, LAID_OUT_FILE, detail);
    let list = match LaidOut::parse(&result.read_file(LAID_OUT_FILE)?) {
        Ok(list) => list,
        Err(error) => {
            findings.faults.push(fault(error.to_string()));
            return Ok(());
        }
    };
    for record in &list.files {
        let is_own = record.path == LAID_OUT_FILE;
        let detail = record_fault("result", record, result, is_own, known)?;
        findings.faults.extend(detail.map(fault));
    }
    for file in result.files().iter().filter(|file| file.path != LAID_OUT_FILE) {
        if !list.files.iter().any(|record| record.path == file.path) {
            let detail = format!("it does not list the result's file `{}`", file.path);
            findings.faults.push(fault(detail));
        }
    }
    Ok(())
}
