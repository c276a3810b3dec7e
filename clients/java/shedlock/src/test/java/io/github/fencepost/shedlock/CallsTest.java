package io.github.fencepost.shedlock;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.fencepost.Fencepost;
import io.github.fencepost.TestService;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockAssert;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.support.KeepAliveLockProvider;
import org.junit.jupiter.api.Test;

/** What ShedLock gives to a job works with the provider, also below ShedLock's own renewal. */
class CallsTest {
    private static final String NAME = "nightly";

    private final LockConfiguration configuration =
            new LockConfiguration(Instant.now(), NAME, Duration.ofMinutes(1), Duration.ZERO);

    @Test
    void aJobAssertsAndExtendsItsLock() {
        try (TestService service = new TestService(); Fencepost locks = Fencepost.connect(service.url())) {
            assertRuns(service, new FencepostLockProvider(locks), () -> {
                LockAssert.assertLocked();
                LockExtender.extendActiveLock(Duration.ofMinutes(5), Duration.ZERO);
            });
        }
    }

    @Test
    void aJobIsKeptAlive() {
        ScheduledExecutorService executor = Executors.newSingleThreadScheduledExecutor();
        try (TestService service = new TestService(); Fencepost locks = Fencepost.connect(service.url())) {
            assertRuns(service, new KeepAliveLockProvider(new FencepostLockProvider(locks), executor), LockAssert::assertLocked);
        } finally {
            executor.shutdown();
        }
    }

    private void assertRuns(TestService service, LockProvider provider, Runnable job) {
        int[] holders = {0};
        new DefaultLockingTaskExecutor(provider).executeWithLock((Runnable) () -> {
            job.run();
            holders[0] = service.holders(NAME);
            assertThat(provider.lock(configuration)).isEmpty();
        }, configuration);
        assertThat(holders[0]).isEqualTo(1);
        assertThat(service.holders(NAME)).isZero();
    }
}
