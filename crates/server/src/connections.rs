//! Connections: how many there may be, how long each may stay silent, and how they end with the server.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sprag_tls::{Certificate, Stream};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::guard::{HealthOnly, Peer};
use crate::permits::Permits;
use crate::state::Options;

/// The most bytes of a request's headers. There may be a hundred of them.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// The number of connections beyond the limit, on which only health requests are answered.
const RESERVED: usize = 32;
/// The time for which a client may stay silent on one of these.
const RESERVED_IDLE: Duration = Duration::from_secs(1);
/// The time that a client has to encrypt its connection.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The pause after a failed accept: a lack of file descriptors passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until told to stop; then lets those that are busy finish.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    options: &Options,
    mut stop: watch::Receiver<bool>,
    mut hurry: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(options.connections));
    let reserved = Arc::new(Semaphore::new(RESERVED));
    let addresses: Arc<Permits<IpAddr>> = Permits::new(options.connections / 2);
    let mut open = JoinSet::new();
    while !*stop.borrow() {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => continue,
            Some(_) = open.join_next(), if !open.is_empty() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                let _ = tokio::time::timeout(ACCEPT_PAUSE, stop.changed()).await;
                continue;
            }
        };
        set_up(&stream, options.idle_timeout);
        let (router, idle, stop) = (router.clone(), options.idle_timeout, stop.clone());
        let certificate = options.certificate.clone();
        // All programs of this machine share one address, which says nothing about how much each takes.
        let ip = origin_of(peer.ip());
        let share = if ip.is_loopback() { Some(None) } else { addresses.take(ip).map(Some) };
        let place = Arc::clone(&places).try_acquire_owned().ok();
        if let (Some(share), Some(place)) = (share, place) {
            open.spawn(async move {
                if let Some(stream) = encrypted(stream, certificate, peer, idle).await {
                    serve(stream, Peer(peer), None, router, idle, stop).await;
                }
                drop((share, place));
            });
        } else if let Ok(place) = Arc::clone(&reserved).try_acquire_owned() {
            let idle = idle.min(RESERVED_IDLE);
            open.spawn(async move {
                if let Some(stream) = encrypted(stream, certificate, peer, idle).await {
                    serve(stream, Peer(peer), Some(HealthOnly), router, idle, stop).await;
                }
                drop(place);
            });
        } else if certificate.is_none() {
            open.spawn(turn_away(stream));
        }
    }
    drop(listener);
    while !open.is_empty() && !*hurry.borrow() {
        tokio::select! {
            _ = open.join_next() => {}
            _ = hurry.changed() => {}
        }
    }
    open.abort_all();
}

/// Returns the address that counts as one caller: an IPv4 address, or the network of an IPv6 address, within which a
/// machine chooses its addresses freely.
pub(crate) fn origin_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        ip => ip,
    }
}

fn set_up(stream: &TcpStream, idle: Duration) {
    let _ = stream.set_nodelay(true);
    // The time after which a peer that silently disappeared is noticed, whatever there is to send to it.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, idle.as_millis() as u32);
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(stream, idle);
    let _ = rustix::net::sockopt::set_tcp_keepintvl(stream, idle / 3);
    let _ = rustix::net::sockopt::set_tcp_keepcnt(stream, 3);
}

/// Encrypts a connection if the server has a certificate; none if the client does not take part in time.
async fn encrypted(
    stream: TcpStream,
    certificate: Option<Certificate>,
    peer: SocketAddr,
    idle: Duration,
) -> Option<Stream> {
    let Some(certificate) = certificate else { return Some(Stream::Plain(stream)) };
    match tokio::time::timeout(idle.min(HANDSHAKE), certificate.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "encrypting a connection failed");
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "the client did not encrypt its connection in time");
            None
        }
    }
}

/// Tells a client that the server has no free connection for it.
async fn turn_away(mut stream: TcpStream) {
    const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\n\
                            connection: close\r\n\r\n";
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(ANSWER)).await;
}

async fn serve(
    stream: Stream,
    peer: Peer,
    limited: Option<HealthOnly>,
    router: Router,
    idle: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if let Some(limited) = limited {
            request.extensions_mut().insert(limited);
        }
        router.clone().oneshot(request.map(Body::new))
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(idle).max_header_size(MAX_HEADER_BYTES);
    let io = TokioIo::new(Impatient::new(stream, idle));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %peer.0, %error, "connection");
    }
}

/// Waits until the signal becomes true. Does not hold on to the value, which would block the sender.
pub(crate) async fn told(watch: &mut watch::Receiver<bool>) {
    let _ = watch.wait_for(|told| *told).await;
}

/// A stream whose peer must take what is written to it within a time.
struct Impatient<S> {
    stream: S,
    limit: Duration,
    /// The end of the time limit, while the peer takes nothing.
    waiting: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<S> Impatient<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Impatient { stream, limit, waiting: None }
    }

    /// Passes on the result of a write; an error if the peer has not taken anything for the time limit.
    fn judge<T>(&mut self, cx: &mut Context<'_>, came: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if came.is_ready() {
            self.waiting = None;
            return came;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(deadline(limit)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read the answer",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a peer that takes nothing sends no signal")]
fn deadline(limit: Duration) -> tokio::time::Sleep {
    tokio::time::sleep(limit)
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let came = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, came)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let came = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.judge(cx, came)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e04_one_machine_is_one_caller_whichever_address_it_picks() {
        let origin = |ip: &str| origin_of(ip.parse().expect("an address")).to_string();
        assert_eq!(origin("192.0.2.7"), "192.0.2.7");
        assert_eq!(origin("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(origin("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(origin("2001:db8:1:2::9"), origin("2001:db8:1:2:ffff::1"));
        assert_ne!(origin("2001:db8:1:2::9"), origin("2001:db8:1:3::9"));
        assert_eq!(origin("::1"), "::1");
    }
}
