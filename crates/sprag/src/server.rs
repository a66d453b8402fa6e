//! The HTTP API of an engine.

use std::net::SocketAddr;

use crate::{Engine, Error};

/// A server of the HTTP API that `docs/api.md` describes. Callers need a token: `sprag token` makes them.
pub struct Server(sprag_server::Server);

impl Engine {
    /// Serves the HTTP API of the program `sprag` at this address, until the server is shut down. Port 0 stands for any
    /// free one.
    pub async fn serve(&self, listen: SocketAddr) -> Result<Server, Error> {
        let pulse = self.pulse().ok_or_else(|| Error::invalid("the engine is shut down"))?;
        let options = sprag_server::Options::new(listen);
        let started = sprag_server::Server::start(self.app().clone(), options, move || pulse.is_felt()).await;
        Ok(Server(started.map_err(|error| Error::invalid(error.to_string()))?))
    }
}

impl Server {
    /// Returns the address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr()
    }

    /// Accepts no more connections, ends streams, and lets running requests finish.
    pub async fn shutdown(self) {
        self.0.shutdown().await;
    }
}
