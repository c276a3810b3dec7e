package io.github.fencepost;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What is Java's own, beside the cases of clients/behaviour.json. */
class LocksTest {
    private TestService service;
    private Fencepost locks;

    @BeforeEach
    void start() {
        service = new TestService();
        locks = Fencepost.builder(service.url()).ttl(Duration.ofSeconds(5)).build();
    }

    @AfterEach
    void stop() {
        locks.close();
        service.close();
    }

    @Test
    void aThreadThatWritesMayReadAndOneThatReadsCannotWrite() {
        FencepostReadWriteLock lock = locks.readWriteLock("job");
        lock.writeLock().lock();
        lock.readLock().lock();
        lock.writeLock().unlock();
        assertEquals(1, service.holders("job"));
        lock.readLock().unlock();
        assertEquals(0, service.holders("job"));
        assertThrows(IllegalMonitorStateException.class, lock.readLock()::unlock);
        lock.readLock().lock();
        assertThrows(IllegalStateException.class, lock.writeLock()::lock);
        lock.readLock().unlock();
    }

    @Test
    void anInterruptWithdrawsUnlessTheLockIsUninterruptible() throws Exception {
        Lease other = locks.lock("job").acquire();
        CompletableFuture<Boolean> patient = new CompletableFuture<>();
        Thread waits = new Thread(() -> {
            FencepostLock lock = locks.lock("job");
            lock.lock();
            patient.complete(Thread.interrupted());
            lock.unlock();
        });
        CompletableFuture<Throwable> ended = new CompletableFuture<>();
        Thread gives = new Thread(() -> ended.complete(assertThrows(InterruptedException.class, locks.lock("job")::lockInterruptibly)));
        waits.start();
        gives.start();
        waitFor(2);
        gives.interrupt();
        waits.interrupt();
        ended.get(60, TimeUnit.SECONDS);
        waitFor(1);
        other.close();
        assertTrue(patient.get(60, TimeUnit.SECONDS));
        waits.join(60_000);
        assertEquals(0, service.holders("job"));
    }

    @Test
    void anInterruptLeavesNoStreamBehind() throws Exception {
        Lease other = locks.lock("job").acquire();
        for (int round = 0; round < 50; round++) {
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, locks.lock("job").withStream()::acquire);
        }
        // Its place is the last one.
        Thread last = new Thread(() -> {
            locks.lock("job").lock();
            locks.lock("job").unlock();
        });
        last.start();
        waitFor(1);
        other.close();
        last.join(60_000);
    }

    @Test
    void anInterruptInTheMomentOfTheGrantLeavesNoLockBehind() throws Exception {
        FencepostLock lock = locks.lock("job").withStream();
        long began = System.nanoTime();
        lock.acquire().close();
        long took = System.nanoTime() - began;
        for (int step = 0; step < 40; step++) {
            Thread asks = new Thread(() -> {
                try {
                    lock.acquire().close();
                } catch (InterruptedException e) {
                    // It was too early for the grant.
                }
            });
            asks.start();
            for (long end = System.nanoTime() + took * step / 40; System.nanoTime() < end; ) {
                Thread.onSpinWait();
            }
            asks.interrupt();
            asks.join();
            // What is left would stay for 4 s.
            locks.lock("job").acquire(Duration.ofSeconds(2)).close();
        }
    }

    private void waitFor(int waiters) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (service.waiters("job") != waiters) {
            assertTrue(System.nanoTime() < end, "there are other waiters");
            Thread.onSpinWait();
        }
    }

    @Test
    void aLossIsSuppressedByTheBodysErrorAlsoIfThatIsTheSameLoss() {
        FencepostException.Lost lost = assertThrows(FencepostException.Lost.class, () -> locks.lock("job").call(lease -> {
            service.evict("job", "deploy");
            lease.awaitLoss();
            assertThrows(FencepostException.Lost.class, locks.lock("job")::lock);
            lease.check();
            return null;
        }));
        assertEquals("deploy", lost.why());
        assertEquals(1, lost.getSuppressed().length);
        assertFalse(locks.lock("job").isHeldByCurrentThread());
    }

    @Test
    void theLockerKeepsItsLeaseTimeAndRefusesConditions() {
        DistributedLocker locker = locks.locker();
        locker.lock("job", TimeUnit.MILLISECONDS, 300);
        assertTrue(CompletableFuture.supplyAsync(() -> {
            boolean isLocked = locker.tryLock("job", TimeUnit.SECONDS, 60, -1);
            locker.unlock("job");
            return isLocked;
        }).join());
        assertThrows(FencepostException.Lost.class, () -> locker.unlock("job"));
        assertThrows(UnsupportedOperationException.class, locks.lock("job")::newCondition);
    }
}
