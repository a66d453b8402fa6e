//! The server's interface, without a socket.

mod corpus;
mod openapi;
