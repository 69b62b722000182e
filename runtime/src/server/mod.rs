//! An HTTP server with OpenAI's API in front of a [`Scheduler`](crate::scheduler::Scheduler).
//!
//! The way of a request: `listen.rs`, `client.rs` (connections) → `openapi.rs` (routes) → `access.rs` (hosts,
//! keys) → `body.rs` (JSON) → `chat/`, `completions/`, `responses/` (fields, prompt) → `ask.rs`
//! (jobs) → `answer.rs` (on the engine's thread: ids to pieces) → a reply, or `sse.rs` (events).
//!
//! | file | what it holds |
//! |---|---|
//! | `wire/` | what goes over the wire, as types |
//! | `fields.rs`, `settings.rs`, `known.rs` | fields read and checked, with paths in every error |
//! | `answer.rs`, `stops.rs`, `held.rs` | ids to pieces of an answer; stop strings; grammars |
//! | `ask.rs`, `tally.rs`, `metrics.rs` | jobs, what is counted of them, and of everything |
//! | `lookups.rs`, `page.html` | models, health, metrics, tokens, the chat page |
//! | `service.rs`, `shared.rs`, `error.rs` | the loaded model; the state; refusals |
//!
//! Nothing waits for a client: an answer's pieces go into a channel without a bound. A client that
//! leaves drops the other end, and the engine frees the slot at the next token or chunk.

mod access;
mod answer;
mod ask;
mod body;
mod chat;
mod client;
mod completions;
mod error;
mod fields;
mod held;
mod known;
mod listen;
mod lookups;
mod metrics;
mod openapi;
mod responses;
mod service;
mod settings;
mod shared;
mod sse;
mod stops;
mod tally;
pub mod wire;

pub use error::ApiError;
#[doc(hidden)]
pub use service::ConstraintHook;
pub use service::Service;

pub use axum::http::HeaderValue;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use shared::Shared;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// Threads that speak HTTP. The engine has its own.
const HTTP_THREADS: usize = 2;
/// Threads that read bodies, write prompts and make grammars; the rest wait. More would only share
/// the processors with the engine, each with a body in memory.
const WORK_THREADS: usize = 4;
/// Bytes of the stack of each of these threads: a schema may nest and a grammar be long.
const STACK: usize = 32 << 20;
/// How long finished answers may take to reach their clients when the server stops: 2 s, counted in looks.
/// By the clock nothing would be left of it where the machine has stood still.
const LAST_WORDS: usize = 400;
/// How often it is looked then whether they have.
const LOOK: Duration = Duration::from_millis(5);

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Where to listen: an address or a name.
    pub host: String,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// Names that the model is served by, at least one; the first is the one in replies.
    pub model_names: Vec<String>,
    /// Keys of which a request must have one; none: nobody needs one.
    pub api_keys: Vec<String>,
    /// Origins whose pages may ask; `*` is every origin.
    pub cors: Vec<HeaderValue>,
    /// Longest body in bytes.
    pub body_limit: usize,
    /// How long a client may take with the head of a request, and with its body.
    pub patience: Duration,
}

impl Default for ServerOptions {
    /// On loopback, port 8080, without keys, for one model called `model`.
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            model_names: vec!["model".to_owned()],
            api_keys: Vec::new(),
            cors: Vec::new(),
            body_limit: 16 << 20,
            patience: Duration::from_secs(60),
        }
    }
}

/// A server that listens. Until [`Server::ready`] it refuses every request with 503.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    /// No new connections; those that are open may end.
    Draining,
    Over,
}

impl Server {
    /// Binds the address and starts to listen on threads of its own.
    pub fn start(options: ServerOptions) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((options.host.as_str(), options.port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (routes, description) = openapi::routes();
        let shared = Arc::new(Shared::new(options, description));
        let router = router(routes, &shared, address.ip().is_loopback());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .max_blocking_threads(WORK_THREADS)
            .thread_stack_size(STACK)
            .thread_name("w4pack-http")
            .enable_all()
            .build()?;
        let patience = shared.options.patience;
        let (phase, phases) = watch::channel(Phase::Serving);
        let serve = move || {
            let served = runtime.block_on(listen::serve(listener, router, patience, phases));
            runtime.shutdown_background();
            served
        };
        let thread = std::thread::Builder::new().name("w4pack-server".into()).spawn(serve)?;
        Ok(Self { address, shared, phase, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on requests are answered.
    pub fn ready(&self, service: Service) {
        self.shared.ready(service);
    }

    /// Whether it still listens: it stops by itself only when the system takes its socket away.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Takes no new requests, lets answers end within `grace`, breaks off the rest, and returns
    /// when everything is closed.
    pub fn stop(mut self, grace: Duration) -> io::Result<()> {
        self.shared.stopping();
        self.advance(Phase::Draining);
        if let Some(service) = self.shared.loaded() {
            service.scheduler.stop(grace);
        }
        self.join()
    }

    fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
    }

    /// Waits for connections to close, and closes those that do not.
    fn join(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        for _ in 0..LAST_WORDS {
            if thread.is_finished() {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.advance(Phase::Over);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the server's thread panicked")))
    }
}

impl Drop for Server {
    /// Breaks everything off.
    fn drop(&mut self) {
        self.advance(Phase::Over);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(service) = self.shared.loaded() {
            service.scheduler.stop(Duration::ZERO);
        }
    }
}

/// All routes with their layers, the outermost last.
fn router(routes: Router<Arc<Shared>>, shared: &Arc<Shared>, on_loopback: bool) -> Router {
    let options = &shared.options;
    let router = routes
        .route("/", get(lookups::page))
        .route("/openapi.json", get(lookups::openapi))
        .fallback(lookups::no_such_path)
        .method_not_allowed_fallback(lookups::wrong_method)
        .layer(DefaultBodyLimit::max(options.body_limit))
        .layer(from_fn_with_state(shared.clone(), access::check_key));
    let router = match on_loopback && options.api_keys.is_empty() {
        true => router.layer(from_fn_with_state(shared.clone(), access::check_host)),
        false => router,
    };
    let router = router.layer(from_fn_with_state(shared.clone(), access::count));
    let router = match options.cors.is_empty() {
        true => router,
        false => router.layer(access::cors(&options.cors)),
    };
    router.with_state(shared.clone())
}
