//! The suite that every engine and every layer passes.
//!
//! A case states its [needs](Need). Only a [capability](fencepost_core::Capabilities) that the engine lacks
//! excuses it. The engine's test file lists the excused cases by name. A case that is neither run nor listed
//! fails. A case that is listed although the engine could run it fails as well. After each case the clients
//! are closed, and nothing may be left at the engine.
//!
//! An engine is put under the suite by a file `tests/conformance.rs` in its crate:
//!
//! ```
//! use fencepost_core::{Runtime, Backend, Memory, Result};
//! use fencepost_testkit::conformance::{Fixture, Fut, Namespace};
//! use std::sync::Arc;
//!
//! struct InMemory;
//!
//! impl Fixture for InMemory {
//!     /// A fresh database, folder or key prefix: cases run at the same time and must not meet.
//!     fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
//!         Box::pin(async { Box::new(Fresh(Memory::new())) as Box<dyn Namespace> })
//!     }
//! }
//!
//! struct Fresh(Arc<Memory>);
//!
//! impl Namespace for Fresh {
//!     /// The engine for one more client of the namespace.
//!     fn open(&self, _runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
//!         Box::pin(async { Ok(self.0.clone() as Arc<dyn Backend>) })
//!     }
//! }
//!
//! // Makes one `#[test]` for each case, under the name of the case. Some cases are excused: no other process shares
//! // this memory, there is no server to stop, and no connection to cut. The test of a case that is missing here
//! // fails, and its message names what the case needs.
//! fencepost_testkit::conformance!(InMemory, excused: [
//!     crash_frees, a_process_that_ends_frees, stop_and_continue, engine_out_of_reach, who_waits_hears_of_an_outage,
//!     server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut,
//!     a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder,
//! ]);
//! # fn main() {}
//! ```
//!
//! A namespace that can look into its engine also lists its [leftovers](Namespace::leftovers). A namespace
//! whose engine outlives a process also [holds a lock elsewhere](Namespace::elsewhere). It returns [`Holder::start`], which
//! runs the test binary a second time. The other process opens the engine by a URL, so the engine needs its
//! [`Open`](fencepost_core::Open) function, and the test file needs this test:
//!
//! ```
//! // It is a `#[test]`.
//! fn hold_elsewhere() {
//!     // The scheme of the engine's URLs is added with `.with("name", open)`.
//!     let registry = fencepost_core::Registry::new();
//!     fencepost_testkit::conformance::hold_elsewhere(&registry);
//! }
//! ```

mod cases;
mod elsewhere;
mod fixture;
mod layer;
mod stage;

pub use cases::CASES;
pub use elsewhere::{Holder, hold_elsewhere};
pub use fixture::{Elsewhere, Fixture, Fut, Namespace};
pub use stage::Stage;

use crate::history::{History, What};
use fencepost_core::Capabilities;
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

/// The time after which a case counts as hung.
const PATIENCE: Duration = Duration::from_secs(100);

/// A requirement of a case on the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Claims are granted in the order of the queue.
    Fair,
    /// Claims for permits are granted in that order, too.
    FairPermits,
    /// Claims that pass those that wait.
    Barging,
    /// Shared holders.
    Shared,
    /// Upgrades of read locks, and downgrades of write locks.
    Upgrade,
    /// Permits.
    Permits,
    /// Stored limits of permits.
    StoredPermits,
    /// Tokens.
    Tokens,
    /// Detached leases.
    Detach,
    /// Operators can inspect and list.
    Inspect,
    /// Operators can evict.
    Evict,
    /// Runs that the engine keeps.
    History,
    /// A lock that another process holds, which can be killed: [`Namespace::elsewhere`].
    Elsewhere,
    /// Hooks that make faults in the engine: [`Namespace::faults`].
    Faults,
    /// Hooks of a [server](crate::faults::Faults::is_server) on a network.
    Server,
    /// A hook that [steps](crate::faults::Faults::jump) the wall clock by which the engine ends leases.
    Clock,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Need::Fair => "first come, first served",
            Need::FairPermits => "first come, first served for permits",
            Need::Barging => "unfair mode",
            Need::Shared => "shared holders",
            Need::Upgrade => "upgrades of read locks",
            Need::Permits => "permits",
            Need::StoredPermits => "stored limits of permits",
            Need::Tokens => "tokens",
            Need::Detach => "detached leases",
            Need::Inspect => "a way to look",
            Need::Evict => "a way to evict",
            Need::History => "runs that the engine keeps",
            Need::Elsewhere => "another process to kill",
            Need::Faults => "hooks to trouble the engine with",
            Need::Server => "a server to kill and a network to darken",
            Need::Clock => "a wall clock to step",
        })
    }
}

