package io.github.fencepost.spring.integration;

import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostLock;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.LockRegistry;

/**
 * Locks of the lock service for Spring Integration, for example for its aggregators and its {@code LockRegistryLeaderInitiator}. The name of
 * a lock is the prefix and the text of its key.
 */
public final class FencepostLockRegistry implements LockRegistry<DistributedLock> {
    private final Fencepost locks;
    private final String prefix;

    /** Makes a registry whose names begin with this prefix, such as {@code orders/}. The client stays the caller's to close. */
    public FencepostLockRegistry(Fencepost locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public DistributedLock obtain(Object key) {
        return new Adapted(locks.lock(prefix + key));
    }

    /** A lock that is renewed, unless it is locked with a time to live. */
    private static final class Adapted implements DistributedLock {
        private final FencepostLock lock;

        Adapted(FencepostLock lock) {
            this.lock = lock;
        }

        @Override
        public void lock() {
            lock.lock();
        }

        @Override
        public void lock(Duration ttl) {
            lock.withFixedLease(ttl).lock();
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            lock.lockInterruptibly();
        }

        @Override
        public boolean tryLock() {
            return lock.tryLock();
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            return lock.tryLock(time, unit);
        }

        @Override
        public boolean tryLock(Duration wait, Duration ttl) throws InterruptedException {
            return lock.withFixedLease(ttl).tryLock(wait.toMillis(), TimeUnit.MILLISECONDS);
        }

        @Override
        public void unlock() {
            lock.unlock();
        }

        @Override
        public Condition newCondition() {
            return lock.newCondition();
        }
    }
}
