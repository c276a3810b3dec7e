//! The time that the service takes to refuse an access token does not tell how much of it is right.
//!
//! A program of its own: the lock service switches on the metrics of the library, and `fencepost-bench` measures the library without
//! them, as it is by default.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use fencepost_core::{Client, Registry};
use fencepost_server::{NewToken, Options, Tokens};
use fencepost_testkit::server::TempDir;
use fencepost_testkit::sim::Rng;
use std::sync::Arc;
use std::time::Instant;
use tower::ServiceExt;

/// Tokens of other callers in the file.
const OTHERS: usize = 20;
/// The beginning of each token. Its digits follow.
const PREFIX: &str = "fpt1-";
/// The part of the samples that counts, by one limit for both classes. The slowest are those of the machine.
const KEPT: f64 = 0.95;

fn main() {
    let samples =
        std::env::args().nth(1).and_then(|samples| samples.parse().ok()).expect("a number of samples");
    println!("{}", tokens(samples));
}

/// Returns the t of Welch's test, as `fencepost-bench` reads it. There are two classes of wrong tokens: one character of the right token
/// differs, or all do (the method of dudect, Reparaz and others 2017). Each sample has a token of its own, made by the same steps for both
/// classes: the place of a text in memory must not tell the classes apart.
fn tokens(samples: usize) -> serde_json::Value {
    let folder = TempDir::new("bench-timing").expect("a folder for the tokens");
    let file = folder.path().join("tokens.jsonl");
    let add = |caller: String| {
        let rights = vec!["acquire,read:".parse().expect("a right")];
        let new = NewToken { caller, rights, expires: None, waiting: None, rate: None };
        Tokens::add(&file, &new).expect("a file of tokens")
    };
    (0..OTHERS).for_each(|number| drop(add(format!("other {number}"))));
    let right = add("ci".to_owned());
    let mut times = [Vec::new(), Vec::new()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks =
            Client::builder().connect(&Registry::new(), "memory:").await.expect("memory is always there");
        let tokens = Some(Arc::new(Tokens::read(&file).expect("the file")));
        let router =
            fencepost_server::router(locks, &Options { tokens, ..Options::default() }).expect("a router");
        let mut rng = Rng::new(1);
        for _ in 0..samples {
            let class = usize::from(rng.chance(500));
            let token = wrong(&right, &mut rng, class == 0);
            let request = Request::get("/v1/engine")
                .header(header::HOST, "localhost")
                .header(header::AUTHORIZATION, format!("Bearer {token}"))
                .body(Body::empty())
                .expect("a request");
            let router = router.clone();
            let start = Instant::now();
            let response = router.oneshot(request).await.expect("an answer");
            times[class].push(start.elapsed().as_secs_f64() * 1e6);
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        }
    });
    let mut all: Vec<f64> = times.iter().flatten().copied().collect();
    all.sort_by(f64::total_cmp);
    let limit = all[(all.len() as f64 * KEPT) as usize];
    let [near, far] = times.map(|times| Class::of(&times, limit));
    let t = (near.mean - far.mean) / (near.variance / near.count + far.variance / far.count).sqrt();
    let note = format!(
        "{samples} refusals: {:.2} µs if one character is wrong, {:.2} µs if all are (means of the fastest {:.0} %)",
        near.mean,
        far.mean,
        KEPT * 100.0
    );
    serde_json::json!({ "figure": t.abs(), "note": note })
}

/// Returns a token of which one character is wrong, or each.
fn wrong(right: &str, rng: &mut Rng, is_near: bool) -> String {
    let (head, digits) = right.split_at(PREFIX.len());
    let at = rng.below(digits.len() as u64) as usize;
    let changed = digits.chars().enumerate().map(|(place, digit)| {
        let other =
            char::from_digit((digit.to_digit(16).expect("a hex digit") + 1 + rng.below(15) as u32) % 16, 16);
        if is_near && place != at { digit } else { other.expect("a hex digit") }
    });
    format!("{head}{}", changed.collect::<String>())
}

/// Samples of one class.
struct Class {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Class {
    fn of(times: &[f64], limit: f64) -> Class {
        let times: Vec<f64> = times.iter().copied().filter(|time| *time <= limit).collect();
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Class { count, mean, variance }
    }
}
