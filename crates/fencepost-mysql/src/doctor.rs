//! Checks the server.

use fencepost_core::{Report, Result};

use crate::client::MysqlClient;

pub(crate) async fn examine(client: &MysqlClient) -> Result<Report> {
    client.reach().await?;
    Ok(Report::default())
}
