import static java.util.concurrent.TimeUnit.SECONDS;

import io.github.fencepost.Elector;
import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.FencepostLock;
import io.github.fencepost.Lease;
import io.github.fencepost.Once;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;

/** The calls of docs/coming-from.md. */
public class ComingFrom {
    public static void main(String[] args) throws InterruptedException {
        try (Fencepost locks = Fencepost.builder().holder("shop 1").build()) {
            redisson(locks);
            curator(locks);
            shedLock(locks);
        }
    }

    private static void redisson(Fencepost locks) throws InterruptedException {
        FencepostLock lock = locks.lock("x");
        lock.lock();
        lock.lock();                             // reentrant by thread
        expect(lock.isHeldByCurrentThread(), "held");
        expect(lock.held().token() > 0, "a token");
        Duration left = lock.held().remaining();
        expect(left.compareTo(Duration.ofSeconds(20)) > 0, "renewed at a third of 30 s");
        lock.unlock();
        expect(lock.isHeldByCurrentThread(), "held after the inner unlock");
        lock.unlock();
        expect(!lock.isHeldByCurrentThread(), "released");

        lock.withFixedLease(Duration.ofSeconds(10)).lock();
        expect(lock.held().remaining().compareTo(Duration.ofSeconds(10)) <= 0, "at most 10 s");
        lock.unlock();
        for (boolean granted : new boolean[] {
                lock.tryLock(),
                lock.tryLock(3, SECONDS),
                lock.withFixedLease(Duration.ofSeconds(10)).tryLock(3, SECONDS),
                lock.withTtl(Duration.ofSeconds(30)).tryLock()}) {
            expect(granted, "granted");
            lock.unlock();
        }

        // RedissonMultiLock by hand: sorted by name.
        try (Lease a = locks.lock("a").acquire();
                Lease b = locks.lock("b").acquire()) {
            expect(a.isHeld() && b.isHeld(), "both");
        }

        var pages = locks.readWriteLock("x");
        pages.writeLock().lock();
        pages.readLock().lock();                 // who writes may read
        pages.readLock().unlock();
        pages.writeLock().unlock();
        try (Lease one = locks.semaphore("x", 2).acquire(); Lease other = locks.semaphore("x", 2).acquire()) {
            expect(one.isHeld() && other.isHeld(), "two permits");
            busy(() -> locks.semaphore("x", 2).acquire(1, Duration.ZERO));
        }
    }

    private static void curator(Fencepost locks) throws InterruptedException {
        FencepostLock lock = locks.lock("x");
        lock.lockInterruptibly();
        expect(lock.isHeldByCurrentThread(), "held");
        lock.unlock();
        Thread worker = Thread.currentThread();
        try (Lease lease = lock.acquire()) {
            lease.onLost(lost -> worker.interrupt());
            lease.check();
        }
        try (Lease only = locks.semaphore("x", 1).acquire()) {
            expect(only.isHeld(), "the only permit");
        }
        CountDownLatch leads = new CountDownLatch(1);
        Elector.Candidate candidate = term -> {
            leads.countDown();
            term.awaitLoss();
        };
        try (Elector elector = locks.elect("x", candidate)) {
            leads.await();
            expect(elector.leads(), "the leader");
        }
    }

    private static void shedLock(Fencepost locks) throws InterruptedException {
        Once.Job<RuntimeException> job = lease -> lease.extend(Duration.ofMinutes(5));
        expect(locks.once("x", Duration.ofHours(24)).run(job) instanceof Once.Outcome.Ran, "ran");
        expect(locks.once("x", Duration.ofHours(24)).run(job) instanceof Once.Outcome.AlreadyRun, "ran before");
    }

    private interface Request {
        Lease make() throws InterruptedException;
    }

    private static void busy(Request request) throws InterruptedException {
        try (Lease lease = request.make()) {
            throw new AssertionError("granted to one too many: " + lease.name());
        } catch (FencepostException.Busy expected) {
            // Others hold it.
        }
    }

    private static void expect(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError("not true: " + what);
        }
    }
}
