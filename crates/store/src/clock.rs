//! Time and randomness: the only place where the production code and the simulations differ.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// A point in time on two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Now {
    /// Unix time in milliseconds, as people read it. It may jump, so no decision depends on it.
    pub wall_ms: i64,
    /// Milliseconds that never jump; they measure leases, backoffs and timeouts.
    pub steady_ms: i64,
}

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the Unix time in milliseconds.
    fn wall_ms(&self) -> i64;
    /// Returns the milliseconds since the machine started, sleep included; the same for all its processes.
    fn boot_ms(&self) -> i64;
}

/// A source of random numbers.
pub trait Entropy: Send + Sync + 'static {
    /// Returns a random number.
    fn next_u64(&self) -> u64;
}

/// The machine's own clocks and randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Clock for System {
    fn wall_ms(&self) -> i64 {
        to_ms(rustix::time::clock_gettime(rustix::time::ClockId::Realtime))
    }

    fn boot_ms(&self) -> i64 {
        to_ms(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
    }
}

fn to_ms(time: rustix::time::Timespec) -> i64 {
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

impl Entropy for System {
    fn next_u64(&self) -> u64 {
        let mut bytes = [0u8; 8];
        // The kernel returns all eight bytes once its pool is ready, which getrandom waits for.
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .expect("the kernel has randomness");
        u64::from_ne_bytes(bytes)
    }
}

/// A clock and a source of randomness that only the caller advances, for models, simulations and tests.
#[derive(Debug)]
pub struct Manual {
    ms: AtomicI64,
    state: Mutex<u64>,
}

impl Manual {
    /// Creates one with both clocks at `ms`, and randomness from `seed`.
    pub fn new(ms: i64, seed: u64) -> Self {
        Manual { ms: AtomicI64::new(ms), state: Mutex::new(seed) }
    }

    /// Advances both clocks by `ms`.
    pub fn advance(&self, ms: i64) {
        self.ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for Manual {
    fn wall_ms(&self) -> i64 {
        self.ms.load(Ordering::SeqCst)
    }

    fn boot_ms(&self) -> i64 {
        self.ms.load(Ordering::SeqCst)
    }
}

impl Entropy for Manual {
    fn next_u64(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(*state)
    }
}

/// Mixes a counter into all bits, with SplitMix64's finaliser.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a text's hash (FNV-1a): the same on every machine and in every version, and not secret.
pub fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
