package io.github.fencepost.shedlock;

import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.Lease;
import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * Locks of the lock service for ShedLock. As with its other providers, a lock ends after {@code lockAtMostFor} and is not renewed, unless
 * you wrap the provider in ShedLock's {@code KeepAliveLockProvider}. After {@code unlock} it stays locked until {@code lockAtLeastFor}.
 */
public final class FencepostLockProvider implements ExtensibleLockProvider {
    private static final System.Logger LOG = System.getLogger(FencepostLockProvider.class.getName());

    private final Fencepost locks;

    /** Makes a provider. The client stays the caller's to close. */
    public FencepostLockProvider(Fencepost locks) {
        this.locks = locks;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        try {
            Lease lease = locks.lock(configuration.getName())
                    .withFixedLease(configuration.getLockAtMostFor())
                    .acquire(Duration.ZERO);
            return Optional.of(new Held(lease, configuration));
        } catch (FencepostException.Busy e) {
            return Optional.empty();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    private static final class Held extends AbstractSimpleLock {
        private final Lease lease;

        Held(Lease lease, LockConfiguration configuration) {
            super(configuration);
            this.lease = lease;
        }

        @Override
        protected void doUnlock() {
            Duration rest = Duration.between(java.time.Instant.now(), lockConfiguration.getLockAtLeastUntil());
            try {
                if (rest.toMillis() > 0) {
                    lease.closeAfter(rest);
                } else {
                    lease.close();
                }
            } catch (FencepostException.Lost e) {
                // ShedLock unlocks in a `finally`, where an exception would replace that of the job.
                LOG.log(System.Logger.Level.WARNING, "the job ran beyond its lock: {0}", e.getMessage());
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration extended) {
            try {
                lease.extend(extended.getLockAtMostFor());
                return Optional.of(new Held(lease, extended));
            } catch (FencepostException.Lost e) {
                return Optional.empty();
            }
        }
    }
}
