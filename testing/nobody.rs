//! An address without anybody, for tests of every crate (`#[path = "../../testing/nobody.rs"]`).

use std::net::{SocketAddr, TcpListener, TcpStream};

/// A port that nobody listens at, nor can as long as this lives: it is one end of a connection. A port
/// that was merely free a moment ago may be another test's by now.
pub struct Nobody {
    end: TcpStream,
    _other: TcpListener,
}

impl Nobody {
    /// Takes a port of 127.0.0.1.
    pub fn new() -> Nobody {
        let other = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let end = other.local_addr().and_then(TcpStream::connect).expect("it listens");
        Nobody { end, _other: other }
    }

    /// Where nobody is.
    pub fn address(&self) -> SocketAddr {
        self.end.local_addr().expect("it is connected")
    }
}
