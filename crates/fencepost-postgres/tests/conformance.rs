//! Runs the conformance suite on advisory locks.

use fencepost_core::Registry;
use fencepost_testkit::conformance::hold_elsewhere as hold;
use fencepost_testkit::sql::{SqlMode, SqlServer};

static ADVISORY: SqlMode = SqlMode {
    server: SqlServer::Postgres,
    open: fencepost_postgres::open,
    register: fencepost_postgres::register,
    options: "",
    has_schema: true,
    leftovers: "SELECT objid, pid FROM pg_locks WHERE locktype = 'advisory'",
    ordered_tokens: false,
    frees_at_once: true,
};

/// Runs in the other process of a test; does nothing in this one.
#[test]
fn hold_elsewhere() {
    hold(&fencepost_postgres::register(Registry::new()));
}

fencepost_testkit::conformance!(&ADVISORY, excused: [
    an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
    an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
    a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
    an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
    // An advisory lock is exclusive or shared.
    permits, mixed_modes, a_small_claim_waits_behind_a_large_one, a_permit_in_line_is_not_overtaken,
    a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
    a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
    // An advisory lock ends with its connection.
    a_changed_lease_is_not_believed, a_detached_lease_ends, a_detached_lease_that_has_ended_cannot_be_released,
    a_latch_opens_with_its_last_count, a_count_under_way_opens_nothing,
    members_enter_and_leave_together, a_dead_member_holds_nobody_up,
    a_lease_opens_no_other_claim, detach_and_attach, what_is_attached_heeds_its_secret, a_guard_whose_lease_is_extended_stays_renewed, a_guard_whose_lease_is_given_and_extended_holds, two_guards_of_one_lease_stay_renewed, a_detachment_shortens_no_lease, a_claim_that_waits_cannot_be_taken_up, a_reader_that_waits_cannot_be_taken_up,
]);
