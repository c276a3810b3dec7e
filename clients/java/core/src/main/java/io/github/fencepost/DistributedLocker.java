package io.github.fencepost;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;

/**
 * The interface that people know from wrappers of Redisson. As there, a lock without a lease time is renewed until it is unlocked, and one
 * with a lease time ends after it. Locks are reentrant by thread.
 */
public interface DistributedLocker {
    /** Waits without a limit. */
    Lock lock(String key);

    /** Waits without a limit. The lock ends after so many seconds. */
    Lock lock(String key, int timeout);

    /** Waits without a limit. The lock ends after that time. */
    Lock lock(String key, TimeUnit unit, int timeout);

    /** Waits for {@code waitTime}. The lock ends after {@code leaseTime}, unless that is -1: then it is renewed. */
    boolean tryLock(String key, TimeUnit unit, int waitTime, int leaseTime);

    /** Unlocks what this thread has locked. */
    void unlock(String key);

    /** Unlocks what this thread has locked. */
    default void unlock(Lock lock) {
        lock.unlock();
    }

    /** The locks of a client. */
    record OfFencepost(Fencepost client) implements DistributedLocker {
        @Override
        public Lock lock(String key) {
            Lock lock = client.lock(key);
            lock.lock();
            return lock;
        }

        @Override
        public Lock lock(String key, int timeout) {
            return lock(key, TimeUnit.SECONDS, timeout);
        }

        @Override
        public Lock lock(String key, TimeUnit unit, int timeout) {
            Lock lock = of(key, unit, timeout);
            lock.lock();
            return lock;
        }

        @Override
        public boolean tryLock(String key, TimeUnit unit, int waitTime, int leaseTime) {
            try {
                return of(key, unit, leaseTime).tryLock(waitTime, unit);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return false;
            }
        }

        @Override
        public void unlock(String key) {
            client.lock(key).unlock();
        }

        private FencepostLock of(String key, TimeUnit unit, int lease) {
            FencepostLock lock = client.lock(key);
            return lease < 0 ? lock : lock.withFixedLease(Duration.ofMillis(unit.toMillis(lease)));
        }
    }
}
