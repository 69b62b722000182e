//! What the workers found, put into its order and summed up by tensor.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::mpsc::Receiver;

use super::work::{Done, Found};
use super::{Pass, Task, Tasks};
use crate::prove::Tally;
use crate::ranges::Differences;
use crate::report::Fault;
use crate::sidecar::ModuleSidecar;

/// All that was found in tensors.
#[derive(Default)]
pub struct Gathered {
    /// Packed ones, by module.
    pub tallies: BTreeMap<String, Tally>,
    /// Copied ones, by the result's name.
    pub copies: BTreeMap<String, Differences>,
    /// Copied ones that the layout packs, and that have a group off the grid.
    pub off_grid: BTreeSet<String>,
    /// Entries of the sidecar that cannot be read.
    pub sidecar_faults: Vec<Fault>,
}

impl Gathered {
    /// Takes what comes until all workers have hung up.
    pub fn of(arriving: &Receiver<Done>, tasks: &Tasks<'_>, pass: &Pass<'_>) -> Gathered {
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
        tasks: &Tasks<'_>,
        pass: &Pass<'_>,
        open: &mut Option<(Tally, Option<ModuleSidecar>)>,
    ) {
        let Done { block, found } = done;
        let task = tasks.get(&*block.tensor).map(|parts| parts[block.part].task);
        match (found, task) {
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
                    self.tallies.insert(pair.module.clone(), tally);
                }
            }
            (Found::Copy { differences, is_off_grid, .. }, Some(Task::Copy(pair))) => {
                if is_off_grid {
                    self.off_grid.insert(pair.result.clone());
                }
                self.copies.entry(pair.result.clone()).or_default().add(differences);
            }
            _ => {}
        }
    }
}
