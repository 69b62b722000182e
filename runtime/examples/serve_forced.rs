//! The server with outputs that a message can force: for clients of others, tried by hand and by
//! tests. `w4pack serve` has no such thing.
//!
//! `cargo run --release -p w4pack-runtime --example serve_forced -- MODEL_FOLDER [PORT]`
//!
//! A last message `force: ["<|tool_call>call:f{a:1}<tool_call|>"]` is answered with exactly that.

#[path = "../tests/server/support/forced.rs"]
mod forced;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::source::FolderSource;
use w4pack_runtime::chat::ChatText;
use w4pack_runtime::scheduler::{Scheduler, SchedulerOptions};
use w4pack_runtime::server::{Server, ServerOptions, Service};
use w4pack_runtime::{Engine, EngineOptions, GenerationDefaults, LoadOptions, Model};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("a model's folder is missing")?;
    let port = arguments.next().map_or(Ok(8080), |port| port.parse())?;
    let server = Server::start(ServerOptions { port, ..ServerOptions::default() })?;
    println!("listening on http://{}, forced by `{}[…]`", server.address(), forced::MARKER);

    let source = FolderSource::open(Path::new(&folder))?;
    let config = Config::load(&source)?;
    let text = ChatText::load(&source, &config)?.ok_or("the model has no tokenizer")?;
    let defaults = GenerationDefaults::load(&source, &config)?.sampling;
    let checkpoint = Checkpoint::open(Arc::new(source))?;
    let model = Model::load(&checkpoint, &LoadOptions::default(), &mut |_| {})?;
    let engine = Engine::new(model, EngineOptions::default())?;
    let scheduling = SchedulerOptions { slots: 2, ..SchedulerOptions::default() };
    let hook = forced::hook(text.tokenizer().clone());
    let mut service = Service::new(Scheduler::start(engine, scheduling)?, text, defaults);
    service.constraint_hook = Some(hook);
    server.ready(service);
    while server.is_running() {
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(server.stop(Duration::ZERO)?)
}
