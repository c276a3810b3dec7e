//! Finds out whether a store keeps the conditions of writes. One that ignores them would grant a lock to everybody.

use bytes::Bytes;
use fencepost_core::Result;

use crate::client::ObjectClient;
use crate::error::no_conditions;

/// What the note says that somebody has found out.
const NOTE: &[u8] = br#"{"fencepost":1,"conditions":true}"#;

/// Fails if the store does not keep conditions. The first client of a prefix finds out, and leaves a note for the others.
pub(crate) async fn require(client: &ObjectClient) -> Result<()> {
    let (store, key) = (&client.store, client.keys.conditions());
    if store.get(&key).await?.is_some() {
        return Ok(());
    }
    if !are_kept(client).await? {
        return Err(no_conditions(store.shown()));
    }
    store.put(&key, None, Bytes::from_static(NOTE)).await?;
    Ok(())
}

/// Tries both conditions on an object of its own.
pub(crate) async fn are_kept(client: &ObjectClient) -> Result<bool> {
    let store = &client.store;
    let key = client.keys.trial(store.runtime().client());
    let kept = async {
        let text = |number: u8| Bytes::from(vec![b'0' + number]);
        // A client that was ended in a trial may have left the object.
        store.delete(&key).await?;
        let Some(first) = store.put(&key, None, text(1)).await? else { return Ok(false) };
        if store.put(&key, None, text(2)).await?.is_some() {
            return Ok(false);
        }
        let Some(second) = store.put(&key, Some(&first), text(3)).await? else { return Ok(false) };
        let again = store.put(&key, Some(&first), text(4)).await?;
        Ok(again.is_none() && second != first)
    };
    let kept = kept.await;
    store.delete(&key).await?;
    kept
}
