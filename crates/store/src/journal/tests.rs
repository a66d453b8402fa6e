//! What is packed is unpacked again, and damage is an error and never a panic.

use super::*;
use crate::clock::mix;

/// Numbers that look random and are the same each time.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn maybe<T>(&mut self, of: impl FnOnce(&mut Draw) -> T) -> Option<T> {
        (self.below(3) > 0).then(|| of(self))
    }

    /// Returns a number of any size, extreme ones included.
    fn number(&mut self) -> i64 {
        match self.below(6) {
            0 => i64::MIN,
            1 => i64::MAX,
            2 => 0,
            3 => self.below(200) as i64 - 100,
            _ => self.next() as i64,
        }
    }

    fn small(&mut self) -> u32 {
        if self.below(8) == 0 { u32::MAX } else { self.below(300) as u32 }
    }

    fn text(&mut self) -> Arc<str> {
        let words = ["", "agent:leader", "token:7", "{\"path\":\"/a b\"}", "Grüße, 世界", "rule:nightly"];
        words[self.below(words.len() as u64) as usize].into()
    }

    fn entry(&mut self, seq: u64, at_ms: i64) -> EntryRow {
        let run = Some(RunId::from_i64(1 + self.below(3) as i64)).filter(|_| self.below(5) > 0);
        let (step, attempt) = (self.maybe(Draw::small), self.maybe(Draw::small));
        EntryRow {
            seq,
            at_ms: if self.below(4) == 0 { self.number() } else { at_ms },
            sentence: self.number(),
            place: Position { run, step, attempt, id: self.maybe(Draw::number) },
            worker: self.maybe(Draw::number),
            fence: self.maybe(Draw::small),
            by: self.maybe(Draw::text),
            note: self.maybe(Draw::text),
        }
    }

    /// Returns entries in order, with runs of one run and gaps between some numbers.
    fn entries(&mut self, count: usize) -> Vec<EntryRow> {
        let mut seq = 1 + self.below(1_000);
        let mut entries: Vec<EntryRow> = Vec::new();
        for _ in 0..count {
            let mut entry = self.entry(seq, 1_794_921_240_248);
            if self.below(4) > 0
                && let Some(before) = entries.last()
            {
                entry.place.run = before.place.run;
            }
            entries.push(entry);
            seq += if self.below(10) == 0 { 1 + self.below(50) } else { 1 };
        }
        entries
    }
}

fn unpacked(packs: &[PackRow]) -> Vec<EntryRow> {
    packs.iter().flat_map(|pack| pack.unpack().expect("a whole pack")).collect()
}

#[test]
fn packed_entries_are_unpacked_as_they_were() {
    let mut draw = Draw(1);
    for _ in 0..500 {
        let count = draw.below(400) as usize;
        let entries = draw.entries(count);
        let packs = pack(entries.clone());
        assert_eq!(unpacked(&packs), entries);
        for pair in packs.windows(2) {
            assert!(pair[0].last_seq < pair[1].first_seq, "packs do not overlap");
        }
        for pack in &packs {
            let of_pack = pack.unpack().unwrap();
            assert!(of_pack.iter().all(|entry| entry.place.run == pack.run), "a pack is of one run");
            assert!(of_pack.len() <= MOST_ENTRIES);
        }
    }
}

#[test]
fn consecutive_entries_of_one_run_are_one_pack() {
    let mut draw = Draw(2);
    let mut entries = draw.entries(9);
    for (entry, seq) in entries.iter_mut().zip(5..) {
        entry.seq = seq;
        entry.place.run = Some(RunId::from_i64(if seq < 12 { 1 } else { 2 }));
    }
    let ranges: Vec<_> = pack(entries).iter().map(|pack| (pack.first_seq, pack.last_seq)).collect();
    assert_eq!(ranges, [(5, 11), (12, 13)]);
}

#[test]
fn a_pack_is_bounded() {
    let mut draw = Draw(3);
    let long: Arc<str> = "x".repeat(MOST_BYTES / 2).into();
    let entries: Vec<EntryRow> = (1..=1_000)
        .map(|seq| {
            let mut entry = draw.entry(seq, 0);
            entry.place.run = None;
            entry.note = (seq > 900).then(|| Arc::clone(&long));
            entry
        })
        .collect();
    let packs = pack(entries.clone());
    assert_eq!(unpacked(&packs), entries);
    for pack in &packs {
        assert!(pack.last_seq - pack.first_seq < MOST_ENTRIES as u64);
        assert!(pack.body.len() <= 2 * MOST_BYTES, "{} bytes", pack.body.len());
    }
}

#[test]
fn damaged_packs_are_errors_that_name_the_row() {
    let mut draw = Draw(4);
    for _ in 0..60 {
        let count = 1 + draw.below(12) as usize;
        for whole in pack(draw.entries(count)) {
            for length in 0..whole.body.len() {
                is_refused(PackRow { body: whole.body[..length].to_vec(), ..whole.clone() });
            }
            for bit in 0..whole.body.len() * 8 {
                let mut body = whole.body.clone();
                body[bit / 8] ^= 1 << (bit % 8);
                is_refused(PackRow { body, ..whole.clone() });
            }
            is_refused(PackRow { last_seq: whole.last_seq + 1, ..whole.clone() });
            is_refused(PackRow { first_seq: whole.first_seq + 1, ..whole.clone() });
            is_refused(PackRow { first_seq: 0, ..whole.clone() });
            is_refused(PackRow { last_seq: u64::MAX, ..whole });
        }
    }
}

fn is_refused(pack: PackRow) {
    let told = pack.unpack().expect_err("a damaged pack").to_string();
    assert!(told.contains(&format!("journal pack {}", pack.last_seq)), "{told}");
}

/// Bytes whose checksum is right, and which no program has written.
#[test]
fn bytes_of_any_content_do_not_panic() {
    let mut draw = Draw(5);
    for _ in 0..20_000 {
        let mut content: Vec<u8> = vec![1];
        content.extend((0..draw.below(40)).map(|_| draw.next() as u8));
        let body = bytes::sealed(content);
        let count = draw.below(5);
        let _ = PackRow { last_seq: 7 + count, first_seq: 7, run: None, body }.unpack();
    }
    let newer = PackRow { last_seq: 7, first_seq: 7, run: None, body: bytes::sealed(vec![2, 0, 0, 0]) };
    let told = newer.unpack().expect_err("a newer format").to_string();
    assert!(told.contains("format 2"), "{told}");
}

#[test]
fn a_page_starts_and_ends_in_the_middle_of_packs() {
    let mut draw = Draw(6);
    for _ in 0..200 {
        let entries = draw.entries(60);
        let packs = pack(entries.clone());
        let (after, to) = (draw.below(1_000), draw.below(1_200));
        let page = Page { after, to, limit: draw.below(40) as usize };
        let mut found = Vec::new();
        let mut has_room = page.limit > 0;
        for pack in packs.iter().filter(|pack| pack.last_seq > after && pack.first_seq <= to) {
            has_room = has_room && page.take(pack, &mut found).unwrap();
        }
        let wanted = entries.into_iter().filter(|entry| entry.seq > after && entry.seq <= to);
        assert_eq!(found, wanted.take(page.limit).collect::<Vec<_>>());
    }
}
