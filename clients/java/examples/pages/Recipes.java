import static java.util.concurrent.TimeUnit.SECONDS;

import io.github.fencepost.Elector;
import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.FencepostLock;
import io.github.fencepost.Lease;
import io.github.fencepost.Once;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;

/** The calls of docs/recipes.md. */
public class Recipes {
    private static int pieces = 3;

    public static void main(String[] args) throws InterruptedException {
        try (Fencepost locks = Fencepost.connect()) {
            FencepostLock lock = locks.lock("x");
            long token;
            try (Lease lease = lock.acquire()) {
                lease.check();
                token = lease.token();
                // A second one waits in vain, although the thread is the same: a lease belongs to no thread.
                expect(!lock.tryLock(1, SECONDS), "busy");
                lease.close();                   // the block does it, too
            }

            expect(lock.tryLock(3, SECONDS), "free");
            lock.unlock();
            expect(lock.withFixedLease(Duration.ofSeconds(10)).tryLock(3, SECONDS), "free");
            lock.unlock();

            lock.lock();
            lock.lock();
            expect(lock.held().token() > token, "the token grows");
            lock.unlock();
            lock.unlock();

            try (Lease first = locks.lock("a").acquire(); Lease second = locks.lock("b").acquire()) {
                expect(first.isHeld() && second.isHeld(), "both");
            }

            lock.run(() -> sell());
            int left = lock.call(lease -> sell());
            expect(left == 1, "two were sold");
            FencepostLock stock = locks.lock("x");
            int sold = stock.call(lease -> {
                Thread worker = Thread.currentThread();
                lease.onLost(lost -> worker.interrupt());    // a loss interrupts the work
                lease.check();
                return sell(1);
            });
            expect(sold == 1 && pieces == 0, "all are sold");

            Lease segment = freeSegment(locks);
            expect(segment.name().equals("x/0"), "the first free one");
            segment.close();

            Once.Job<RuntimeException> job = lease -> sell();
            expect(locks.once("nightly", Duration.ofHours(24)).run(job) instanceof Once.Outcome.Ran, "ran");
            expect(locks.once("nightly", Duration.ofHours(24)).run(job) instanceof Once.Outcome.AlreadyRun, "ran before");

            CountDownLatch leads = new CountDownLatch(1);
            Elector.Candidate candidate = term -> {
                leads.countDown();
                term.awaitLoss();
            };
            try (Elector elector = locks.elect("leader", candidate)) {
                leads.await();
                expect(elector.leads(), "the leader");
            }
        }
    }

    /** A segment lock by hand. */
    private static Lease freeSegment(Fencepost locks) throws InterruptedException {
        for (int segment = 0; segment < 20; segment++) {
            try {
                return locks.lock("x/" + segment).acquire(Duration.ZERO);
            } catch (FencepostException.Busy taken) {
                // The next one.
            }
        }
        return locks.lock("x/0").acquire();
    }

    private static int sell() {
        return --pieces;
    }

    private static int sell(int wanted) {
        pieces -= wanted;
        return wanted;
    }

    private static void expect(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError("not true: " + what);
        }
    }
}
