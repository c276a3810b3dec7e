package io.github.fencepost;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock of the service as a {@link Lock}: reentrant by thread, over all objects that one client makes for a name.
 *
 * <p>There are three ways to use it. {@link #call} and {@link #run} throw what the body throws, with a loss as suppressed. {@link
 * #acquire} returns a {@link Lease} for a try-with-resources statement, which does the same, and belongs to no thread. The methods of {@link
 * Lock} suit code that has one. With them a loss that {@link #unlock} throws replaces the exception of the body.
 */
public final class FencepostLock implements Lock, AutoCloseable {
    private final Fencepost client;
    private final Request request;

    FencepostLock(Fencepost client, Request request) {
        this.client = client;
        this.request = request;
    }

    /** The same lock with a lease of this length. */
    public FencepostLock withTtl(Duration ttl) {
        return new FencepostLock(client, request.withTtl(ttl, request.keep()));
    }

    /** The same lock with a lease of this length that nobody renews: it is lost after that time. */
    public FencepostLock withFixedLease(Duration lease) {
        return new FencepostLock(client, request.withTtl(lease, Request.Keep.FIXED));
    }

    /** The same lock by a stream: the service renews it as long as the connection lasts, and tells a loss at once. */
    public FencepostLock withStream() {
        return new FencepostLock(client, request.withTtl(request.ttl(), Request.Keep.STREAMED));
    }

    /** The same lock with another label for operators. */
    public FencepostLock withHolder(String holder) {
        return new FencepostLock(client, request.withHolder(holder));
    }

    /** The same lock with a reason for operators. */
    public FencepostLock withReason(String reason) {
        return new FencepostLock(client, request.withReason(reason));
    }

    /** Work under a lock. */
    @FunctionalInterface
    public interface Work<T, E extends Exception> {
        /** Does it. */
        T with(Lease lease) throws E;
    }

    /** Waits for the lock without a limit, does the work, and releases. A loss is thrown, or suppressed if the work itself fails. */
    public <T, E extends Exception> T call(Work<T, E> work) throws E, InterruptedException {
        return call(null, work);
    }

    /**
     * The same with a limit for the wait; zero is a try, and null is none.
     *
     * @throws FencepostException.Busy if somebody else has the lock
     */
    public <T, E extends Exception> T call(Duration wait, Work<T, E> work) throws E, InterruptedException {
        client.enter(request, wait, true);
        try (this) {
            return work.with(held());
        }
    }

    /** The same for work without a result. */
    public void run(Runnable work) throws InterruptedException {
        call(lease -> {
            work.run();
            return null;
        });
    }

    /** Waits for a lease without a limit. It belongs to no thread, so the thread that has one and locks again waits for itself. */
    public Lease acquire() throws InterruptedException {
        return client.acquire(request, null, true);
    }

    /**
     * The same with a limit; zero is a try. If the service does not answer, it takes up to 15 s longer.
     *
     * @throws FencepostException.Busy if somebody else has the lock
     */
    public Lease acquire(Duration wait) throws InterruptedException {
        return client.acquire(request, wait, true);
    }

    /** Waits without a limit. An interrupt does not end the wait: {@link #lockInterruptibly} has that. */
    @Override
    public void lock() {
        try {
            client.enter(request, null, false);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Waits without a limit. An interrupt ends the wait and withdraws the request. */
    @Override
    public void lockInterruptibly() throws InterruptedException {
        client.enter(request, null, true);
    }

    /** Tries to lock without waiting. */
    @Override
    public boolean tryLock() {
        try {
            client.enter(request, Duration.ZERO, false);
            return true;
        } catch (FencepostException.Busy e) {
            return false;
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Waits for that time. An interrupt ends the wait and withdraws the request. */
    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        try {
            client.enter(request, Duration.ofMillis(Math.max(0, unit.toMillis(time))), true);
            return true;
        } catch (FencepostException.Busy e) {
            return false;
        }
    }

    /**
     * Unlocks. The last one of nested locks releases.
     *
     * @throws IllegalMonitorStateException if this thread does not have the lock
     * @throws FencepostException.Lost if the lock was lost before
     */
    @Override
    public void unlock() {
        client.leave(request);
    }

    /** The same as {@link #unlock}, for a try-with-resources statement after {@link #lock}. */
    @Override
    public void close() {
        unlock();
    }

    /** Refused: a condition would need a signal from one host to another. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of several hosts has no conditions");
    }

    /** The lease of this thread. */
    public Lease held() {
        Lease lease = client.held(request);
        if (lease == null) {
            throw new IllegalMonitorStateException("this thread does not have the lock " + request.name());
        }
        return lease;
    }

    /** Whether this thread has the lock, and has not lost it. */
    public boolean isHeldByCurrentThread() {
        Lease lease = client.held(request);
        return lease != null && lease.isHeld();
    }

    @Override
    public String toString() {
        return "FencepostLock[" + request.mode() + " " + request.name() + "]";
    }
}
