//! A Hub on loopback for tests: real HTTP on two ports, the API's and the storage's, as huggingface.co
//! and its storage are two hosts. Everything lies in memory, every request is written down, and faults
//! can be ordered.
//!
//! What cannot be had here is the transfer to the Hub's chunk store; [`Transfer::ChunkStore`] offers it
//! and then has none.

mod api;
pub mod repository;
mod storage;
pub mod wire;

use repository::{Access, Entry, Repository};
use std::collections::{BTreeMap, HashMap};
use std::io::BufReader;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::{Answer, Request};

/// The one token that is right.
pub const TOKEN: &str = "hf_theRightTokenOfTheFakeHub";

/// Which of the two hosts was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// The Hub.
    Api,
    /// What it sends clients to.
    Storage,
}

/// How large files are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// One PUT a file.
    Basic,
    /// PUTs of so many bytes.
    Multipart(usize),
    /// The chunk store, to whoever knows it; others get one PUT.
    ChunkStore,
}

/// Something that goes wrong.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Of requests with this method,
    pub method: &'static str,
    /// whose path and query hold this text,
    pub holds: String,
    /// after so many have gone well,
    pub after: usize,
    /// so many
    pub times: usize,
    /// go wrong like this.
    pub kind: FaultKind,
}

/// In which way.
#[derive(Debug, Clone)]
pub enum FaultKind {
    /// This answer instead.
    Answer(Answer),
    /// The right one, but the connection ends after so many bytes of it.
    Cut(usize),
    /// The right one, shorter, and announced as such.
    Short(usize),
    /// The right one with this byte changed.
    Damaged(usize),
    /// The right one to the whole file, whatever part was asked for.
    Whole,
    /// Somebody else commits before it.
    Overtaken(String),
    /// The right one, so many bytes at a time, with a pause before each.
    Drip(usize, Duration),
    /// The right one, but only so many bytes of it, head included, until this is true or the client
    /// has gone. Whatever a machine does meanwhile, a test finds the client there.
    Held(usize, Arc<AtomicBool>),
    /// Nothing for so long, and then the connection ends.
    Silence(Duration),
    /// These bytes, whatever they are, and the connection ends.
    Raw(Vec<u8>),
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Logged {
    /// Where.
    pub port: Port,
    /// Which.
    pub request: Request,
    /// What it got.
    pub status: u16,
    /// How many bytes of a body.
    pub sent: usize,
}

/// What the Hub knows.
#[derive(Default)]
pub struct State {
    /// By `owner/name`.
    pub repositories: HashMap<String, Repository>,
    /// Uploaded large files, by SHA-256.
    pub objects: HashMap<String, Arc<Vec<u8>>>,
    /// Parts of uploads: SHA-256 -> part number -> bytes.
    parts: HashMap<String, BTreeMap<usize, Vec<u8>>>,
    /// Every request.
    pub log: Vec<Logged>,
    faults: Vec<Fault>,
    transfer: Option<Transfer>,
    /// Files from this size on are large, whatever their name.
    large_from: usize,
    /// Lines of a page of a listing.
    page: usize,
}

/// A running Hub. Its threads end with the process.
#[derive(Clone)]
pub struct FakeHub {
    api: SocketAddr,
    storage: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    /// Starts on two free ports of 127.0.0.1.
    pub fn start() -> FakeHub {
        let bind = || TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let (api, storage) = (bind(), bind());
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound");
        let state = State { large_from: 100_000, page: 1000, ..State::default() };
        let hub = FakeHub {
            api: address(&api),
            storage: address(&storage),
            state: Arc::new(Mutex::new(state)),
        };
        hub.listen(api, Port::Api);
        hub.listen(storage, Port::Storage);
        hub
    }

    /// What HF_ENDPOINT is set to.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.api)
    }

    /// Where the large files lie.
    pub fn storage(&self) -> String {
        format!("http://{}", self.storage)
    }

    /// Everything, to look at and to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a repository with the files of a folder; gives its commit.
    pub fn publish(&self, name: &str, folder: &Path, access: Access) -> String {
        let mut files = BTreeMap::new();
        let large_from = self.state().large_from;
        gather(folder, "", large_from, &mut files);
        self.commit(name, files, access)
    }

    /// Adds a commit with these files and no others, in a new repository if there is none.
    pub fn commit(&self, name: &str, files: BTreeMap<String, Entry>, access: Access) -> String {
        let mut state = self.state();
        let repository = state
            .repositories
            .entry(name.into())
            .or_insert_with(|| Repository::new("initial commit", access));
        let mut all = repository.find("main").map(|old| old.files.clone()).unwrap_or_default();
        all.retain(|path, _| path == ".gitattributes");
        all.extend(files);
        repository.commit("main", all, "files")
    }

    /// Orders a fault.
    pub fn fail(&self, method: &'static str, holds: &str, times: usize, kind: FaultKind) {
        self.fail_after(0, method, holds, times, kind);
    }

    /// Orders a fault that comes after so many requests of its kind.
    pub fn fail_after(
        &self,
        after: usize,
        method: &'static str,
        holds: &str,
        times: usize,
        kind: FaultKind,
    ) {
        self.state().faults.push(Fault { method, holds: holds.into(), after, times, kind });
    }

