//! The conformance suite on a primary and a fallback. No fault is made here: `tests/degrade.rs` of the testkit switches between them.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Memory, Result, Runtime};
use fencepost_degrade::{Degrade, DegradeLayer};
use fencepost_testkit::conformance::{Fixture, Fut, Namespace};

struct Degraded;

/// The primary and the fallback.
struct Engines(Arc<Memory>, Arc<Memory>);

impl Fixture for Degraded {
    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let engines = Engines(Memory::with_clock_tokens(0), Memory::with_clock_tokens(0));
        Box::pin(async { Box::new(engines) as Box<dyn Namespace> })
    }
}

impl Namespace for Engines {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        // A new client takes each lock at both engines for the longest lease: during the whole case.
        let options = Degrade::fallback("memory:").max_ttl(Duration::from_secs(60));
        let options = options.probe_interval(Duration::from_millis(200));
        let layer = DegradeLayer::with_fallback(self.0.clone(), self.1.clone(), &options, &runtime);
        Box::pin(async { Ok(Arc::new(layer?) as Arc<dyn Backend>) })
    }
}

fencepost_testkit::conformance!(
    Degraded,
    excused: [
        // Two engines have two queues, and a lease of one cannot be handed to another process.
        first_come_first_served, a_waiting_writer_is_not_overtaken, a_small_claim_waits_behind_a_large_one,
        a_permit_in_line_is_not_overtaken,
        an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
        an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
        a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
        a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
        a_reader_upgrades, an_upgrade_goes_before_all_that_wait,
        a_second_upgrade_is_refused, an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees,
        a_downgrade_lets_readers_in, upgrades_on_a_bad_network, detach_and_attach, a_detached_lease_ends,
        a_detached_lease_that_has_ended_cannot_be_released, what_is_attached_heeds_its_secret, a_guard_whose_lease_is_extended_stays_renewed, a_guard_whose_lease_is_given_and_extended_holds, two_guards_of_one_lease_stay_renewed, a_detachment_shortens_no_lease, a_claim_that_waits_cannot_be_taken_up, a_reader_that_waits_cannot_be_taken_up,
        a_lease_opens_no_other_claim, a_changed_lease_is_not_believed, a_latch_opens_with_its_last_count,
        a_count_under_way_opens_nothing, members_enter_and_leave_together, a_dead_member_holds_nobody_up,
        // Nor do they have one history.
        a_firing_runs_once, a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
        the_last_run_is_kept, runs_that_share_or_end_unseen, a_report_arrives_once,
        crash_frees, a_process_that_ends_frees, stop_and_continue, engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark, network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder
    ]
);
