//! A small HTTP server on loopback that speaks chat/completions as a test tells it.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What came in.
#[derive(Debug, Clone)]
pub struct Received {
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

/// What goes out: status, more headers, body. `None` closes the connection without a word.
pub type Response = Option<(u16, Vec<(&'static str, String)>, String)>;

type Handler = dyn Fn(usize, &Received) -> Response + Send + Sync;

pub struct Server {
    pub url: String,
    pub received: Arc<Mutex<Vec<Received>>>,
    /// The most requests that were under way at once.
    pub most_at_once: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// `handler` gets the number of the request (from 0) and the request.
    pub fn start(handler: impl Fn(usize, &Received) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let handler: Arc<Handler> = Arc::new(handler);
        let received = Arc::new(Mutex::new(Vec::new()));
        let (now, most_at_once) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let shared = (received.clone(), most_at_once.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (received, most, stop) = shared;
            let mut connections = Vec::new();
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                let (handler, received) = (handler.clone(), received.clone());
                let (now, most) = (now.clone(), most.clone());
                connections.push(std::thread::spawn(move || {
                    let counted = |number, request: &Received| {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        let response = handler(number, request);
                        now.fetch_sub(1, Ordering::SeqCst);
                        response
                    };
                    serve(stream.unwrap(), &counted, &received);
                }));
            }
            for connection in connections {
                connection.join().unwrap();
            }
        });
        Self { url, received, most_at_once, stop, thread: Some(thread) }
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accept call.
        let address = self.url.trim_start_matches("http://").trim_end_matches("/v1");
        let _ = TcpStream::connect(address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    stream: TcpStream,
    handler: &dyn Fn(usize, &Received) -> Response,
    received: &Mutex<Vec<Received>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()))
            }
            None => break,
        }
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    let request = Received { path, headers, body: serde_json::from_slice(&body).unwrap() };
    let number = {
        let mut all = received.lock().unwrap();
        all.push(request.clone());
        all.len() - 1
    };
    let Some((status, headers, body)) = handler(number, &request) else { return };
    let mut head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut stream = stream;
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

/// A completion with this message.
pub fn completion(message: Value) -> Response {
    let reply = serde_json::json!({
        "id": "x", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
    });
    Some((200, Vec::new(), reply.to_string()))
}
