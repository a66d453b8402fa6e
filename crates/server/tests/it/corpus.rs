//! Sends the fuzzer's corpus and hostile bodies to every endpoint.

#[path = "../../../../fuzz/src/api_exercise.rs"]
mod api_exercise;

#[path = "../../../../fuzz/src/work_exercise.rs"]
mod work_exercise;

use api_exercise::Api;
use work_exercise::WorkerApi;

#[test]
fn e04_no_conversation_of_the_corpus_lets_a_worker_speak_for_the_server() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/work");
    let mut api = WorkerApi::new();
    let (mut accepted, mut all) = (0, 0);
    for entry in std::fs::read_dir(corpus).unwrap() {
        accepted += usize::from(api.converse(&std::fs::read(entry.unwrap().path()).unwrap()) > 0);
        all += 1;
    }
    println!(
        "figure: fuzzing, workers: {all} conversations replayed, in {accepted} of them something was accepted"
    );
    assert!(all >= 70, "{all} conversations");
    assert!(
        accepted >= 35,
        "in {accepted} of {all} something was accepted: the corpus reaches more than refusals"
    );
}

#[test]
fn no_body_of_the_corpus_makes_an_endpoint_fail() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/api");
    let mut api = Api::new();
    let (mut accepted, mut all) = (0, 0);
    for entry in std::fs::read_dir(corpus).unwrap() {
        let status = api.call(&std::fs::read(entry.unwrap().path()).unwrap());
        accepted += usize::from((200..300).contains(&status));
        all += 1;
    }
    println!("figure: fuzzing, endpoints: {all} bodies replayed, {accepted} of them accepted");
    assert!(all >= 100, "{all} bodies");
    assert!(accepted >= 10, "{accepted} of {all} were accepted: the corpus reaches more than refusals");
}

#[test]
fn no_hostile_body_makes_an_endpoint_fail() {
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let long = format!("{{\"name\":{:?}}}", "x".repeat(50_000));
    let bodies: Vec<&[u8]> = vec![
        b"",
        b"{}",
        b"[]",
        b"null",
        b"1e999",
        b"\"text\"",
        b"\xff\xfe{}",
        b"{\"name\":\"\\u0000\"}",
        b"{\"name\":\"a\",\"name\":\"b\"}",
        b"{\"name\":\"../../x\"}",
        b"{\"id\":-9223372036854775808}",
        b"{\"tasks\":[[1,2],[3]]}",
        b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"tools/call\"}",
        deep.as_bytes(),
        long.as_bytes(),
    ];
    let mut api = Api::new();
    for endpoint in 0..=255u8 {
        for body in &bodies {
            api.call(&[&[endpoint], *body].concat());
        }
    }
}
