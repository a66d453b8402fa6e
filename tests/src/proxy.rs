//! A TCP proxy on loopback that imitates networks: it cuts, delays or drops connections, or keeps them half open.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::wait::within;

/// The interval at which a waiting thread checks whether the proxy is still needed.
const LOOK: Duration = Duration::from_millis(50);

/// A proxy between a client and a server.
pub struct Proxy {
    /// The address on which it listens.
    pub addr: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    to: Mutex<Option<SocketAddr>>,
    /// Whether it forwards nothing, without closing connections.
    silent: AtomicBool,
    /// The delay of each piece, in milliseconds.
    delay_ms: AtomicU64,
    over: AtomicBool,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, (TcpStream, TcpStream)>>,
}

impl State {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, (TcpStream, TcpStream)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn to(&self) -> Option<SocketAddr> {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Proxy {
    /// Returns a proxy to this server.
    pub fn to(server: SocketAddr) -> Proxy {
        Proxy::at(Ipv4Addr::LOCALHOST, server)
    }

    /// Returns a proxy at this address of the machine.
    pub fn at(address: Ipv4Addr, server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((address, 0)).expect("a port");
        let addr = listener.local_addr().expect("an address");
        let state = Arc::new(State { to: Mutex::new(Some(server)), ..State::default() });
        listener.set_nonblocking(true).expect("a socket");
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || accept(&listener, &accepting));
        Proxy { addr, state }
    }

    /// Returns the URL for a worker.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sets another address of the server.
    pub fn moved(&self, server: SocketAddr) {
        *self.state.to.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    /// Cuts all connections at once, in the middle of their data. Returns how many there were.
    pub fn cut(&self) -> usize {
        let open = std::mem::take(&mut *self.state.open());
        for (client, server) in open.values() {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
        open.len()
    }

    /// Stops forwarding in both directions without closing connections; or forwards again.
    pub fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::SeqCst);
    }

    /// Sets the delay of each piece.
    pub fn delay(&self, for_a_while: Duration) {
        self.state.delay_ms.store(for_a_while.as_millis() as u64, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        self.cut();
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    while !state.over.load(Ordering::SeqCst) {
        let accepted = within(LOOK, || listener.accept().ok());
        let Some((client, _)) = accepted else { continue };
        let server = state.to().and_then(|to| TcpStream::connect(to).ok());
        let Some(server) = server else { continue };
        let (Ok(c), Ok(s)) = (client.try_clone(), server.try_clone()) else { continue };
        for stream in [&client, &server] {
            let _ = stream.set_nonblocking(false);
            let _ = stream.set_nodelay(true);
            let _ = stream.set_read_timeout(Some(LOOK));
        }
        let no = state.next.fetch_add(1, Ordering::SeqCst);
        state.open().insert(no, (c, s));
        for (from, to) in [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))] {
            let (Ok(from), Ok(to)) = (from, to) else { continue };
            let state = Arc::clone(state);
            std::thread::spawn(move || carry(from, to, no, &state));
        }
    }
}

/// Carries what comes from one side to the other until one of them ends.
fn carry(mut from: TcpStream, mut to: TcpStream, no: u64, state: &State) {
    let mut buffer = [0u8; 16 << 10];
    while !state.over.load(Ordering::SeqCst) {
        if state.silent.load(Ordering::SeqCst) {
            within(LOOK, || None::<()>);
            continue;
        }
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                continue;
            }
            Err(_) => break,
        };
        let delay_ms = state.delay_ms.load(Ordering::SeqCst);
        if delay_ms > 0 {
            within(Duration::from_millis(delay_ms), || None::<()>);
        }
        // What was read when the silence began is lost with it only if the connection is.
        while state.silent.load(Ordering::SeqCst) && !state.over.load(Ordering::SeqCst) {
            within(LOOK, || None::<()>);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
    state.open().remove(&no);
}
