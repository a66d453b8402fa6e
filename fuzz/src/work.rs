//! The endpoints of remote workers under libFuzzer: a worker can only report about its own host, and the server neither
//! fails nor touches a file outside its data directory.

#![no_main]

mod work_exercise;

use std::cell::RefCell;

use work_exercise::WorkerApi;

thread_local! {
    static API: RefCell<Option<(WorkerApi, u32)>> = const { RefCell::new(None) };
}

/// The number of conversations before the server is replaced, because its memory keeps what they create.
const CONVERSATIONS: u32 = 500;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    API.with_borrow_mut(|slot| {
        let (api, count) = slot.get_or_insert_with(|| (WorkerApi::new(), 0));
        api.converse(bytes);
        *count += 1;
        if *count >= CONVERSATIONS {
            *slot = None;
        }
    });
});
