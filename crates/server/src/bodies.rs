//! Limits for the bytes of bodies in memory: of all requests together, and of one token.
//!
//! A body is small beside what a machine has. But a token may have thousands of requests open, and send each as
//! slowly as it likes.

use std::collections::BTreeMap;
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

/// The count of the bytes of bodies.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    all: usize,
    by_token: BTreeMap<Id, usize>,
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
    /// The token that they count for; none for programs of the server's own user.
    token: Option<Id>,
    bytes: usize,
}

impl Bodies {
    /// Reads a body of at most `limit` bytes, for the holder of a token or for the server's own user.
    pub(crate) async fn read(
        self: &Arc<Self>,
        mut body: Body,
        limit: usize,
        token: Option<Id>,
    ) -> Result<ReadBody, Problem> {
        let mut share = Share { bodies: Arc::clone(self), token, bytes: 0 };
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
        if let Some(token) = self.token {
            let of_token = counted.by_token.entry(token).or_default();
            if *of_token + bytes > TOKEN_BYTES {
                let mut problem = Problem::too_many(1);
                problem.message =
                    format!("this token is sending {TOKEN_BYTES} bytes at once, which is the limit");
                return Err(problem);
            }
            *of_token += bytes;
        }
        counted.all += bytes;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counted = self.bodies.counted();
        counted.all -= self.bytes;
        if let Some(token) = self.token
            && let Some(of_token) = counted.by_token.get_mut(&token)
        {
            *of_token -= self.bytes;
            if *of_token == 0 {
                counted.by_token.remove(&token);
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
        let read = |token: Option<Id>| bodies.read(Body::from(text.clone()), PIECE, token);
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
        assert_eq!(bodies.read(Body::from("four"), 3, None).await.expect_err("too long").code, "too_large");
        let counted = bodies.counted();
        assert_eq!((counted.all, counted.by_token.len()), (0, 0), "nothing is left");
    }
}
