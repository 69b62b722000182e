//! What the workers found, put into its order and summed up by tensor.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::Receiver;

use super::work::{Done, Found};
use super::{Pass, Task};
use crate::prove::Tally;
use crate::ranges::Differences;
use crate::report::Fault;
use crate::sidecar::ModuleSidecar;

/// All that was found in tensors.
#[derive(Default)]
pub struct Gathered {
    /// Packed ones, by the source's name.
    pub tallies: BTreeMap<String, Tally>,
    /// Copied ones, by the source's name.
    pub copies: BTreeMap<String, Differences>,
    /// Entries of the sidecar that cannot be read.
    pub sidecar_faults: Vec<Fault>,
}

impl Gathered {
    /// Takes what comes until all workers have hung up.
    pub fn of(
        arriving: &Receiver<Done>,
        tasks: &BTreeMap<&str, Task<'_>>,
        pass: &Pass<'_>,
    ) -> Gathered {
        let mut gathered = Gathered::default();
        let mut open = None;
        let mut early = HashMap::new();
        let mut next = 0;
        for done in arriving {
            early.insert(done.block.number, done);
            while let Some(done) = early.remove(&next) {
                gathered.take(done, tasks, pass, &mut open);
                next += 1;
            }
        }
        gathered
    }

    fn take(
        &mut self,
        done: Done,
        tasks: &BTreeMap<&str, Task<'_>>,
        pass: &Pass<'_>,
        open: &mut Option<(Tally, Option<ModuleSidecar>)>,
    ) {
        let Done { block, found } = done;
        match (found, tasks.get(&*block.tensor)) {
            (Found::Groups(judged), Some(Task::Prove(pair))) => {
                let (tally, sidecar) = open.get_or_insert_with(|| {
                    let entry = pass.sidecar.map(|sidecar| sidecar.module(&pair.module));
                    let entry = entry.and_then(|entry| {
                        entry.map_err(|fault| self.sidecar_faults.push(fault)).ok()
                    });
                    (Tally::new(pair, pass.source, pass.result), entry)
                });
                tally.take(*judged, sidecar.as_mut());
                if block.is_last
                    && let Some((mut tally, sidecar)) = open.take()
                {
                    if let Some(sidecar) = sidecar {
                        tally.finish_sidecar(sidecar);
                    }
                    self.tallies.insert(block.tensor.to_string(), tally);
                }
            }
            (Found::Copy(differences, _), _) => {
                self.copies.entry(block.tensor.to_string()).or_default().add(differences);
            }
            _ => {}
        }
    }
}
