//! A server from its start to its end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use sprag_store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::{Alive, App, Options};
use crate::connections::accept;
use crate::feed::Feed;
use crate::metrics::Metrics;
use crate::routes;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {listen}: {error}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// Nobody could call it.
    #[error("{0} can be reached from other machines, so callers need a token, and there is none")]
    NoToken(SocketAddr),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] sprag_store::Error),
}

/// A server that listens.
pub struct Server {
    addr: SocketAddr,
    stop: watch::Sender<bool>,
    hurry: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    delivering: JoinHandle<()>,
}

impl Server {
    /// Begins to listen. `alive` says whether this process's executor and worker go on.
    pub async fn start(
        store: Store,
        data: &Path,
        options: Options,
        alive: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Server, StartError> {
        if !options.listen.ip().is_loopback() && store.read(|db| db.tokens())?.is_empty() {
            return Err(StartError::NoToken(options.listen));
        }
        let listen = |error| StartError::Listen { listen: options.listen, error };
        let listener = TcpListener::bind(options.listen).await.map_err(listen)?;
        let addr = listener.local_addr().map_err(listen)?;
        let (stop, stops) = watch::channel(false);
        let (hurry, hurries) = watch::channel(false);
        let metrics = Metrics::new();
        store.observe(Arc::new(metrics.clone()));
        let feed = Feed::follow(&store, &metrics, stops.clone())?;
        let alive: Alive = Box::new(alive);
        let app = App::new(store, data, options.clone(), feed, metrics, alive, stops.clone());
        let delivering = tokio::spawn(crate::hooks::deliver(app.clone()));
        let router = router(app);
        let accepting = tokio::spawn(async move { accept(listener, router, &options, stops, hurries).await });
        Ok(Server { addr, stop, hurry, accepting, delivering })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Something with which to end it at once even while it shuts down.
    pub fn hurrier(&self) -> watch::Sender<bool> {
        self.hurry.clone()
    }

    /// Accepts nothing more, ends streams, and lets requests that go on finish.
    pub async fn shutdown(self) {
        let _ = self.stop.send(true);
        let _ = self.accepting.await;
        let _ = self.delivering.await;
    }
}

/// For tests that speak to the endpoints without a connection between. It ends with the runtime.
#[doc(hidden)]
pub fn unconnected(store: Store, data: &Path, options: Options) -> Result<Router, StartError> {
    let (stop, stops) = watch::channel(false);
    let metrics = Metrics::new();
    let feed = Feed::follow(&store, &metrics, stops.clone())?;
    let app = App::new(store, data, options, feed, metrics, Box::new(|| true), stops);
    let router = router(app);
    Ok(router.layer(axum::Extension(Arc::new(stop))))
}

fn router(app: App) -> Router {
    let (router, api) = routes::all().split_for_parts();
    routes::finish(router, &api, app)
}
