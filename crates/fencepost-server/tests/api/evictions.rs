//! The holder learns why it was evicted, and so do readers of the lock. Others learn nothing.

use axum::http::StatusCode;
use serde_json::json;

use crate::kit::{lease, post};
use crate::rights::Guarded;

/// Returns the text of a lease with another token. Its format is in `docs/formats.md`.
fn with_token(lease: &str, token: u64) -> String {
    let (prefix, digits) = lease.split_once('-').unwrap();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let mut bytes: Vec<u8> = (0..digits.len() - 8).step_by(2).map(byte).collect();
    bytes[16..24].copy_from_slice(&token.to_be_bytes());
    let check =
        bytes.iter().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    bytes.extend(check.to_be_bytes());
    bytes.iter().fold(format!("{prefix}-"), |text, byte| format!("{text}{byte:02x}"))
}

#[tokio::test]
async fn a_made_up_lease_tells_a_caller_without_read_nothing_of_evictions() {
    let service = Guarded::start().await;
    let (all, blind) = (service.token(&["acquire,read,evict:"]), service.token(&["acquire:a"]));
    let own = service.ask(&blind, post("/v1/acquire", &json!({ "name": "a" }))).await.1;
    service.ask(&blind, post("/v1/leases/release", &lease(&own))).await;
    for now in [true, false] {
        let held = service.ask(&all, post("/v1/acquire", &json!({ "name": "a" }))).await.1;
        // The lease that was released, with the token of another holder.
        let made_up = with_token(own["lease"].as_str().unwrap(), held["token"].as_u64().unwrap());
        let extend = || post("/v1/leases/extend", &json!({ "lease": made_up }));
        let before = service.ask(&blind, extend()).await;
        assert_eq!((before.0, &before.1["code"]), (StatusCode::GONE, &json!("lease-ended")));
        let evict = json!({ "name": "a", "token": held["token"], "reason": "deploy", "now": now });
        assert_eq!(service.ask(&all, post("/v1/evict", &evict)).await.0, StatusCode::NO_CONTENT);
        assert_eq!(service.ask(&blind, extend()).await, before, "now: {now}");
        // The holder learns of it, and so does a caller that may read the lock.
        let (_, problem) = service.ask(&all, post("/v1/leases/extend", &lease(&held))).await;
        assert_eq!(
            (&problem["loss"], &problem["why"]),
            (&json!("evicted"), &json!("deploy, by the token of ci"))
        );
    }
}