impl Need {
    fn is_met(self, capabilities: &Capabilities, hook: bool) -> bool {
        match self {
            Need::Fair => capabilities.fair,
            Need::FairPermits => capabilities.fair && capabilities.fair_permits,
            Need::Barging => capabilities.barging,
            Need::Shared => capabilities.shared,
            Need::Upgrade => capabilities.upgrade,
            Need::Permits => capabilities.permits,
            Need::StoredPermits => capabilities.stored_permits,
            Need::Tokens => capabilities.tokens != fencepost_core::Tokens::None,
            Need::Detach => capabilities.detach,
            Need::Inspect => capabilities.inspect,
            Need::Evict => capabilities.evict,
            Need::History => capabilities.history,
            Need::Elsewhere | Need::Faults | Need::Server | Need::Clock => hook,
        }
    }
}

/// One case of the suite.
pub struct Case {
    /// The name, which is also the name of its test.
    pub name: &'static str,
    /// The requirements that not every engine meets.
    pub needs: &'static [Need],
    /// The body; fails by panicking.
    pub run: fn(Stage) -> Fut<'static, ()>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// How often a case about the order of the queue is run, if a waiter has lost its position because the machine has stalled.
const TRIES: u32 = 3;

/// Runs one case against an engine; [`conformance!`](crate::conformance!) makes a test of it.
///
/// # Panics
/// Panics if the case fails, hangs, leaves something behind, or is excused without a reason.
pub fn run(fixture: impl Fixture, name: &str, excused: &[&str]) {
    if crate::needs::lacks(fixture.needs()) {
        return;
    }
    let case = CASES.iter().find(|case| case.name == name).expect("the case is in the list");
    for excuse in excused {
        assert!(
            CASES.iter().any(|case| case.name == *excuse),
            "no case is called `{excuse}`: take it from the list"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        let stage = Stage::set(&fixture).await;
        let missing = stage.missing(case.needs).await;
        match (missing, excused.contains(&name)) {
            (Some(need), true) => println!("excused: {name} needs {need}"),
            (Some(need), false) => panic!(
                "`{name}` needs {need}, which the engine says it has not: list the case as excused, or mend the engine"
            ),
            (None, true) => panic!("`{name}` is listed as excused, but the engine has all that it needs"),
            (None, false) => run_in(stage, &fixture, case).await,
        }
    });
}

/// Runs a case until it passes or fails. A waiter that has lost its position proves nothing about the order.
async fn run_in(mut stage: Stage, fixture: &impl Fixture, case: &Case) {
    let Case { name, needs, run } = case;
    for tries in 1.. {
        let (end, recorder) = (stage.end(), stage.recorder().clone());
        let ran = tokio::spawn(tokio::time::timeout(PATIENCE, run(stage))).await;
        match ran {
            Ok(in_time) => {
                assert!(in_time.is_ok(), "`{name}` hangs: it was not over after {PATIENCE:?}");
                return end.check().await;
            }
            Err(panicked) => {
                let again = tries < TRIES && needs.contains(&Need::Fair) && has_requeued(&recorder.history());
                if !again {
                    std::panic::resume_unwind(panicked.into_panic());
                }
                eprintln!("`{name}` is run again, because a waiter has lost its position");
                stage = Stage::set(fixture).await;
            }
        }
    }
}

/// Whether a waiter was queued again behind the others.
fn has_requeued(history: &History) -> bool {
    let mut unseated = HashSet::new();
    history.events().iter().any(|event| match event.what {
        What::Unseated => {
            unseated.insert(event.by);
            false
        }
        What::Waiting { .. } => unseated.contains(&event.by),
        _ => false,
    })
}

/// Makes a `#[test]` of each case of the suite. The expression that gives the [`Fixture`] is evaluated for
/// each test.
///
/// `excused: [...]` names the cases that this engine cannot run; see the [module](mod@crate::conformance).
///
/// `again:` before the fixture says that another deployment of the same engine runs the whole suite. Then this one runs a sample:
/// cases that rest on the connection, and cases under load. Its other tests are ignored: `cargo xtask test --all` runs them.
#[macro_export]
macro_rules! conformance {
    (again: $fixture:expr, excused: $excused:tt) => {
        $crate::conformance_tests! { ($fixture) $excused
            exclusive cancel_at_every_await drop_needs_no_runtime lost_replies counter mixed_history close_leaves_nothing
        }

        mod whole {
            use super::*;

            $crate::conformance!(@each conformance_tests (ignore ($fixture)) $excused);
        }
    };
    ($fixture:expr) => { $crate::conformance!($fixture, excused: []); };
    ($fixture:expr, excused: [$($excused:ident),* $(,)?]) => {
        $crate::conformance!(@each conformance_tests ($fixture) [$($excused),*]);
    };
    // The names of all cases are repeated here, because the name of a test must be written out.
    (@each $callback:ident $($args:tt)*) => {
        $crate::$callback! { $($args)*
            exclusive shared permits mixed_modes try_lock_leaves_nothing all_or_none
            first_come_first_served a_waiting_writer_is_not_overtaken a_small_claim_waits_behind_a_large_one a_permit_in_line_is_not_overtaken
            readers_go_together waiting_time_is_a_bound no_waiting_time_at_all release_frees_at_once drop_frees_at_once
            drop_needs_no_runtime
            an_unfair_reader_passes_a_writer an_unfair_claim_for_few_permits_passes_one_for_many
            an_unfair_claim_that_does_not_fit_waits_in_order no_unfair_claim_passes_an_upgrade
            unfair_claims_are_refused_where_the_engine_has_none fairness_can_be_required
            a_stored_limit_counts_for_all_clients a_greater_limit_admits_waiters_at_once
            a_smaller_limit_takes_no_permits_away a_claim_over_the_limit_is_refused_and_blocks_nobody
            limits_change_under_load stored_limits_are_refused_where_the_engine_has_none
            a_reader_upgrades an_upgrade_goes_before_all_that_wait a_second_upgrade_is_refused an_upgrade_given_up_leaves_a_reader
            an_upgrader_that_is_gone_frees a_downgrade_lets_readers_in upgrades_on_a_bad_network
            cancel_at_every_await a_request_that_is_not_polled_holds_up_no_other cancel_in_the_queue cancel_of_release
            renewed_past_its_lease a_fixed_lease_ends extend lease_bounds too_few_replicas tokens_grow detach_and_attach
            a_detached_lease_ends a_detached_lease_that_has_ended_cannot_be_released what_is_attached_heeds_its_secret
            a_guard_whose_lease_is_extended_stays_renewed a_guard_whose_lease_is_given_and_extended_holds
            two_guards_of_one_lease_stay_renewed a_detachment_shortens_no_lease
            a_claim_that_waits_cannot_be_taken_up a_reader_that_waits_cannot_be_taken_up
            a_lease_opens_no_other_claim a_changed_lease_is_not_believed
            lost_when_renewals_fail release_after_loss a_release_that_comes_too_late_says_so
            a_forked_child_releases_nothing a_forked_child_holds_nothing crash_frees stop_and_continue engine_out_of_reach
            who_waits_hears_of_an_outage server_killed_and_restarted network_goes_dark network_is_dark_within_a_lease network_gets_slow a_lease_ends_behind_a_cut
            a_full_server_ends_no_lock a_clock_set_back_keeps_no_dead_holder
            inspect list_by_prefix_and_page a_longest_time_stands_beside_the_grant odd_texts_are_shown_whole a_record_of_a_later_format_is_refused
            who_waits_evicts_an_overdue_holder evict_wants_the_right_token evict_marks evict_now evict_says_who_and_why
            held_for_its_longest_time kept_for_its_least_time a_lock_in_doubt_warns several_names_are_asked_for_at_once
            a_set_holds_nothing_behind_what_it_waits_for a_set_spans_two_engines
            a_holder_enters_again a_scope_is_handed_on a_holder_does_not_wait_for_itself what_is_lost_is_not_entered
            entries_that_come_together
            a_firing_runs_once a_failed_firing_runs_again_where_that_is_asked_for a_start_counts_from_when_it_asked
            one_leader_that_all_see segments_sell_each_piece_once a_walk_comes_back_to_what_was_busy
            a_latch_opens_with_its_last_count a_count_under_way_opens_nothing members_enter_and_leave_together a_dead_member_holds_nobody_up
            what_the_engine_cannot_do_is_refused
            the_last_run_is_kept runs_that_share_or_end_unseen a_report_arrives_once
            a_record_is_written_by_its_version writers_of_a_record_overwrite_no_other
            a_write_of_a_record_may_be_dropped a_record_is_kept_for_its_time_and_deleted
            the_next_holder_sees_how_the_run_before_it_ended
            odd_names bad_names
            counter many_locks lost_replies repeated_requests a_bad_network mixed_history close_leaves_nothing
            a_close_lets_nobody_in_beside_a_holder who_waits_is_told_of_a_close the_last_client_waits_for_its_releases a_process_that_ends_frees
            a_close_tells_its_guards_and_releases_them a_close_does_not_wait_for_a_holder what_is_held_is_seen_at_the_engine
        }
    };
}

/// The tests of [`conformance!`](crate::conformance).
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ((ignore ($fixture:expr)) $excused:tt $($case:ident)*) => {
        $(
            #[test]
            #[ignore = "another deployment runs it: `cargo xtask test --all`"]
            fn $case() {
                $crate::conformance_test!($fixture, $case, $excused);
            }
        )*
    };
    (($fixture:expr) $excused:tt $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance_test!($fixture, $case, $excused);
            }
        )*
    };
}

/// The body of one test. It looks at the excused cases here, where no other list repeats.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_test {
    ($fixture:expr, $case:ident, [$($excused:ident),* $(,)?]) => {
        $crate::conformance::run($fixture, stringify!($case), &[$(stringify!($excused)),*])
    };
}

/// The names in [`conformance!`](crate::conformance).
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_names {
    ($($case:ident)*) => { [$(stringify!($case)),*] };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_becomes_a_test() {
        let listed = conformance!(@each conformance_names);
        let cases: Vec<_> = super::CASES.iter().map(|case| case.name).collect();
        assert_eq!(listed.to_vec(), cases);
    }
}
