//! A small HTTP client: what it sends and gets is exactly what it says.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than anything here takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The error's code and field, after a look at its shape.
    pub fn error(&self) -> (String, String) {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("no error: {body}"));
        let keys: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["message", "type", "param", "code"], "{body}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        (text("code"), text("param"))
    }

    /// The data of all events.
    pub fn events(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let data = |block: &str| {
            block.lines().find_map(|line| Some(line.strip_prefix("data: ")?.to_owned()))
        };
        self.body.split("\n\n").filter_map(data).collect()
    }

    /// The chunks of an OpenAI stream, without its end.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.body);
        let chunk = |event: &String| serde_json::from_str(event).expect("a chunk is JSON");
        events.iter().map(chunk).collect()
    }
}

/// Sends bytes as they are and reads until the server closes.
pub fn raw(address: SocketAddr, bytes: &[u8]) -> Response {
    response(BufReader::new(send(address, bytes)))
}

/// Sends bytes as they are.
pub fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut connection = connect(address);
    connection.write_all(bytes).expect("it is sent");
    connection
}

fn response(mut reader: BufReader<TcpStream>) -> Response {
    // An interim answer is none.
    let (status, headers) = loop {
        let (status, headers) = head(&mut reader);
        if status != 100 {
            break (status, headers);
        }
    };
    let mut body = Vec::new();
    let is_chunked =
        headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    if is_chunked {
        while let Some(chunk) = chunk(&mut reader) {
            body.extend(chunk);
        }
    } else {
        reader.read_to_end(&mut body).expect("the body comes");
    }
    Response { status, headers, body: String::from_utf8(body).expect("it is UTF-8") }
}

fn connect(address: SocketAddr) -> TcpStream {
    let connection = TcpStream::connect(address).expect("it listens");
    connection.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    connection
}

fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status line");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a header");
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()))
            }
            None => return (status, headers),
        }
    }
}

fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a chunk's length");
    let length = usize::from_str_radix(line.trim(), 16).expect("it is hexadecimal");
    let mut bytes = vec![0; length + 2];
    reader.read_exact(&mut bytes).expect("a chunk");
    bytes.truncate(length);
    (length > 0).then_some(bytes)
}

/// The bytes of a request that closes its connection.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        bytes += &format!("{name}: {value}\r\n");
    }
    bytes += &format!("content-length: {}\r\n\r\n", body.len());
    [bytes.as_bytes(), body].concat()
}

/// A stream that is read event by event, and left when dropped.
pub struct Stream {
    reader: BufReader<TcpStream>,
    rest: String,
}

impl Stream {
    pub fn open(address: SocketAddr, path: &str, body: &Value) -> Self {
        let headers = [("content-type", "application/json")];
        let bytes = request("POST", path, &headers, body.to_string().as_bytes());
        let mut reader = BufReader::new(send(address, &bytes));
        assert_eq!(head(&mut reader).0, 200);
        Self { reader, rest: String::new() }
    }

    /// The data of the next event; `None` at the end.
    pub fn next(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.rest.split_once("\n\n") {
                let data = block.strip_prefix("data: ").map(str::to_owned);
                self.rest = rest.to_owned();
                match data {
                    Some(data) => return Some(data),
                    // A comment that keeps the connection alive.
                    None => continue,
                }
            }
            let bytes = chunk(&mut self.reader)?;
            self.rest.push_str(std::str::from_utf8(&bytes).expect("events are whole characters"));
        }
    }
}

/// What comes back on a connection whose request was sent already, to its end.
pub fn rest(connection: TcpStream) -> Response {
    response(BufReader::new(connection))
}

/// A request whose answer nobody waits for: the connection closes when this is dropped.
pub fn send_and_hold(address: SocketAddr, path: &str, body: &Value) -> TcpStream {
    let headers = [("content-type", "application/json")];
    send(address, &request("POST", path, &headers, body.to_string().as_bytes()))
}
