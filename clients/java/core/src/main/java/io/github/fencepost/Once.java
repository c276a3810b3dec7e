package io.github.fencepost;

import java.time.Duration;
import java.util.Map;

/** A job that several hosts start at the same time, and that runs once for each firing. */
public final class Once {
    private final Fencepost client;
    private final Request request;

    /** The period of the job, and whether a firing whose run failed runs again. */
    record Window(Duration period, boolean retry) {}

    Once(Fencepost client, Request request) {
        this.client = client;
        this.request = request;
    }

    /** A firing whose run failed, or whose host died, runs again when the next host starts it. */
    public Once withRetry() {
        return new Once(client, request.withOnce(new Window(request.once().period(), true)));
    }

    /** The same job with a lease of this length. */
    public Once withTtl(Duration ttl) {
        return new Once(client, request.withTtl(ttl, request.keep()));
    }

    /** The same job with another label for operators. */
    public Once withHolder(String holder) {
        return new Once(client, request.withHolder(holder));
    }

    /** What became of a start. */
    public sealed interface Outcome {
        /** The job ran here. */
        record Ran() implements Outcome {}

        /** It has run for this firing. */
        record AlreadyRun(Integer exitCode, String holder, String host) implements Outcome {}

        /** A run is under way. */
        record Running() implements Outcome {}
    }

    /** A job. */
    @FunctionalInterface
    public interface Job<E extends Exception> {
        /** Does it. */
        void run(Lease lease) throws E;
    }

    /**
     * Runs the job, unless it has run for this firing, or a run is under way. If the job throws, its run has the exit code 1.
     *
     * @throws FencepostException.Lost if the lock was lost while the job ran; suppressed if the job itself throws
     */
    public <E extends Exception> Outcome run(Job<E> job) throws E, InterruptedException {
        Lease lease;
        try {
            lease = client.acquire(request, Duration.ZERO, true);
        } catch (FencepostException.Busy e) {
            return new Outcome.Running();
        } catch (FencepostException.AlreadyRun e) {
            Map<String, Object> run = e.run();
            Integer exitCode = run.get("exit_code") instanceof Number code ? code.intValue() : null;
            return new Outcome.AlreadyRun(exitCode, (String) run.get("holder"), (String) run.get("host"));
        }
        try (AutoEnd end = new AutoEnd(lease)) {
            job.run(lease);
            end.exitCode = 0;
        }
        return new Outcome.Ran();
    }

    private static final class AutoEnd implements AutoCloseable {
        private final Lease lease;
        private int exitCode = 1;

        AutoEnd(Lease lease) {
            this.lease = lease;
        }

        @Override
        public void close() {
            lease.close(exitCode);
        }
    }
}
