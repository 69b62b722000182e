//! Connections: taken, given a time to say what they want, and ended in order.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::io;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{Phase, client};

/// How long to wait when the system gives no connection, for want of file descriptors say.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves connections until it is told to drain them, then those that are open until they end or it is
/// over.
///
/// `patience`: how long a connection may be without the whole head of a request. A thousand that send a
/// letter an hour would keep everybody else out.
pub async fn serve(
    listener: std::net::TcpListener,
    router: Router,
    patience: Duration,
    phases: watch::Receiver<Phase>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut http = http1::Builder::new();
    // Who ends his own side may still read; `client` sees who does.
    http.timer(TokioTimer::new()).header_read_timeout(patience).half_close(true);
    let connections = GracefulShutdown::new();
    let draining = reached(Phase::Draining, phases.clone());
    tokio::pin!(draining);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut draining => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // Events are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        let (stream, client) = client::watched(stream);
        let service = client.service(router.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                // What a client does wrong with its connection ends that connection.
                ended = connection => drop(ended),
                () = client.gone() => {}
            }
        });
    }
    drop(listener);
    tokio::select! {
        () = connections.shutdown() => {}
        () = reached(Phase::Over, phases) => {}
    }
    Ok(())
}

async fn reached(phase: Phase, mut phases: watch::Receiver<Phase>) {
    // The sender lives as long as the server: an error is its end too.
    let _ = phases.wait_for(|now| *now >= phase).await;
}
