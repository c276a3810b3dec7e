//! Pauses of refused claims.

use std::time::Duration;

use fencepost_core::ClaimId;

/// Returns 1 to 21.5 ms, other for other claims.
pub(crate) fn spread(id: ClaimId) -> Duration {
    let spread = (id.as_u128() >> 100) as u64 % 1024;
    Duration::from_micros(1_000 + 20 * spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_that_were_refused_ask_again_one_after_the_other() {
        let mut all: Vec<_> = (0..500).map(|id| spread(ClaimId::from_u128(0).derive(id))).collect();
        all.sort_unstable();
        let (first, last) = (all[0], all[499]);
        assert!(first >= Duration::from_millis(1) && first < Duration::from_millis(2), "{first:?}");
        assert!(last > Duration::from_millis(20) && last < Duration::from_millis(22), "{last:?}");
    }
}
