//! Examines the service.

use fencepost_core::{Finding, Report, Result};

use crate::client::HttpClient;
use crate::conn::call::Ask;

pub(crate) async fn examine(client: &HttpClient, engine: &str) -> Result<Report> {
    client.call(Ask::get("/healthz")).await?;
    let url = client.connections.url();
    let engine = match client.reach().await {
        Ok(_) => Finding::ok("engine", format!("the service reaches its engine ({engine})"))
            .advice("run fencepost doctor with the engine's own URL to examine it"),
        Err(failed) => Finding::problem(
            "engine",
            format!("the service does not reach its engine ({engine}): {}", failed.error),
        )
        .advice("check the engine, and the URL that the service was started with"),
    };
    let network = match url.starts_with("https:") {
        true => Finding::ok("network", "the token and the leases are sent with TLS"),
        false => Finding::note("network", "the token and the leases are sent without TLS")
            .advice("use https: unless the service is on this machine"),
    };
    Ok(Report::from([engine, network].map(|finding| finding.at(url)).to_vec()))
}
