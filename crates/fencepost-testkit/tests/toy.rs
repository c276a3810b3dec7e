//! The conformance suite on the engine of core's documentation.

#[path = "../../fencepost-core/src/backend/toy_engine.rs"]
mod toy_engine;

use std::sync::Arc;

use fencepost_core::{Backend, Result, Runtime};
use fencepost_testkit::conformance::{Fixture, Fut, Namespace};

use toy_engine::Toy;

struct Toys;

struct One(Arc<Toy>);

impl Fixture for Toys {
    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        Box::pin(async { Box::new(One(Toy::open())) as Box<dyn Namespace> })
    }
}

impl Namespace for One {
    fn open(&self, _: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let toy: Arc<dyn Backend> = Arc::<Toy>::clone(&self.0);
        Box::pin(async { Ok(toy) })
    }
}

fencepost_testkit::conformance!(Toys, excused: [
    an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
    an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
    a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
    a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
    a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
    an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
    a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
    a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
    one_leader_that_all_see,
    a_changed_lease_is_not_believed,
    a_detached_lease_ends,
    a_detached_lease_that_has_ended_cannot_be_released,
    a_lease_opens_no_other_claim,
    a_permit_in_line_is_not_overtaken,
    a_small_claim_waits_behind_a_large_one,
    a_waiting_writer_is_not_overtaken,
    crash_frees,
    a_process_that_ends_frees,
    a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
    members_enter_and_leave_together, a_dead_member_holds_nobody_up,
    detach_and_attach,
    engine_out_of_reach,
    evict_marks,
    evict_now,
    evict_says_who_and_why,
    evict_wants_the_right_token,
    first_come_first_served,
    inspect,
    list_by_prefix_and_page,
    a_longest_time_stands_beside_the_grant, odd_texts_are_shown_whole, a_record_of_a_later_format_is_refused,
    who_waits_evicts_an_overdue_holder,
    mixed_modes,
    network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder,
    network_goes_dark,
    network_is_dark_within_a_lease,
    permits,
    readers_go_together,
    server_killed_and_restarted,
    shared,
    stop_and_continue,
    what_is_attached_heeds_its_secret,
    a_guard_whose_lease_is_extended_stays_renewed,
    a_guard_whose_lease_is_given_and_extended_holds,
    two_guards_of_one_lease_stay_renewed,
    a_detachment_shortens_no_lease,
    a_claim_that_waits_cannot_be_taken_up,
    a_reader_that_waits_cannot_be_taken_up,
    who_waits_hears_of_an_outage,
]);
