//! Limits on what each caller may have open at once, so that one caller does not use up what all share.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// The number of things that each caller has open, up to a limit.
#[derive(Debug)]
pub(crate) struct Permits<K> {
    most: usize,
    taken: Mutex<BTreeMap<K, usize>>,
}

/// One place, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit<K: Ord + Copy> {
    places: Arc<Permits<K>>,
    whose: K,
}

impl<K: Ord + Copy> Permits<K> {
    /// Allows each caller this many, and at least one.
    pub(crate) fn new(most: usize) -> Arc<Permits<K>> {
        Arc::new(Permits { most: most.max(1), taken: Mutex::default() })
    }

    /// Returns the number that each caller may have.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Takes a place; none if the caller has all that it may have.
    pub(crate) fn take(self: &Arc<Self>, whose: K) -> Option<Permit<K>> {
        let mut taken = self.taken();
        let count = taken.entry(whose).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(taken);
        Some(Permit { places: Arc::clone(self), whose })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<K, usize>> {
        self.taken.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<K: Ord + Copy> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(count) = taken.get_mut(&self.whose) {
            *count -= 1;
            // Only callers that have something open are remembered.
            if *count == 0 {
                taken.remove(&self.whose);
            }
        }
    }
}

/// The future that is ready when a caller's token is not valid any more.
pub(crate) type Revoked = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns a body that keeps its caller's place until its last byte was sent, or until the client disconnects. It breaks
/// off when the caller's token is revoked: an orderly end would make a part look like the whole.
pub(crate) fn hold<K: Ord + Copy + Send + Unpin + 'static>(
    body: Body,
    place: Permit<K>,
    revoked: Revoked,
) -> Body {
    Body::new(Holding { body, _place: place, revoked })
}

struct Holding<K: Ord + Copy> {
    body: Body,
    _place: Permit<K>,
    revoked: Revoked,
}

impl<K: Ord + Copy + Unpin> HttpBody for Holding<K> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.revoked.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new("the token is not valid any more"))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn e04_each_caller_has_its_own_bounded_number_of_places() {
        let places = Permits::new(2);
        let first = places.take("a").expect("a place");
        let _second = places.take("a").expect("a place");
        assert!(places.take("a").is_none() && places.take("b").is_some());
        drop(first);
        assert!(places.take("a").is_some());
        assert_eq!(places.taken().len(), 1, "callers without a place are forgotten");
    }

    #[tokio::test]
    async fn e04_a_body_keeps_its_place_until_it_ends() {
        let places = Permits::new(1);
        let never = || Box::pin(std::future::pending());
        let body = hold(Body::from("text"), places.take(7).expect("a place"), never());
        assert_eq!(body.size_hint().exact(), Some(4), "its length is known as before");
        assert!(places.take(7).is_none());
        assert_eq!(body.collect().await.expect("a body").to_bytes(), "text");
        assert!(places.take(7).is_some());
        drop(hold(Body::from("text"), places.take(7).expect("a place"), never()));
        assert!(places.take(7).is_some());
    }

    #[tokio::test]
    async fn s19_a_body_breaks_off_when_its_callers_token_is_revoked() {
        let places = Permits::new(1);
        let revoked = Box::pin(std::future::ready(()));
        let body = hold(Body::from("text"), places.take(7).expect("a place"), revoked);
        assert!(body.collect().await.is_err());
        assert!(places.take(7).is_some());
    }
}
