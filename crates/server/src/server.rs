//! Starting and stopping a server.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connections::accept;
use crate::feed::Feed;
use crate::local_token::ensure_local_token;
use crate::metrics::Metrics;
use crate::routes;
use crate::state::{Options, ServerState, Surroundings};

/// The reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is in use, or not an address of this machine.
    #[error("cannot listen on {listen}: {error}")]
    Listen {
        /// The address to listen on.
        listen: SocketAddr,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The settings would let in more callers than they may.
    #[error("--auth none is refused: {0}")]
    Open(&'static str),
    /// The token of the data directory cannot be read or made.
    #[error("the server's own token: {0}")]
    LocalToken(std::io::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] sprag_app::Error),
}

/// A server that listens.
pub struct Server {
    addr: SocketAddr,
    /// The address that takes requests for rules alone.
    in_addr: Option<SocketAddr>,
    is_encrypted: bool,
    stop: watch::Sender<bool>,
    hurry: watch::Sender<bool>,
    accepting: Vec<JoinHandle<()>>,
    delivering: JoinHandle<()>,
    app: ServerState,
}

impl Server {
    /// Starts to listen. `alive` tells whether this process's executor and worker are still running.
    pub async fn start(
        core: sprag_app::App,
        options: Options,
        alive: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Server, StartError> {
        if let Some(why) = options.contradiction() {
            return Err(StartError::Open(why));
        }
        let local_token = ensure_local_token(core.data()).map_err(StartError::LocalToken)?;
        let listen = |error| StartError::Listen { listen: options.listen, error };
        let listener = TcpListener::bind(options.listen).await.map_err(listen)?;
        let addr = listener.local_addr().map_err(listen)?;
        let in_listener = match options.in_listen {
            Some(listen) => {
                let wrong = |error| StartError::Listen { listen, error };
                let listener = TcpListener::bind(listen).await.map_err(wrong)?;
                let addr = listener.local_addr().map_err(wrong)?;
                Some((listener, addr))
            }
            None => None,
        };
        let in_addr = in_listener.as_ref().map(|(_, addr)| *addr);
        let is_encrypted = options.certificate.is_some();
        let (stop, stops) = watch::channel(false);
        let (hurry, hurries) = watch::channel(false);
        let metrics = Metrics::new();
        core.observe(Arc::new(metrics.clone()));
        let feed = Feed::follow(&core, &metrics, stops.clone())?;
        let surroundings = Surroundings { feed, metrics, alive: Box::new(alive), stopping: stops.clone() };
        let app = ServerState::new(core, options.clone(), Some(&local_token), surroundings);
        let delivering = tokio::spawn(crate::hooks::deliver(app.clone()));
        let mut listeners = vec![(listener, router(app.clone()))];
        listeners.extend(in_listener.map(|(listener, _)| (listener, routes::only_incoming(app.clone()))));
        let accepting = listeners.into_iter().map(|(listener, router)| {
            let (options, stops, hurries) = (options.clone(), stops.clone(), hurries.clone());
            tokio::spawn(async move { accept(listener, router, &options, stops, hurries).await })
        });
        let accepting = accepting.collect();
        Ok(Server { addr, in_addr, is_encrypted, stop, hurry, accepting, delivering, app })
    }

    /// Returns the address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme(), self.addr)
    }

    /// Returns the URL that takes requests for rules alone, if there is one.
    pub fn in_url(&self) -> Option<String> {
        self.in_addr.map(|addr| format!("{}://{addr}/in/", self.scheme()))
    }

    fn scheme(&self) -> &'static str {
        if self.is_encrypted { "https" } else { "http" }
    }

    /// Returns whether tokens cross a network without encryption: other machines can reach it, over plain HTTP.
    pub fn is_open_to_listeners(&self) -> bool {
        !self.is_encrypted && !self.addr.ip().is_loopback()
    }

    /// Returns a code with which a browser of the server's own user signs in, once and within two minutes.
    pub fn sign_in_code(&self) -> String {
        self.app.access().sessions().new_code(self.app.core().now().steady_ms)
    }

    /// Returns a handle that ends the server at once, even while it shuts down.
    pub fn hurrier(&self) -> watch::Sender<bool> {
        self.hurry.clone()
    }

    /// Accepts no more connections, ends streams, and lets running requests finish.
    pub async fn shutdown(self) {
        let _ = self.stop.send(true);
        for accepting in self.accepting {
            let _ = accepting.await;
        }
        let _ = self.delivering.await;
    }
}

/// Returns the endpoints for tests that call them without a connection. The server's tasks end with the runtime.
#[doc(hidden)]
pub fn unconnected(core: sprag_app::App, options: Options) -> Result<Router, StartError> {
    let (stop, stops) = watch::channel(false);
    let metrics = Metrics::new();
    let feed = Feed::follow(&core, &metrics, stops.clone())?;
    let surroundings = Surroundings { feed, metrics, alive: Box::new(|| true), stopping: stops };
    let app = ServerState::new(core, options, None, surroundings);
    let router = router(app);
    Ok(router.layer(axum::Extension(Arc::new(stop))))
}

fn router(app: ServerState) -> Router {
    let (router, api) = routes::all().split_for_parts();
    routes::finish(router, &api, app)
}
