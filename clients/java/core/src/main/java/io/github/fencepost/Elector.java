package io.github.fencepost;

/**
 * A candidate for the leadership of a name. It waits, leads until the lock is lost or {@link Candidate#lead} returns, and waits again.
 */
public final class Elector implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger(Elector.class.getName());

    private final FencepostLock lock;
    private final Candidate candidate;
    private final Thread thread;
    private volatile boolean isClosed;
    private volatile Lease term;

    /** What a candidate does. */
    @FunctionalInterface
    public interface Candidate {
        /**
         * Leads. The thread is interrupted when the leadership is lost, or the elector is closed: then it has to return soon, because the
         * next term of this candidate, and {@link Elector#close}, wait for it. If it returns before, the leadership passes on.
         */
        void lead(Lease term) throws Exception;

        /** A term has ended, and {@link #lead} has returned. The exception is what it threw, or null. By default it is logged. */
        default void follow(Exception thrown) {
            if (hasFailed(thrown)) {
                LOG.log(System.Logger.Level.WARNING, "the leader has failed, and is a candidate again", thrown);
            }
        }
    }

    Elector(FencepostLock lock, Candidate candidate) {
        this.lock = lock;
        this.candidate = candidate;
        thread = new Thread(this::loop, "fencepost-elector");
        thread.setDaemon(true);
        thread.start();
    }

    /** Whether this candidate leads now. */
    public boolean leads() {
        Lease now = term;
        return now != null && now.isHeld();
    }

    /** Ends the candidacy, and waits until the work has returned and the lock is released. */
    @Override
    public void close() {
        isClosed = true;
        thread.interrupt();
        boolean interrupted = false;
        while (thread.isAlive()) {
            try {
                thread.join();
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Whether this is a failure of the work, and not the end of its term. */
    private static boolean hasFailed(Exception thrown) {
        return thrown != null && !(thrown instanceof InterruptedException) && !(thrown instanceof FencepostException.Lost);
    }

    private void loop() {
        while (!isClosed) {
            boolean hasFailed = false;
            try (Lease lease = lock.acquire()) {
                Exception thrown = null;
                term = lease;
                Ended ended = new Ended();
                lease.onLost(lost -> ended.interrupt(thread));
                try {
                    candidate.lead(lease);
                } catch (Exception e) {
                    thrown = e;
                } finally {
                    ended.end();
                    term = null;
                }
                hasFailed = hasFailed(thrown);
                candidate.follow(thrown);
            } catch (InterruptedException | FencepostException.Lost e) {
                // It is closed, or begins again.
            } catch (RuntimeException e) {
                LOG.log(System.Logger.Level.WARNING, "the candidate has failed, and tries again: {0}", e.getMessage());
                hasFailed = true;
            }
            if (hasFailed) {
                pause();
            }
        }
    }

    /** Keeps an interrupt for a term from the next one. */
    private static final class Ended {
        private boolean hasEnded;

        synchronized void interrupt(Thread thread) {
            if (!hasEnded) {
                thread.interrupt();
            }
        }

        synchronized void end() {
            hasEnded = true;
            Thread.interrupted();
        }
    }

    private static void pause() {
        try {
            Thread.sleep(1_000);
        } catch (InterruptedException e) {
            // It is closed.
        }
    }
}
