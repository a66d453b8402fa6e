//! The server's endpoints under libFuzzer: no body makes one panic, fail, or answer without a reason.

#![no_main]

mod api_exercise;

use std::cell::RefCell;

use api_exercise::Api;

thread_local! {
    static API: RefCell<Option<(Api, u32)>> = const { RefCell::new(None) };
}

/// The number of calls before the server is replaced, because its memory keeps what the bodies create.
const CALLS: u32 = 2_000;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    API.with_borrow_mut(|slot| {
        let (api, calls) = slot.get_or_insert_with(|| (Api::new(), 0));
        api.call(bytes);
        *calls += 1;
        if *calls >= CALLS {
            *slot = None;
        }
    });
});
