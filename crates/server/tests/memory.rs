//! The memory of a server does not grow with the number of requests.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{JSON, ask, model, post, start_with};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;

/// Megabytes by which memory may grow: what the allocator keeps varies.
const GROWTH_MB: u64 = 8;

/// The memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Asks for something else each time: texts and streams, conversations, formats, and what is refused.
fn ask_something(address: SocketAddr, number: usize) {
    let prompt = ["The king", "Once upon a time", "A dog", "She"][number / 7 % 4];
    let answer = match number % 7 {
        0 => post(address, "/v1/completions", &json!({"prompt": prompt, "max_tokens": 1, "seed": number})),
        1 => post(address, "/v1/completions", &json!({"prompt": prompt, "max_tokens": 2, "stream": true})),
        2 => {
            let messages = json!([{"role": "user", "content": format!("{prompt} {number}")}]);
            post(address, "/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1, "logprobs": true}))
        }
        3 => post(address, "/v1/responses", &json!({"input": prompt, "max_output_tokens": 1, "stream": true})),
        4 => {
            let format = json!({"type": "json_schema", "json_schema": {"schema": {"enum": [number]}}});
            post(address, "/v1/completions", &json!({"prompt": prompt, "max_tokens": 1, "response_format": format}))
        }
        5 => ask(address, "POST", "/v1/chat/completions", JSON, &"[".repeat(number % 2000)),
        _ => post(address, "/v1/completions", &json!({"prompt": prompt, "nonsense": number})),
    };
    assert_eq!(answer.status, if number % 7 > 4 { 400 } else { 200 }, "{}", answer.body);
}

fn stays_flat(requests: usize) {
    let server = start_with(model(), |config| {
        // What is kept on purpose is bounded, and full before memory is measured.
        config.batch.prefix_bytes = 1 << 20;
        config.log = Arc::new(|_| ());
    });
    (0..400).for_each(|number| ask_something(server.address, number));
    let before = resident_bytes();
    (400..400 + requests).for_each(|number| ask_something(server.address, number));
    let grown = resident_bytes().saturating_sub(before);
    println!("{} MB, and {} KB more after {requests} requests", before >> 20, grown >> 10);
    assert!(grown >> 20 < GROWTH_MB, "{} KB more after {requests} requests", grown >> 10);
}

#[test]
fn issue_19_memory_is_flat_over_some_requests() {
    stays_flat(1000);
}

#[test]
#[ignore = "takes a minute; `just flat-memory`"]
fn issue_19_memory_is_flat_over_10_000_requests() {
    stays_flat(10_000);
}
