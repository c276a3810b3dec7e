//! The engine as users meet it: through the client, between threads and between real processes.

mod abandoned;
mod client;
mod evict;
mod idle;
mod processes;
mod removed;
mod support;
mod validity;

/// The part of the processes that these tests start. Without a role it does nothing.
#[test]
fn role() {
    let Some((role, url)) = support::role() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(processes::play(&role, &url));
}
