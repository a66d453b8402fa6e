//! Limits for the bytes of bodies in memory: of all requests together, of one token, and of senders without a token.
//!
//! A body is small beside what a machine has. But a caller may have thousands of requests open, and send each as
//! slowly as it likes. Anyone can send requests to rules, so these must not use up the bytes of those who have a token.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use sprag_app::Id;

use crate::problem::Problem;

/// The most bytes of all requests' bodies together.
const MOST_BYTES: usize = 256 << 20;
/// The most bytes of the bodies of one token's requests: several of the longest reports.
const TOKEN_BYTES: usize = 96 << 20;
/// The most bytes of the bodies of all requests to rules, whose signatures are checked when they are read.
const SENDERS_BYTES: usize = 96 << 20;
/// The most bytes of such bodies from one address: several of the longest ones.
const SENDER_BYTES: usize = 24 << 20;

/// The caller whose bodies count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BodyOf {
    /// The programs of the server's own user.
    User,
    /// The holder of a token.
    Token(Id),
    /// The senders at an address; none if it is unknown.
    Sender(Option<IpAddr>),
}

impl BodyOf {
    /// Returns the caller of a request with this token; without one, it is the server's own user.
    pub(crate) fn token(token: Option<Id>) -> BodyOf {
        token.map_or(BodyOf::User, BodyOf::Token)
    }

    /// Returns the most bytes of its bodies at once.
    fn limit(self) -> usize {
        match self {
            BodyOf::User => MOST_BYTES,
            BodyOf::Token(_) => TOKEN_BYTES,
            // Senders behind a proxy of this machine share its address.
            BodyOf::Sender(None) => SENDERS_BYTES,
            BodyOf::Sender(Some(ip)) if ip.is_loopback() => SENDERS_BYTES,
            BodyOf::Sender(Some(_)) => SENDER_BYTES,
        }
    }
}

/// The count of the bytes of bodies.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    all: usize,
    senders: usize,
    by_caller: BTreeMap<BodyOf, usize>,
}

/// A body that was read. Its bytes are counted until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadBody {
    pub(crate) bytes: Bytes,
    _counted: Share,
}

/// The bytes that one body counts.
#[derive(Debug)]
struct Share {
    bodies: Arc<Bodies>,
    /// The caller that they count for.
    of: BodyOf,
    bytes: usize,
}

impl Bodies {
    /// Reads a body of at most `limit` bytes.
    pub(crate) async fn read(
        self: &Arc<Self>,
        mut body: Body,
        limit: usize,
        of: BodyOf,
    ) -> Result<ReadBody, Problem> {
        let mut share = Share { bodies: Arc::clone(self), of, bytes: 0 };
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| Problem::malformed(format!("the body could not be read: {error}")))?;
            let Ok(piece) = frame.into_data() else { continue };
            if bytes.len() + piece.len() > limit {
                return Err(Problem::body_too_large(limit));
            }
            share.grow(piece.len())?;
            bytes.extend_from_slice(&piece);
        }
        Ok(ReadBody { bytes: bytes.freeze(), _counted: share })
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Share {
    fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let mut counted = self.bodies.counted();
        if counted.all + bytes > MOST_BYTES {
            return Err(Problem::unavailable("the server is reading as many bytes as it may at once"));
        }
        let is_sender = matches!(self.of, BodyOf::Sender(_));
        if is_sender && counted.senders + bytes > SENDERS_BYTES {
            return Err(Problem::unavailable(
                "the server is reading as many bytes of senders as it may at once",
            ));
        }
        let (limit, before) = (self.of.limit(), counted.by_caller.get(&self.of).copied().unwrap_or(0));
        if before + bytes > limit {
            let mut problem = Problem::too_many(1);
            let whose = if is_sender { "address" } else { "token" };
            problem.message = format!("this {whose} is sending {limit} bytes at once, which is the limit");
            return Err(problem);
        }
        counted.by_caller.insert(self.of, before + bytes);
        counted.senders += if is_sender { bytes } else { 0 };
        counted.all += bytes;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counted = self.bodies.counted();
        counted.all -= self.bytes;
        if matches!(self.of, BodyOf::Sender(_)) {
            counted.senders -= self.bytes;
        }
        if let Some(of_caller) = counted.by_caller.get_mut(&self.of) {
            *of_caller -= self.bytes;
            if *of_caller == 0 {
                counted.by_caller.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn e04_bodies_are_counted_for_all_and_for_each_token() {
        const PIECE: usize = 32 << 20;
        let bodies = Arc::new(Bodies::default());
        let text = Bytes::from(vec![b'x'; PIECE]);
        let read = |token| bodies.read(Body::from(text.clone()), PIECE, BodyOf::token(token));
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(read(Some(1)).await.expect("its share"));
        }
        assert_eq!(read(Some(1)).await.expect_err("more than its share").code, "rate_limited");
        for token in [2, 2, 2, 3, 3] {
            held.push(read(Some(token)).await.expect("its share"));
        }
        assert_eq!(read(Some(4)).await.expect_err("more than there is").code, "unavailable");
        assert_eq!(read(None).await.expect_err("more than there is").code, "unavailable");
        held.clear();
        assert_eq!(read(None).await.expect("a body").bytes.len(), PIECE);
        let long = bodies.read(Body::from("four"), 3, BodyOf::User).await;
        assert_eq!(long.expect_err("too long").code, "too_large");
        let counted = bodies.counted();
        assert_eq!((counted.all, counted.by_caller.len()), (0, 0), "nothing is left");
    }

    #[tokio::test]
    async fn e04_r16_senders_without_a_token_leave_room_for_the_others() {
        const PIECE: usize = 4 << 20;
        let bodies = Arc::new(Bodies::default());
        let text = Bytes::from(vec![b'x'; PIECE]);
        let read = |last: u8| {
            let of = BodyOf::Sender(Some([192, 0, 2, last].into()));
            bodies.read(Body::from(text.clone()), PIECE, of)
        };
        let mut held = Vec::new();
        for _ in 0..SENDER_BYTES / PIECE {
            held.push(read(1).await.expect("its share"));
        }
        assert_eq!(read(1).await.expect_err("more than its share").code, "rate_limited");
        for nth in held.len()..SENDERS_BYTES / PIECE {
            held.push(read(2 + (nth % 50) as u8).await.expect("the share of all senders"));
        }
        assert_eq!(read(99).await.expect_err("more than the share of all").code, "unavailable");
        // However much strangers send, the holder of a token is heard.
        bodies.read(Body::from(text.clone()), PIECE, BodyOf::Token(1)).await.expect("its share");
        held.clear();
        read(1).await.expect("its share is free again");
        let counted = bodies.counted();
        assert_eq!((counted.all, counted.senders, counted.by_caller.len()), (0, 0, 0), "nothing is left");
    }
}
