//! What all handlers see.

use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use super::ServerOptions;
use super::error::ApiError;
use super::metrics::Metrics;
use super::service::Service;

/// The state of a server.
pub struct Shared {
    pub options: ServerOptions,
    pub metrics: Arc<Metrics>,
    /// Unix time of the start.
    pub started: u64,
    /// The description of all endpoints.
    pub openapi: Value,
    stopping: AtomicBool,
    service: OnceLock<Arc<Service>>,
}

impl Shared {
    pub fn new(options: ServerOptions, openapi: Value) -> Self {
        let (metrics, started) = (Arc::new(Metrics::new()), unix_time());
        let (stopping, service) = (AtomicBool::new(false), OnceLock::new());
        Self { options, metrics, started, openapi, stopping, service }
    }

    /// From now on the server is not healthy: nobody should send it more.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// From now on there is a model. The first one stays.
    pub fn ready(&self, service: Service) {
        let _ = self.service.set(Arc::new(service));
    }

    /// The loaded model, if it is.
    pub fn loaded(&self) -> Option<&Arc<Service>> {
        self.service.get()
    }

    /// The loaded model, or a refusal.
    pub fn service(&self) -> Result<&Arc<Service>, ApiError> {
        self.loaded().ok_or_else(ApiError::not_ready)
    }

    /// The name to answer under, if the one that is asked for is served.
    pub fn model_name(&self, asked: Option<&str>) -> Result<String, ApiError> {
        let served = &self.options.model_names;
        match asked {
            None => Ok(served.first().cloned().unwrap_or_default()),
            Some(name) if served.iter().any(|served| served == name) => Ok(name.to_owned()),
            Some(name) => Err(ApiError::model_not_found(name, served)),
        }
    }

    /// [`Shared::work`] for answers, refused before any of it where no more can be taken.
    pub async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let room = self.service()?.scheduler.has_room();
        room.map_err(|refusal| ApiError::refusal(refusal, ""))?;
        self.work(work).await
    }

    /// Runs what takes a processor for a while (a long prompt's tokens, a schema's grammar) beside
    /// the server's own threads.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let service = self.service()?.clone();
        let waits = Arc::new(());
        let waiting = Arc::downgrade(&waits);
        let worked = tokio::task::spawn_blocking(move || match waiting.strong_count() {
            // The client has left before its turn came: nobody hears this.
            0 => Err(ApiError::engine("nobody waits for the answer")),
            _ => work(&service),
        });
        let worked = worked.await;
        drop(waits);
        worked.unwrap_or_else(|_| Err(ApiError::engine("the request could not be prepared")))
    }
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The version that answers, for `system_fingerprint`.
pub const FINGERPRINT: &str = concat!("w4pack-", env!("CARGO_PKG_VERSION"));

/// A name that nobody else has: `prefix` and 24 hexadecimal digits.
pub fn fresh_name(prefix: &str) -> String {
    use std::hash::{BuildHasher, RandomState};
    // The standard library keys its hash maps with numbers from the operating system.
    let (high, low) = (RandomState::new().hash_one(0), RandomState::new().hash_one(1));
    format!("{prefix}{high:016x}{:08x}", low as u32)
}
