//! Listing, inspection and eviction.

use fencepost_core::{Error, ErrorKind, Eviction, Info, Listing, Name, Page, Result, Token};

use crate::client::MysqlClient;
use crate::error::ENGINE;

fn unsupported<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "operators cannot look yet").on(ENGINE))
}

pub(crate) async fn inspect(_: &MysqlClient, _: &Name) -> Result<Info> {
    unsupported()
}

pub(crate) async fn list(_: &MysqlClient, _: &str, _: &Page) -> Result<Listing> {
    unsupported()
}

pub(crate) async fn evict(_: &MysqlClient, _: &Name, _: Token, _: &Eviction) -> Result<()> {
    unsupported()
}
