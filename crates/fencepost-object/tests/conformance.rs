//! The conformance suite on a store in memory.

use std::sync::Arc;

use fencepost_core::{Backend, Result, Runtime};
use fencepost_object::testing::MemoryStore;
use fencepost_testkit::conformance::{Fixture, Fut, Namespace};

/// A store for each case.
struct InMemory;

struct Fresh(MemoryStore);

impl Fixture for InMemory {
    fn page_row(&self) -> Option<&'static str> {
        Some("object stores")
    }

    fn namespace(&self) -> Fut<'_, Box<dyn Namespace>> {
        Box::pin(async { Box::new(Fresh(MemoryStore::default())) as Box<dyn Namespace> })
    }
}

impl Namespace for Fresh {
    fn open(&self, runtime: Runtime) -> Fut<'_, Result<Arc<dyn Backend>>> {
        Box::pin(self.0.open(runtime))
    }

    fn raise_format(&self) -> Fut<'_, bool> {
        Box::pin(async {
            for (key, text) in self.0.objects().await {
                let raised = text.replace("\"fencepost\":1", "\"fencepost\":2");
                self.0.put(&key, &raised).await.expect("it is a key");
            }
            true
        })
    }

    /// All but free locks, records, and the note about conditions.
    fn leftovers(&self) -> Fut<'_, Option<Vec<String>>> {
        Box::pin(async {
            let mut objects = self.0.objects().await;
            objects.retain(|(key, text)| {
                let is_free = key.starts_with("locks/") && !text.contains("\"holder\"");
                let stays = key == "conditions" || key.starts_with("records/");
                !is_free && !stays
            });
            Some(objects.into_iter().map(|(key, text)| format!("{key}: {text}")).collect())
        })
    }
}

// There are exclusive locks alone, in no order. No other process shares this memory, there is no server to stop, and no connection to cut.
fencepost_testkit::conformance!(InMemory, excused: [
    an_unfair_reader_passes_a_writer,
    an_unfair_claim_for_few_permits_passes_one_for_many,
    an_unfair_claim_that_does_not_fit_waits_in_order,
    no_unfair_claim_passes_an_upgrade,
    a_stored_limit_counts_for_all_clients,
    a_greater_limit_admits_waiters_at_once,
    a_smaller_limit_takes_no_permits_away,
    a_claim_over_the_limit_is_refused_and_blocks_nobody,
    limits_change_under_load,
    a_reader_upgrades,
    an_upgrade_goes_before_all_that_wait,
    a_second_upgrade_is_refused,
    an_upgrade_given_up_leaves_a_reader,
    an_upgrader_that_is_gone_frees,
    a_downgrade_lets_readers_in,
    upgrades_on_a_bad_network,
    a_permit_in_line_is_not_overtaken,
    a_small_claim_waits_behind_a_large_one,
    a_waiting_writer_is_not_overtaken, a_reader_that_waits_cannot_be_taken_up,
    crash_frees,
    a_process_that_ends_frees,
    a_latch_opens_with_its_last_count,
    a_count_under_way_opens_nothing,
    members_enter_and_leave_together,
    a_dead_member_holds_nobody_up,
    engine_out_of_reach,
    first_come_first_served,
    mixed_modes,
    network_gets_slow,
    a_lease_ends_behind_a_cut,
    a_full_server_ends_no_lock,
    a_clock_set_back_keeps_no_dead_holder,
    network_goes_dark,
    network_is_dark_within_a_lease,
    permits,
    readers_go_together,
    server_killed_and_restarted,
    shared,
    stop_and_continue,
    who_waits_hears_of_an_outage
]);
