//! The attribute [`macro@locked`]. Programs use it as `fencepost::locked`, behind the feature `macros`.

mod expand;
mod options;

use proc_macro::TokenStream;

/// Runs each call of a function under a lock, as `lock().run` of the crate `fencepost` does.
///
/// The first argument is the lock's name, with the function's arguments in braces as in `format!`. Values for `{}` may follow it.
/// Then come the options:
///
/// | option | default | |
/// |---|---|---|
/// | `wait = "3s"` | no limit; with `on_busy`: none | the waiting time: a number and `ms`, `s`, `m` or `h`, or a `Duration` |
/// | `on_busy = EXPR` | an error | the result of the call if the lock is busy after the waiting time |
/// | `mode = read`, `mode = write` | an exclusive lock | the read or the write lock of a read-write lock |
/// | `permits = N` | an exclusive lock | one of N permits |
/// | `ttl = "30s"` | that of the client | the lease |
/// | `max_hold = "10m"` | no limit | the lock is lost after that time, however often it is renewed |
/// | `at_least = "1m"` | none | the lock stays held at least that long |
/// | `evict_overdue = true` | `false` | holders that are past their `max_hold` are evicted meanwhile |
/// | `unfair = true` | `false` | claims that wait are passed, where the lock has room |
/// | `reason = EXPR` | none | the reason that operators see, a `&str` |
/// | `locks = EXPR` | the argument `locks`, or `self.locks` | the client |
/// | `view = NAME` | none | the name by which the body sees the `GuardView`, for its token |
///
/// The function returns a `Result` whose error type implements `From<fencepost::Error>`. A function without `async` blocks its thread until
/// it has the lock; it needs the feature `blocking` of the crate `fencepost`.
///
/// # What is guaranteed
/// - The body runs only while the lock is held. A lost lock drops the body of an `async fn` at its next await.
/// - A call that is dropped leaves nothing behind.
///
/// # What is not
/// - A body that blocks its thread is not stopped by a loss. The call fails after it.
/// - The value of `on_busy` can use an argument only if the body does not take it.
///
/// # Errors
/// Those of `lock().run`, made into the function's error type by `From`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use fencepost::{Locks, locked};
///
/// #[derive(Debug)]
/// enum ShopError {
///     Busy,
///     Lock(fencepost::Error),
/// }
///
/// impl From<fencepost::Error> for ShopError {
///     fn from(error: fencepost::Error) -> ShopError {
///         ShopError::Lock(error)
///     }
/// }
///
/// #[locked("order:{id}", wait = "3s", on_busy = Err(ShopError::Busy), view = lock)]
/// async fn pay(locks: &Locks, id: u64) -> Result<u64, ShopError> {
///     Ok(lock.token().get())
/// }
///
/// let locks = Locks::connect("memory:").await.unwrap();
/// assert!(pay(&locks, 42).await.unwrap() > 0);
/// # });
/// ```
///
/// A name that is no argument is a compile error:
///
/// ```compile_fail
/// #[fencepost::locked("order:{order}")]
/// async fn pay(locks: &fencepost::Locks, id: u64) -> fencepost::Result<()> {
///     Ok(())
/// }
/// ```
///
/// So is a function without a client:
///
/// ```compile_fail
/// #[fencepost::locked("order:{id}")]
/// async fn pay(id: u64) -> fencepost::Result<()> {
///     Ok(())
/// }
/// ```
///
/// And so is an expression in braces. Write `#[locked("order:{}", order.id)]`:
///
/// ```compile_fail
/// #[fencepost::locked("order:{order.id}")]
/// async fn pay(locks: &fencepost::Locks, order: Order) -> fencepost::Result<()> {
///     Ok(())
/// }
/// struct Order {
///     id: u64,
/// }
/// ```
#[proc_macro_attribute]
pub fn locked(options: TokenStream, function: TokenStream) -> TokenStream {
    expand::locked(options.into(), function.into()).unwrap_or_else(|error| error.to_compile_error()).into()
}
