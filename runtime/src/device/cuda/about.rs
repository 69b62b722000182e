//! What a device says of itself: the model, the card, the memory, and which kernels it takes.

use super::{CudaDevice, LoadReport, Plan, Products, Sizes, together};
use w4pack_format::config::Config;
use w4pack_kernels::cuda::Card;

impl CudaDevice {
    /// config.json, checked.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the checkpoint holds and the model does not use, in words.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Positions of a sequence.
    pub fn context(&self) -> usize {
        self.plan.context
    }

    /// Prompt tokens in one pass.
    pub fn chunk(&self) -> usize {
        self.layout.work.chunk
    }

    /// What lies on the card.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The card.
    pub fn card(&self) -> &Card {
        self.queue.card()
    }

    /// How prompts are multiplied.
    pub fn products(&self) -> Products {
        self.ways.products
    }

    /// Whether a single token goes through the layers on tensor cores: where prompts do, and every
    /// matrix has f16 steps and whole tiles.
    pub fn takes_tokens_on_tensor_cores(&self) -> bool {
        self.ways.tensor_token
    }

    /// Whether clusters of blocks take some of a single token's products, with the same result.
    pub fn takes_tokens_in_clusters(&self) -> bool {
        self.ways.clusters
    }

    /// Whether chains of products in one launch take a single token, with the same result.
    pub fn takes_tokens_in_chains(&self) -> bool {
        self.ways.chains
    }

    /// Greedy steps so far that were under way before they were asked for.
    pub fn steps_run_ahead(&self) -> usize {
        self.queue.steps_run_ahead()
    }

    /// Sequences whose tokens go through the layers together at most; 1: none do.
    pub fn tokens_together(&self) -> usize {
        match self.ways.several_slots {
            true => self.slots.len().min(together::MOST),
            false => self.batch_graphs.len() + 1,
        }
    }

    /// How loading went.
    pub fn load_report(&self) -> LoadReport {
        self.load
    }

    /// Bytes of the card in use before anything was allocated: the driver's context with the
    /// kernels, other programs.
    pub fn outside(&self) -> usize {
        self.outside
    }

    /// Bytes that the card has less since then, measured when the model was ready: what the plan
    /// foretells, and what other programs took meanwhile.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// The plan as a table, and beside it what was taken and what the card had in use before.
    pub fn memory_table(&self) -> String {
        let Sizes { weights, table, full, sliding, work, driver } = self.plan.sizes;
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        let mut text = String::new();
        let place = self.plan.table.name();
        for (name, bytes) in [
            ("weights", weights),
            (&*format!("per-layer table ({place})"), table),
            (&*format!("keys and values, full layers, {}", self.options.kv.name()), full),
            ("keys and values, sliding layers", sliding),
            ("work space", work),
            ("the driver's, for graphs and pages", driver),
            ("in all, in blocks of 2 MiB", self.plan.sizes.total()),
            ("measured", self.taken),
        ] {
            text += &format!("{name:<40} {:>9.1} MiB\n", mib(bytes));
        }
        text += &format!(
            "{:<40} {:>9.1} MiB (driver and other programs, before)",
            "outside of this",
            mib(self.outside)
        );
        text
    }
}
