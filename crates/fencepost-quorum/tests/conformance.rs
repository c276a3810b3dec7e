//! The conformance suite on a quorum of five memory engines.

use std::sync::Arc;

use fencepost_core::{Backend, Memory, Result, Runtime};
use fencepost_quorum::Quorum;
use fencepost_testkit::conformance::{Fixture, Fut, Namespace};

struct Five;

struct Nodes(Vec<Arc<dyn Backend>>);

impl Fixture for Five {
    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        let nodes = Nodes((0..5).map(|_| Memory::new() as Arc<dyn Backend>).collect());
        Box::pin(async { Box::new(nodes) as Box<dyn Namespace> })
    }
}

impl Namespace for Nodes {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        let quorum = Quorum::new("quorum", self.0.clone(), runtime.clock().clone());
        Box::pin(async { Ok(Arc::new(quorum?) as Arc<dyn Backend>) })
    }
}

fencepost_testkit::conformance!(
    Five,
    excused: [
        an_unfair_reader_passes_a_writer, an_unfair_claim_for_few_permits_passes_one_for_many,
        an_unfair_claim_that_does_not_fit_waits_in_order, no_unfair_claim_passes_an_upgrade,
        a_stored_limit_counts_for_all_clients, a_greater_limit_admits_waiters_at_once,
        a_smaller_limit_takes_no_permits_away, a_claim_over_the_limit_is_refused_and_blocks_nobody, limits_change_under_load,
        a_reader_upgrades, an_upgrade_goes_before_all_that_wait, a_second_upgrade_is_refused,
        an_upgrade_given_up_leaves_a_reader, an_upgrader_that_is_gone_frees, a_downgrade_lets_readers_in, upgrades_on_a_bad_network,
        a_report_arrives_once, runs_that_share_or_end_unseen, the_last_run_is_kept, a_firing_runs_once,
        a_failed_firing_runs_again_where_that_is_asked_for, a_start_counts_from_when_it_asked,
        first_come_first_served, a_waiting_writer_is_not_overtaken, a_reader_that_waits_cannot_be_taken_up, a_small_claim_waits_behind_a_large_one, a_permit_in_line_is_not_overtaken,
        crash_frees, a_process_that_ends_frees, stop_and_continue, engine_out_of_reach, who_waits_hears_of_an_outage, server_killed_and_restarted, network_goes_dark,
        network_is_dark_within_a_lease, network_gets_slow, a_lease_ends_behind_a_cut, a_full_server_ends_no_lock, a_clock_set_back_keeps_no_dead_holder
    ]
);
