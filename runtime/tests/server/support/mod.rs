//! The small trained model behind a real server on loopback.

#[path = "forced.rs"]
pub mod forced;
pub mod http;
#[path = "../../../../testing/in_time.rs"]
mod in_time;

use http::Response;
pub use in_time::in_time;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::source::FolderSource;
use w4pack_runtime::chat::ChatText;
use w4pack_runtime::scheduler::{Scheduler, SchedulerOptions};
use w4pack_runtime::server::{Server, ServerOptions, Service};
use w4pack_runtime::{Engine, EngineOptions, GenerationDefaults, LoadOptions, Model, Speculation};

/// How a test's server differs from the usual one.
#[derive(Clone)]
pub struct Setup {
    pub server: ServerOptions,
    pub slots: usize,
    pub queue: usize,
    pub context: usize,
    pub chunk: usize,
    pub speculation: Speculation,
}

impl Default for Setup {
    fn default() -> Self {
        let server = ServerOptions {
            port: 0,
            model_names: vec!["small".to_owned(), "owner/small".to_owned()],
            ..ServerOptions::default()
        };
        let speculation = Speculation::Off;
        Self { server, slots: 2, queue: 8, context: 2048, chunk: 256, speculation }
    }
}

pub fn model_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/trained")
}

/// The model, ready to be served.
pub fn service(setup: &Setup) -> Service {
    let source = FolderSource::open(&model_folder()).expect("the trained model is there");
    let config = Config::load(&source).expect("its config is sound");
    let text = ChatText::load(&source, &config).expect("it loads").expect("it has a tokenizer");
    let defaults = GenerationDefaults::load(&source, &config).expect("it loads").sampling;
    let checkpoint = Checkpoint::open(Arc::new(source)).expect("it opens");
    let model = Model::load(&checkpoint, &LoadOptions::default(), &mut |_| {}).expect("it loads");
    let options = EngineOptions {
        context: Some(setup.context),
        chunk: setup.chunk,
        threads: Some(1),
        ..EngineOptions::default()
    };
    let engine = Engine::new(model, options).expect("it starts");
    let engine = engine.speculating(setup.speculation).expect("it can");
    let scheduling = SchedulerOptions {
        slots: setup.slots,
        queue: setup.queue,
        turn_ends: text.turn_ends(),
        ..SchedulerOptions::default()
    };
    let scheduler = Scheduler::start(engine, scheduling).expect("it starts");
    let hook = forced::hook(text.tokenizer().clone());
    let mut service = Service::new(scheduler, text, defaults);
    service.constraint_hook = Some(hook);
    service
}

/// A server that answers.
pub struct Running {
    pub server: Server,
    pub address: SocketAddr,
}

impl Running {
    pub fn start() -> Self {
        Self::with(&Setup::default())
    }

    pub fn with(setup: &Setup) -> Self {
        let server = Server::start(setup.server.clone()).expect("it listens");
        server.ready(service(setup));
        let address = server.address();
        Self { server, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn get(&self, path: &str) -> Response {
        http::raw(self.address, &http::request("GET", path, &[], b""))
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.post_text(path, &body.to_string())
    }

    pub fn post_text(&self, path: &str, body: &str) -> Response {
        let headers = [("content-type", "application/json")];
        http::raw(self.address, &http::request("POST", path, &headers, body.as_bytes()))
    }

    pub fn chat(&self, body: &Value) -> Response {
        self.post("/v1/chat/completions", body)
    }

    /// A number on /metrics; lines of one name are added up.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let is_it =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let lines: Vec<&str> = page.lines().filter(is_it).collect();
        assert!(!lines.is_empty(), "no {name} in {page}");
        let value =
            |line: &&str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        lines.iter().filter_map(value).sum()
    }

    /// Waits until a number on /metrics is there.
    pub fn wait_for_metric(&self, name: &str, is_it: impl Fn(f64) -> bool) {
        let begun = Instant::now();
        while !is_it(self.metric(name)) {
            assert!(begun.elapsed() < Duration::from_secs(120), "{name} is {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A question with a known greedy answer.
pub fn question(text: &str) -> Value {
    json!({"model": "small", "messages": [{"role": "user", "content": text}], "temperature": 0})
}

/// A request whose answer is forced.
pub fn force(tokens: Value) -> Value {
    let mut body = question(&format!("{}{tokens}", forced::MARKER));
    body["max_tokens"] = 200.into();
    body
}

/// `body` with more fields.
pub fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

pub fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "Current weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }})
}

/// What a client puts together from a stream: per choice, the message, and the finish reason.
pub fn joined(chunks: &[Value]) -> Vec<(Value, Option<String>)> {
    let mut choices: Vec<(Value, Option<String>)> = Vec::new();
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices")) {
        let index = choice["index"].as_u64().expect("an index") as usize;
        while choices.len() <= index {
            choices.push((json!({"content": "", "reasoning_content": "", "tool_calls": []}), None));
        }
        let (message, finish) = &mut choices[index];
        assert!(finish.is_none(), "nothing comes behind the end of a choice");
        for name in ["content", "reasoning_content"] {
            if let Some(text) = choice["delta"][name].as_str() {
                message[name] = format!("{}{text}", message[name].as_str().expect("text")).into();
            }
        }
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let calls = message["tool_calls"].as_array_mut().expect("a list");
            assert_eq!(call["index"], calls.len(), "calls are numbered in their order");
            calls.push(call.clone());
        }
        *finish = choice["finish_reason"].as_str().map(str::to_owned);
    }
    choices
}
