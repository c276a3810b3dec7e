//! A holder whose session has ended writes late, and the server refuses it: the write is in one transaction with a check of
//! the lock's own node.
//!
//! `cargo run -p fencepost-zookeeper --example guarded` starts a ZooKeeper of its own, from Debian's packages.

use std::time::Duration;

use fencepost_core::{Client, Guard, Registry};
use fencepost_testkit::faults::Faults;
use fencepost_testkit::zookeeper::{Config, Proxied};
use fencepost_zookeeper::{Guarded, Write};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut server = Proxied::start(&Config::new())?;
    let registry = Registry::new().with("zookeeper", fencepost_zookeeper::open);
    let near = Client::builder().connect(&registry, &format!("{}/app", server.direct_url())).await?;
    let far = Client::builder().connect(&registry, &format!("{}/app?session=1s", server.url())).await?;

    let mut first = far.mutex("stock")?.lock().await?;
    let stale = guarded(&mut first);
    stale.commit(&[Write::Create { path: "/stock".into(), data: b"100".to_vec() }]).await?;
    println!("the first holder, token {}, has written", first.token());

    server.silence()?;
    println!("its network goes dark, and the server ends its session …");
    let mut second = near.mutex("stock")?.lock().wait(Duration::from_secs(20)).await?;
    let sold = Write::Set { path: "/stock".into(), data: b"99".to_vec(), version: None };
    guarded(&mut second).commit(&[sold]).await?;
    println!("the second holder, token {}, has written", second.token());

    server.mend()?;
    let late = Write::Set { path: "/stock".into(), data: b"100".to_vec(), version: None };
    match stale.commit(&[late]).await {
        Ok(()) => return Err("a stale holder wrote".into()),
        Err(error) => println!("the first holder writes late, and is refused: {error}"),
    }
    second.release().await?;
    near.close().await;
    far.close().await;
    Ok(())
}

/// The grant's own strength.
fn guarded(guard: &mut Guard) -> Guarded {
    let native = guard.native().expect("ZooKeeper has one");
    native.downcast_ref::<Guarded>().expect("it is this type").clone()
}
