package io.github.fencepost.spring.integration;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.TestService;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.integration.leader.Context;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;
import org.springframework.integration.support.locks.DistributedLock;

class FencepostLockRegistryTest {
    private TestService service;
    private Fencepost first;
    private Fencepost second;
    private final BlockingQueue<String> events = new LinkedBlockingQueue<>();

    @BeforeEach
    void start() {
        service = new TestService();
        first = Fencepost.builder(service.url()).ttl(Duration.ofSeconds(5)).build();
        second = Fencepost.builder(service.url()).ttl(Duration.ofSeconds(5)).build();
    }

    @AfterEach
    void stop() {
        first.close();
        second.close();
        service.close();
    }

    private LockRegistryLeaderInitiator candidate(Fencepost locks, String id) {
        DefaultCandidate candidate = new DefaultCandidate(id, "role") {
            @Override
            public void onGranted(Context context) {
                events.add(id + " leads");
            }

            @Override
            public void onRevoked(Context context) {
                events.add(id + " follows");
            }
        };
        LockRegistryLeaderInitiator initiator = new LockRegistryLeaderInitiator(new FencepostLockRegistry(locks, "leader/"), candidate);
        initiator.setHeartBeatMillis(100);
        initiator.setBusyWaitMillis(100);
        return initiator;
    }

    private String next() throws InterruptedException {
        return events.poll(60, TimeUnit.SECONDS);
    }

    @Test
    void theLeaderInitiatorElectsOneOfTwoAndHandsOn() throws InterruptedException {
        LockRegistryLeaderInitiator one = candidate(first, "one");
        LockRegistryLeaderInitiator two = candidate(second, "two");
        one.start();
        assertEquals("one leads", next());
        two.start();
        assertTrue(one.getContext().isLeader());
        assertFalse(two.getContext().isLeader());
        one.stop();
        // The initiator unlocks before it tells its own candidate, so the other one may lead first.
        assertEquals(Set.of("one follows", "two leads"), Set.of(next(), next()));
        two.stop();
        assertEquals("two follows", next());
        assertEquals(0, service.holders("leader/role"));
    }

    @Test
    void anotherThreadDoesNotGetInAndNestedLocksCount() {
        DistributedLock lock = new FencepostLockRegistry(first, "").obtain("job");
        lock.lock();
        lock.lock();
        assertFalse(CompletableFuture.supplyAsync(() -> new FencepostLockRegistry(first, "").obtain("job").tryLock()).join());
        lock.unlock();
        assertEquals(1, service.holders("job"));
        lock.unlock();
        assertEquals(0, service.holders("job"));
    }

    @Test
    void aTimeToLiveEndsTheLock() throws InterruptedException {
        FencepostLockRegistry registry = new FencepostLockRegistry(first, "");
        DistributedLock lock = registry.obtain("job");
        lock.lock(Duration.ofSeconds(1));
        assertTrue(new FencepostLockRegistry(second, "").obtain("job").tryLock(Duration.ofSeconds(60), Duration.ofSeconds(30)));
        assertThrows(FencepostException.Lost.class, lock::unlock);
    }
}
