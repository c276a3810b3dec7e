//! The cases, by subject.

mod barging;
mod cancel;
mod closed;
mod closing;
mod coordination;
mod forked;
mod gathering;
mod leases;
mod line;
mod load;
mod loss;
mod modes;
mod names;
mod operators;
mod permits;
mod policies;
mod records;
mod reentry;
mod runs;
mod secrets;
mod server;
mod succession;
mod upgrade;

use super::{Case, Need};

macro_rules! cases {
    ($($module:ident::$name:ident [$($need:ident),*])*) => {
        /// All cases.
        pub const CASES: &[Case] = &[$(Case {
            name: stringify!($name),
            needs: &[$(Need::$need),*],
            run: |stage| Box::pin($module::$name(stage)),
        }),*];
    };
}

// The list in `conformance!` has the same names; a test compares them.
cases! {
    modes::exclusive []
    modes::shared [Shared]
    modes::permits [Permits]
    modes::mixed_modes [Shared, Permits]
    modes::try_lock_leaves_nothing []
    modes::all_or_none []
    line::first_come_first_served [Fair]
    line::a_waiting_writer_is_not_overtaken [Fair, Shared]
    line::a_small_claim_waits_behind_a_large_one [FairPermits, Permits]
    line::a_permit_in_line_is_not_overtaken [FairPermits, Permits]
    line::readers_go_together [Shared]
    line::waiting_time_is_a_bound []
    line::no_waiting_time_at_all []
    line::release_frees_at_once []
    line::drop_frees_at_once []
    line::drop_needs_no_runtime []
    barging::an_unfair_reader_passes_a_writer [Barging, Shared]
    barging::an_unfair_claim_for_few_permits_passes_one_for_many [Barging, Permits]
    barging::an_unfair_claim_that_does_not_fit_waits_in_order [Barging, Fair]
    barging::no_unfair_claim_passes_an_upgrade [Barging, Upgrade]
    barging::unfair_claims_are_refused_where_the_engine_has_none []
    barging::fairness_can_be_required []
    permits::a_stored_limit_counts_for_all_clients [Permits, StoredPermits]
    permits::a_greater_limit_admits_waiters_at_once [Permits, StoredPermits]
    permits::a_smaller_limit_takes_no_permits_away [Permits, StoredPermits]
    permits::a_claim_over_the_limit_is_refused_and_blocks_nobody [Permits, StoredPermits]
    permits::limits_change_under_load [Permits, StoredPermits]
    permits::stored_limits_are_refused_where_the_engine_has_none []
    upgrade::a_reader_upgrades [Upgrade]
    upgrade::an_upgrade_goes_before_all_that_wait [Upgrade]
    upgrade::a_second_upgrade_is_refused [Upgrade]
    upgrade::an_upgrade_given_up_leaves_a_reader [Upgrade]
    upgrade::an_upgrader_that_is_gone_frees [Upgrade]
    upgrade::a_downgrade_lets_readers_in [Upgrade]
    upgrade::upgrades_on_a_bad_network [Upgrade]
    cancel::cancel_at_every_await []
    cancel::a_request_that_is_not_polled_holds_up_no_other []
    cancel::cancel_in_the_queue []
    cancel::cancel_of_release []
    leases::renewed_past_its_lease []
    leases::a_fixed_lease_ends []
    leases::extend []
    leases::lease_bounds []
    leases::too_few_replicas []
    leases::tokens_grow [Tokens]
    leases::detach_and_attach [Detach]
    leases::a_detached_lease_ends [Detach]
    leases::a_detached_lease_that_has_ended_cannot_be_released [Detach]
    leases::what_is_attached_heeds_its_secret [Detach]
    leases::a_guard_whose_lease_is_extended_stays_renewed [Detach]
    leases::a_guard_whose_lease_is_given_and_extended_holds [Detach]
    leases::two_guards_of_one_lease_stay_renewed [Detach]
    leases::a_detachment_shortens_no_lease [Detach, Inspect]
    leases::a_claim_that_waits_cannot_be_taken_up [Detach]
    leases::a_reader_that_waits_cannot_be_taken_up [Detach, Shared, Fair]
    secrets::a_lease_opens_no_other_claim [Detach]
    secrets::a_changed_lease_is_not_believed [Detach]
    loss::lost_when_renewals_fail []
    loss::release_after_loss []
    loss::a_release_that_comes_too_late_says_so []
    loss::a_forked_child_releases_nothing []
    forked::a_forked_child_holds_nothing []
    loss::crash_frees [Elsewhere]
    loss::stop_and_continue [Elsewhere]
    loss::engine_out_of_reach [Faults]
    loss::who_waits_hears_of_an_outage [Server, Inspect]
    server::server_killed_and_restarted [Server]
    server::network_goes_dark [Server]
    server::network_is_dark_within_a_lease [Server]
    server::network_gets_slow [Server]
    server::a_lease_ends_behind_a_cut [Server]
    server::a_full_server_ends_no_lock [Server]
    server::a_clock_set_back_keeps_no_dead_holder [Elsewhere, Inspect, Clock]
    operators::inspect [Inspect]
    operators::list_by_prefix_and_page [Inspect]
    operators::a_longest_time_stands_beside_the_grant [Inspect]
    operators::odd_texts_are_shown_whole [Inspect]
    operators::a_record_of_a_later_format_is_refused [Inspect]
    operators::who_waits_evicts_an_overdue_holder [Inspect, Evict]
    operators::evict_wants_the_right_token [Evict]
    operators::evict_marks [Evict]
    operators::evict_now [Evict]
    operators::evict_says_who_and_why [Evict]
    policies::held_for_its_longest_time []
    policies::kept_for_its_least_time []
    policies::a_lock_in_doubt_warns []
    policies::several_names_are_asked_for_at_once []
    policies::a_set_holds_nothing_behind_what_it_waits_for []
    policies::a_set_spans_two_engines []
    reentry::a_holder_enters_again []
    reentry::a_scope_is_handed_on []
    reentry::a_holder_does_not_wait_for_itself []
    reentry::what_is_lost_is_not_entered []
    reentry::entries_that_come_together []
    coordination::a_firing_runs_once [Inspect, History]
    coordination::a_failed_firing_runs_again_where_that_is_asked_for [Inspect, History]
    coordination::a_start_counts_from_when_it_asked [Inspect, History]
    coordination::one_leader_that_all_see [Tokens, Inspect]
    coordination::segments_sell_each_piece_once []
    coordination::a_walk_comes_back_to_what_was_busy []
    gathering::a_latch_opens_with_its_last_count [Permits, Detach, Inspect]
    gathering::a_count_under_way_opens_nothing [Permits, Detach, Inspect]
    gathering::members_enter_and_leave_together [Permits, Detach, Inspect, Tokens]
    gathering::a_dead_member_holds_nobody_up [Permits, Detach, Inspect, Tokens]
    gathering::what_the_engine_cannot_do_is_refused []
    runs::the_last_run_is_kept [Inspect, History]
    runs::runs_that_share_or_end_unseen [Inspect, History]
    runs::a_report_arrives_once [Inspect, History]
    records::a_record_is_written_by_its_version []
    records::writers_of_a_record_overwrite_no_other []
    records::a_write_of_a_record_may_be_dropped []
    records::a_record_is_kept_for_its_time_and_deleted []
    succession::the_next_holder_sees_how_the_run_before_it_ended []
    names::odd_names []
    names::bad_names []
    load::counter []
    load::many_locks []
    load::lost_replies []
    load::repeated_requests []
    load::a_bad_network []
    load::mixed_history []
    load::close_leaves_nothing []
    closing::a_close_lets_nobody_in_beside_a_holder []
    closing::who_waits_is_told_of_a_close []
    closing::the_last_client_waits_for_its_releases []
    closing::a_process_that_ends_frees [Elsewhere]
    closed::a_close_tells_its_guards_and_releases_them []
    closed::a_close_does_not_wait_for_a_holder []
    load::what_is_held_is_seen_at_the_engine []
}
