//! The time that the service takes to refuse an access token does not tell how much of it is right.

use crate::client::runtime;
use crate::command::Place;
use crate::figure::Measured;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use fencepost_core::{Client, Registry};
use fencepost_server::{NewToken, Options, Tokens};
use fencepost_testkit::sim::Rng;
use std::sync::Arc;
use std::time::Instant;
use tower::ServiceExt;

/// Tokens of other callers in the file.
const OTHERS: usize = 20;
/// The part of the samples that counts. The slowest are those of the machine.
const KEPT: f64 = 0.95;

/// Returns the t of Welch's test on two classes of wrong tokens: one character of the right token differs, and all differ.
pub(crate) fn tokens(samples: usize) -> Measured {
    let place = Place::new("timing");
    let file = place.file("tokens.jsonl");
    let add = |caller: String| {
        let rights = vec!["acquire,read:".parse().expect("a right")];
        let new = NewToken { caller, rights, expires: None, waiting: None, rate: None };
        Tokens::add(&file, &new).expect("a file of tokens")
    };
    (0..OTHERS).for_each(|number| drop(add(format!("other {number}"))));
    let right = add("ci".to_owned());
    let last = if right.ends_with('0') { "1" } else { "0" };
    let near = format!("{}{last}", &right[..right.len() - 1]);
    let far = format!("fpt1-{}", right["fpt1-".len()..].chars().map(other).collect::<String>());
    let mut times = [Vec::new(), Vec::new()];
    runtime().block_on(async {
        let locks =
            Client::builder().connect(&Registry::new(), "memory:").await.expect("memory is always there");
        let tokens = Some(Arc::new(Tokens::read(&file).expect("the file")));
        let router =
            fencepost_server::router(locks, &Options { tokens, ..Options::default() }).expect("a router");
        let mut rng = Rng::new(1);
        for _ in 0..samples {
            let class = usize::from(rng.chance(500));
            let token = [&near, &far][class];
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
    let [near, far] = times.map(Class::of);
    let t = (near.mean - far.mean) / (near.variance / near.count + far.variance / far.count).sqrt();
    let note = format!(
        "{samples} refusals: {:.2} µs if one character is wrong, {:.2} µs if all are (means of the fastest {:.0} %)",
        near.mean,
        far.mean,
        KEPT * 100.0
    );
    Measured { figure: t.abs(), note }
}

/// Another hex digit.
fn other(digit: char) -> char {
    char::from_digit(digit.to_digit(16).map_or(0, |digit| (digit + 7) % 16), 16).expect("a hex digit")
}

/// Samples of one class.
struct Class {
    count: f64,
    mean: f64,
    variance: f64,
}

impl Class {
    fn of(mut times: Vec<f64>) -> Class {
        times.sort_by(f64::total_cmp);
        times.truncate((times.len() as f64 * KEPT) as usize);
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        Class { count, mean, variance }
    }
}
