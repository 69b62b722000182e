//! Which kernels take the model's products, of those that could: what the card has, what fits it, what is faster.

use super::CudaDevice;
use super::passes::{self, Passes};
use crate::error::Result;

/// How prompts are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// On tensor cores.
    Mma,
    /// On ordinary cores.
    Ffma,
}

/// What was chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    pub products: Products,
    /// Whether one token goes through the layers on tensor cores, see `passes/tensor.rs`.
    pub tensor_token: bool,
    /// Whether some of that is done by clusters of blocks; the result is the same.
    pub clusters: bool,
    /// Whether its products go in chains, see `passes/chain.rs`; the result is the same.
    pub chains: bool,
    /// Whether several tokens can go together on ordinary cores, see `passes/batch_gemv.rs`.
    pub several: bool,
    /// Whether those of several slots do, see `together.rs`.
    pub several_slots: bool,
}

impl Ways {
    /// The one that every card has.
    pub const ORDINARY: Self = Self {
        products: Products::Ffma,
        tensor_token: false,
        clusters: false,
        chains: false,
        several: false,
        several_slots: false,
    };
}

impl CudaDevice {
    /// Chooses for this model on this card.
    pub(super) fn choose_ways(&mut self) -> Result<()> {
        let products = match self.options.products {
            Some(products) => products,
            None => self.faster_products()?,
        };
        let (text, layout) = (&self.config.text, &self.layout);
        let tensor_token =
            products == Products::Mma && passes::fits_tensor_cores(text, layout, self.queue.card());
        let gpu = self.queue.settled()?;
        let clusters =
            self.options.clusters && tensor_token && passes::has_room_for_clusters(layout, gpu);
        let chains = self.options.clusters && passes::fits_chains(text, layout, gpu);
        self.ways = Ways { products, tensor_token, clusters, chains, ..Ways::ORDINARY };
        let passes = self.passes()?;
        self.ways.several = !passes.takes_batches() && passes.takes_several();
        Ok(())
    }

    /// Times one product both ways and returns the faster way: tensor cores, unless ordinary ones are
    /// faster by a quarter, as where there are none. A small model's product is too short for more
    /// than that, and the same card must choose the same way every time.
    fn faster_products(&mut self) -> Result<Products> {
        let tokens = self.layout.work.chunk.min(64);
        let timer = self.queue.settled()?.timer()?;
        let mut seconds = [0.0; 2];
        for (seconds, products) in seconds.iter_mut().zip([Products::Mma, Products::Ffma]) {
            let ways = Ways { products, ..self.ways };
            let passes = Passes { ways, ..self.passes()? };
            passes.sample_product(tokens)?;
            *seconds = f64::INFINITY;
            for _ in 0..5 {
                let once = timer.measure(|| passes.sample_product(tokens))?;
                *seconds = seconds.min(once);
            }
        }
        let [mma, ffma] = seconds;
        Ok(if mma < 1.25 * ffma { Products::Mma } else { Products::Ffma })
    }
}
