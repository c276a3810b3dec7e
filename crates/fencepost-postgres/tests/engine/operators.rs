//! The claims that operators of other clients see.

use fencepost_core::{Client, Page};
use fencepost_testkit::needs;
use fencepost_testkit::sql::Postgres;

use crate::{connect, registry};

/// The database's encoding has few characters, and the texts of claims may have any.
#[tokio::test]
async fn claims_are_shown_in_a_database_without_unicode() {
    needs!(POSTGRES);
    let server = Postgres::start().expect("a server starts");
    server.run("CREATE DATABASE narrow ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0").expect("made");
    let url = server.url().replace("/postgres", "/narrow");
    let client = Client::builder().label("日本/🦀").connect(&registry(), &url).await.expect("it answers");
    let operator = connect(&url).await;
    let mutex = client.mutex("lock/é/日本").expect("a good name");
    let guard = mutex.lock().reason("\u{1}é日").await.expect("it is free");
    let info = operator.inspect("lock/é/日本").await.expect("it answers");
    let listing = operator.list("lock/é/日", &Page::default()).await.expect("it answers");
    for info in [&info, &listing.resources[0]] {
        let holder = info.holders().next().expect("it is held");
        assert_eq!((&*holder.holder.label, holder.reason.as_deref()), ("日本/🦀", Some("\u{1}é日")));
    }
    guard.release().await.expect("it was held");
    client.close().await;
    operator.close().await;
}
