package io.github.fencepost.micrometer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.Lease;
import io.github.fencepost.TestService;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.time.Duration;
import org.junit.jupiter.api.Test;

class FencepostMetricsTest {
    @Test
    void eachRequestAndEachLockIsCounted() throws InterruptedException {
        SimpleMeterRegistry registry = new SimpleMeterRegistry();
        try (TestService service = new TestService();
                Fencepost locks = Fencepost.builder(service.url()).ttl(Duration.ofSeconds(5)).listener(new FencepostMetrics(registry)).build()) {
            try (Lease lease = locks.lock("job").acquire()) {
                assertThrows(FencepostException.Busy.class, () -> locks.lock("job").acquire(Duration.ZERO));
            }
            Lease evicted = locks.lock("job").acquire();
            service.evict("job", "deploy");
            assertEquals("evicted", evicted.awaitLoss().loss());
            assertThrows(FencepostException.Lost.class, evicted::close);
        }
        assertEquals(2, registry.get("fencepost.lock.wait").tag("outcome", "granted").timer().count());
        assertEquals(1, registry.get("fencepost.lock.wait").tag("outcome", "busy").timer().count());
        assertEquals(1, registry.get("fencepost.lock.held").tag("loss", "none").timer().count());
        assertEquals(1, registry.get("fencepost.lock.held").tag("loss", "evicted").timer().count());
    }
}
