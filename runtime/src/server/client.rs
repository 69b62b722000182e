//! Whether anybody is still at the other end of a connection.
//!
//! A client may end its writing side behind a request and go on reading; HTTP/1.1 allows it. On the wire
//! that is the same end that a client leaves behind which is gone. What tells the two apart is what comes
//! back for bytes that are sent to them: nothing, or a reset. So behind such an end a few bytes are sent
//! that every client reads over: `100 Continue` before an answer has begun, a comment in a stream of
//! events. Who resets the connection for it is gone, and what was made for him ends.

use axum::body::{Body, HttpBody};
use axum::http::{Request, Response, header};
use axum::{BoxError, Router};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;

/// An interim answer, of which there may be several before the answer (RFC 9110, 15.2). It is the one
/// that the plainest clients read over too.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// An event stream's comment.
const COMMENT: &[u8] = b":\n\n";
/// When interim answers are sent, behind the end that was read. Some clients take five and no more.
const ASKED_AT: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
/// How often it is looked whether a reset has come.
const LOOK: Duration = Duration::from_millis(20);

/// A connection that notes what is read and written.
pub struct Connection {
    read: Arc<OwnedReadHalf>,
    write: OwnedWriteHalf,
    /// Whether something was written since the last request was read.
    answered: Arc<AtomicBool>,
}

/// Who is at the other end.
pub struct Client {
    socket: Arc<OwnedReadHalf>,
    /// Whether it has ended its writing side.
    ended: watch::Sender<bool>,
    answered: Arc<AtomicBool>,
}

/// Takes a connection into watch.
pub fn watched(stream: TcpStream) -> (Connection, Client) {
    let (read, write) = stream.into_split();
    let (read, answered) = (Arc::new(read), Arc::new(AtomicBool::new(true)));
    let connection = Connection { read: read.clone(), write, answered: answered.clone() };
    (connection, Client { socket: read, ended: watch::Sender::new(false), answered })
}

impl Client {
    /// The service of this client's connection.
    pub fn service(&self, router: Router) -> ForClient {
        ForClient { inner: TowerToHyperService::new(router), ended: self.ended.subscribe() }
    }

    /// Waits until the client is known to be gone, which may be never.
    pub async fn gone(self) {
        let socket: &TcpStream = (*self.socket).as_ref();
        // Hyper does not read on while it answers: the system is asked for the end itself.
        while !socket.ready(Interest::READABLE).await.is_ok_and(|ready| ready.is_read_closed()) {
            tokio::time::sleep(LOOK).await;
        }
        self.ended.send_replace(true);
        let begin = Instant::now();
        let mut asked = 0;
        loop {
            // First of all the connection itself may end: nothing was asked, or the answer is given.
            tokio::time::sleep(LOOK).await;
            if !matches!(socket.take_error(), Ok(None)) {
                return;
            }
            let is_due = ASKED_AT.get(asked).is_some_and(|at| begin.elapsed() >= *at);
            if is_due && !self.answered.load(Ordering::Relaxed) {
                asked += 1;
                match socket.try_write(INTERIM) {
                    // Of a client that reads nothing the buffer is full, and the answer waits too.
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                    _ => {}
                }
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket: &TcpStream = (*self.read).as_ref();
        loop {
            ready!(socket.poll_read_ready(context))?;
            match socket.try_read(buffer.initialize_unfilled()) {
                Ok(length) => {
                    buffer.advance(length);
                    if length > 0 {
                        self.answered.store(false, Ordering::Relaxed);
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.answered.store(true, Ordering::Relaxed);
        Pin::new(&mut this.write).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.answered.store(true, Ordering::Relaxed);
        Pin::new(&mut this.write).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.write.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().write).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().write).poll_shutdown(context)
    }
}

/// The routes, with a comment in streams of events whose client has ended its side.
pub struct ForClient {
    inner: TowerToHyperService<Router>,
    ended: watch::Receiver<bool>,
}

impl Service<Request<Incoming>> for ForClient {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (answer, ended) = (self.inner.call(request), self.ended.clone());
        Box::pin(async move {
            let response = answer.await?;
            let kind = response.headers().get(header::CONTENT_TYPE);
            match kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
                true => Ok(response.map(|body| Body::new(Commented::new(body, ended)))),
                false => Ok(response),
            }
        })
    }
}

/// A stream of events with one comment in it, when its client has ended its side.
struct Commented {
    body: Body,
    ended: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Commented {
    fn new(body: Body, mut ended: watch::Receiver<bool>) -> Commented {
        let ended = async move {
            if ended.wait_for(|ended| *ended).await.is_err() {
                // Nobody watches any more: the connection is over.
                std::future::pending().await
            }
        };
        Commented { body, ended: Some(Box::pin(ended)) }
    }
}

impl HttpBody for Commented {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        // Frames are whole events: between two of them there is room for a comment.
        if let Some(ended) = &mut this.ended
            && ended.as_mut().poll(context).is_ready()
        {
            this.ended = None;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))));
        }
        Poll::Pending
    }
}
