//! Bugs to plant: the checker has to find each of them.

/// A bug that the engine can be given, to see that the checker finds it.
#[cfg(feature = "planted")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Bug {
    /// A release frees the grant of any holder of the name, not its own.
    ReleaseByName,
    /// A woken waiter takes the lock without looking whether it won.
    NoRecheck,
    /// Leases end by the wall clock, which steps.
    WallClockDeadline,
    /// A token is given again after its grant was released.
    TokenReuse,
    /// The token is drawn when the claim is made, before its request is on its way, not when it is granted.
    TokenBeforeGrant,
    /// A renewal is accepted although the lease had ended and the lock was granted again.
    LateRenewal,
    /// A grant to a claim that waits now and then wakes nobody.
    LostWakeup,
    /// A waiter that gives up stays in queue.
    OrphanedWaiter,
    /// Two claims can have the same id.
    SharedId,
    /// Readers overtake a waiting writer.
    StarvingWriter,
    /// An upgrade does not wait for the other readers.
    UpgradeBesideReaders,
    /// Readers are admitted while an upgrade waits.
    UpgradeOvertaken,
    /// A second upgrade is not refused.
    TwoUpgrades,
}

/// The bug that this engine has, if any.
#[derive(Clone, Copy, Default)]
pub(super) struct Planted {
    #[cfg(feature = "planted")]
    bug: Option<Bug>,
}

#[cfg(feature = "planted")]
impl Planted {
    pub(super) fn new(bug: Bug) -> Planted {
        Planted { bug: Some(bug) }
    }

    pub(super) fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

/// Is this bug planted? Always false, and gone from the code, without the feature `planted`.
macro_rules! planted {
    ($planted:expr, $bug:ident) => {{
        #[cfg(feature = "planted")]
        let answer = $planted.has($crate::memory::Bug::$bug);
        #[cfg(not(feature = "planted"))]
        let answer = {
            let _ = &$planted;
            false
        };
        answer
    }};
}
pub(super) use planted;