    /// Chooses how large files are taken.
    pub fn takes_by(&self, transfer: Transfer) {
        self.state().transfer = Some(transfer);
    }

    /// Lists so many files on a page.
    pub fn lists_by(&self, lines: usize) {
        self.state().page = lines;
    }

    /// The requests that came so far, as `METHOD path`.
    pub fn requests(&self, port: Port) -> Vec<Logged> {
        self.state().log.iter().filter(|logged| logged.port == port).cloned().collect()
    }

    /// Forgets the requests that came so far.
    pub fn forget(&self) {
        self.state().log.clear();
    }

    /// Path, size and SHA-256 of every file of a branch.
    pub fn files(&self, name: &str, branch: &str) -> Vec<(String, u64, String)> {
        let state = self.state();
        let commit = state.repositories.get(name).and_then(|found| found.find(branch));
        let files = commit.map(|commit| commit.files.clone()).unwrap_or_default();
        let line = |(path, entry): (&String, &Entry)| {
            (path.clone(), entry.content.len() as u64, entry.sha256())
        };
        files.iter().map(line).collect()
    }

    fn listen(&self, listener: TcpListener, port: Port) {
        let hub = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Head and body are two writes; the second would wait for the client's word.
                let _ = stream.set_nodelay(true);
                let hub = hub.clone();
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream);
                    // A client that goes away ends its thread.
                    while let Ok(Some(request)) = wire::read(&mut reader) {
                        let answer = hub.answer(port, &request);
                        let is_head = request.method == "HEAD";
                        if !answer.send(reader.get_mut(), is_head).unwrap_or(false) {
                            break;
                        }
                    }
                });
            }
        });
    }

    fn answer(&self, port: Port, request: &Request) -> Answer {
        let fault = self.state().next_fault(request);
        if let Some(FaultKind::Overtaken(name)) = &fault {
            let mut state = self.state();
            if let Some(repository) = state.repositories.get_mut(name) {
                let files =
                    repository.find("main").map(|old| old.files.clone()).unwrap_or_default();
                repository.commit("main", files, "somebody else's");
            }
        }
        let mut asked = request.clone();
        if matches!(fault, Some(FaultKind::Whole)) {
            asked.headers.remove("range");
        }
        let answer = match &fault {
            Some(FaultKind::Answer(answer)) => answer.clone(),
            _ => match port {
                Port::Api => self.api(&asked),
                Port::Storage => self.store(&asked),
            },
        };
        let answer = spoiled(answer, fault);
        let sent = answer.cut.map_or(answer.part.len(), |cut| cut.min(answer.part.len()));
        let request = request.clone();
        self.state().log.push(Logged { port, request, status: answer.status, sent });
        answer
    }
}

impl State {
    /// Files from this size on are large, whatever their name.
    pub fn large_from_now_on(&mut self, bytes: usize) {
        self.large_from = bytes;
    }

    /// What was ordered and has not happened yet does not happen.
    pub fn forget_faults(&mut self) {
        self.faults.clear();
    }

    /// The fault that this request meets, if any.
    fn next_fault(&mut self, request: &Request) -> Option<FaultKind> {
        let target = format!("{}?{}", request.path, request.query);
        for fault in &mut self.faults {
            if fault.method == request.method && target.contains(&fault.holds) && fault.times > 0 {
                if fault.after > 0 {
                    fault.after -= 1;
                    continue;
                }
                fault.times -= 1;
                return Some(fault.kind.clone());
            }
        }
        None
    }
}

fn spoiled(mut answer: Answer, fault: Option<FaultKind>) -> Answer {
    match fault {
        Some(FaultKind::Cut(after)) => answer.cut = Some(after),
        Some(FaultKind::Drip(bytes, pause)) => answer.drip = Some(Box::new((bytes, pause))),
        Some(FaultKind::Held(bytes, go_on)) => answer.held = Some((bytes, go_on)),
        Some(FaultKind::Silence(time)) => {
            std::thread::sleep(time);
            answer.raw = Some(Vec::new());
        }
        Some(FaultKind::Raw(bytes)) => answer.raw = Some(bytes),
        Some(FaultKind::Short(length)) => {
            answer.part.end = answer.part.end.min(answer.part.start + length);
        }
        Some(FaultKind::Damaged(byte)) => {
            let mut body = answer.body.to_vec();
            if let Some(byte) = body.get_mut(byte) {
                *byte ^= 1;
            }
            answer.body = Arc::new(body);
        }
        _ => {}
    }
    answer
}

fn gather(folder: &Path, prefix: &str, large_from: usize, files: &mut BTreeMap<String, Entry>) {
    for entry in std::fs::read_dir(folder).expect("the folder is there").flatten() {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            gather(&entry.path(), &format!("{path}/"), large_from, files);
        } else {
            let content = Arc::new(std::fs::read(entry.path()).expect("the file is there"));
            let large = is_large(&path, content.len(), large_from);
            files.insert(path, Entry { content, large });
        }
    }
}

/// By name, as .gitattributes has it, or by size.
fn is_large(path: &str, size: usize, large_from: usize) -> bool {
    path.ends_with(".safetensors") || path.ends_with(".gguf") || size >= large_from
}
