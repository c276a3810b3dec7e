package io.github.fencepost;

import io.github.fencepost.FencepostException.Lost;
import java.io.IOException;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * A lock that is held. It is renewed in the background until {@link #close}.
 *
 * <p>Work under the lock calls {@link #check} before each step that cannot be undone, and gives the {@link #token} to what the lock
 * protects. All methods may be called by all threads.
 */
public final class Lease implements AutoCloseable {
    private static final long SHORTEST_PAUSE = 100;
    private static final long LONGEST_PAUSE = 1_000;
    private static final long STEP = 10;

    private final Fencepost client;
    private volatile Request request;
    private final String lease;
    private final long token;
    private final Moment granted;
    private final CompletableFuture<Lost> lost = new CompletableFuture<>();
    private AutoCloseable stream;
    private Moment sent;
    private long valid;
    private boolean isReleased;
    private ScheduledFuture<?> end;
    private ScheduledFuture<?> renewal;

    Lease(Fencepost client, Request request, Map<String, Object> grant, Moment sent, AutoCloseable stream) {
        this.client = client;
        this.request = request;
        this.lease = (String) grant.get("lease");
        this.token = ((Number) grant.get("token")).longValue();
        this.granted = sent;
        this.stream = stream;
        prolong(sent, grant);
        renewAfter(valid / 3 - sent.elapsed(), SHORTEST_PAUSE);
    }

    /** The name of the lock. */
    public String name() {
        return request.name();
    }

    /** The fencing token, which grows with each grant of this name. What the lock protects can refuse a smaller one. */
    public long token() {
        return token;
    }

    /** Whether the lock is held now. This asks the clock and not the service, so it costs microseconds. */
    public synchronized boolean isHeld() {
        if (!isReleased && !lost.isDone() && sent.elapsed() >= valid) {
            lose("expired", null);
        }
        return !isReleased && !lost.isDone();
    }

    /** Throws {@link Lost} unless the lock is held now. */
    public void check() {
        if (!isHeld()) {
            throw lost.isDone() ? lost.join().again(name()) : new Lost(name(), "released", null);
        }
    }

    /** How long the lock is held for certain, if the service does not answer any more. Zero if it is not held. */
    public synchronized Duration remaining() {
        return isHeld() ? Duration.ofMillis(Math.max(0, valid - sent.elapsed())) : Duration.ZERO;
    }

    /** How the lock was lost, if it was. */
    public Optional<Lost> loss() {
        isHeld();
        return Optional.ofNullable(lost.getNow(null));
    }

    /**
     * Calls this in a background thread when the lock is lost, or at once if it is lost already. To interrupt the work, pass {@code l ->
     * worker.interrupt()}. It is not called after a release.
     */
    public void onLost(Consumer<Lost> told) {
        lost.thenAcceptAsync(told, client::background);
    }

    /** Waits until the lock is lost. A release by another thread does not end the wait. */
    public Lost awaitLoss() throws InterruptedException {
        try {
            return lost.get();
        } catch (ExecutionException e) {
            throw new IllegalStateException(e);
        }
    }

    /**
     * Sets the length of the lease, which counts from now. A lease that is renewed needs this only to have another length from now on.
     *
     * @throws Lost if the lock was lost before
     */
    public void extend(Duration ttl) {
        check();
        synchronized (this) {
            request = request.withTtl(ttl, request.keep());
        }
        try {
            Service.Call call = Service.Call.of("/v1/leases/extend", Map.of("lease", lease, "ttl", request.ttlText()));
            long patience = Math.min(remaining().toMillis(), Service.PATIENCE);
            Service.Answer answer = client.service.repeat(call, Service.NO_WAIT, patience, false, client.service.new Tries());
            if (answer.isCode("lease-ended")) {
                Lost told = FencepostException.lost(name(), answer.body());
                lose(told.loss(), told.why());
                throw told;
            } else if (answer.status() != 200) {
                throw FencepostException.of(name(), answer.status(), answer.body());
            }
            prolong(answer.sent(), answer.body());
            check();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Gives the lock back after that time, for a job that is to hold it for a while after its end. Nothing renews it then. */
    public void closeAfter(Duration time) {
        synchronized (this) {
            if (renewal != null) {
                renewal.cancel(false);
            }
            request = request.withTtl(request.ttl(), Request.Keep.FIXED);
        }
        extend(time);
        synchronized (this) {
            isReleased = true;
            end.cancel(false);
            Runnable release = () -> releaseAfterLoss(Map.of("lease", lease));
            client.timer.schedule(() -> client.background(release), valid - sent.elapsed(), TimeUnit.MILLISECONDS);
        }
        client.leases.remove(this);
        client.listener.ended(name(), Duration.ofMillis(granted.elapsed()), null);
    }

    /**
     * Releases the lock. An interrupt does not keep it from that.
     *
     * @throws Lost if the lock was lost before. In a try-with-resources statement whose body fails this one is suppressed, and the body's
     *     own exception is thrown.
     * @throws FencepostException.Unreachable if the service does not answer: the lock is free when its lease ends
     */
    @Override
    public void close() {
        close(null);
    }

    /** Ends the run of a firing with its exit code, or a lock without one. */
    void close(Integer exitCode) {
        boolean wasHeld;
        long left;
        synchronized (this) {
            if (isReleased) {
                return;
            }
            wasHeld = isHeld();
            isReleased = true;
            left = valid - sent.elapsed();
            end.cancel(false);
            if (renewal != null) {
                renewal.cancel(false);
            }
        }
        client.leases.remove(this);
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("lease", lease);
        body.put("exit_code", exitCode);
        Lost loss = lost.getNow(null);
        try {
            if (wasHeld) {
                loss = release(body, Math.min(left, Service.PATIENCE));
            } else {
                // Evicted, it is free for the next one as soon as its holder has stopped.
                client.background(() -> releaseAfterLoss(body));
            }
        } finally {
            if (wasHeld) {
                endStream();
            }
            client.listener.ended(name(), Duration.ofMillis(granted.elapsed()), loss);
        }
        if (loss != null) {
            throw loss.again(name());
        }
    }

    private Lost release(Map<String, Object> body, long patience) {
        try {
            Service.Tries tries = client.service.new Tries();
            Service.Call call = Service.Call.of("/v1/leases/release", body);
            Service.Answer answer = client.service.repeat(call, Service.NO_WAIT, patience, false, tries);
            if (answer.status() < 300) {
                return null;
            }
            if (!answer.isCode("lease-ended")) {
                throw FencepostException.of(name(), answer.status(), answer.body());
            }
            // A repeated release finds the lease ended by the first one, whose answer was lost.
            boolean isOwn = tries.mayHaveBeenReceived() && !(answer.body().get("loss") instanceof String);
            return isOwn ? null : FencepostException.lost(name(), answer.body());
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private void releaseAfterLoss(Map<String, Object> body) {
        try {
            client.service.once(Service.Call.of("/v1/leases/release", body), Service.LIMIT);
        } catch (IOException | InterruptedException | RuntimeException e) {
            // The lease ends at its time.
        } finally {
            endStream();
        }
    }

    private void endStream() {
        try {
            if (stream != null) {
                stream.close();
            }
        } catch (Exception e) {
            // It has ended.
        }
    }

    /** Believes in the lock until {@code valid_ms} after the request was sent. What is lost stays lost. */
    synchronized void prolong(Moment sent, Map<String, Object> answer) {
        if (isReleased || this.sent != null && !isHeld()) {
            return;
        }
        this.sent = sent;
        long told = ((Number) answer.get("valid_ms")).longValue();
        this.valid = request.keep() == Request.Keep.FIXED ? Math.min(told, request.ttl().toMillis()) : told;
        endAfter(valid - sent.elapsed());
    }

    /** It looks each second, because timers stop while the machine is suspended. */
    private synchronized void endAfter(long left) {
        if (end != null) {
            end.cancel(false);
        }
        end = client.timer.schedule(() -> {
            synchronized (this) {
                // The timer's clock is another one.
                if (isHeld()) {
                    endAfter(Math.max(STEP, valid - this.sent.elapsed()));
                } else if (request.keep() == Request.Keep.FIXED) {
                    // The engine's lease is a little longer.
                    client.background(() -> releaseAfterLoss(Map.of("lease", lease)));
                }
            }
        }, Math.min(Math.max(0, left), LONGEST_PAUSE), TimeUnit.MILLISECONDS);
    }

    synchronized void lose(String loss, String why) {
        if (!isReleased) {
            lost.complete(new Lost(name(), loss, why));
        }
    }

    private synchronized void renewAfter(long left, long pause) {
        if (!isReleased && !lost.isDone() && request.keep() == Request.Keep.EXTENDED) {
            renewal = client.timer.schedule(() -> client.background(() -> renew(pause)), Math.max(0, left), TimeUnit.MILLISECONDS);
        }
    }

    private void renew(long pause) {
        if (!isHeld()) {
            return;
        }
        try {
            Map<String, Object> body = Map.of("lease", lease, "ttl", request.ttlText());
            // Half of what is left, so that there is time for another address.
            long limit = Math.max(SHORTEST_PAUSE, Math.min(Service.LIMIT, remaining().toMillis() / 2));
            Service.Answer answer = client.service.once(Service.Call.of("/v1/leases/extend", body), limit);
            if (answer.status() == 200) {
                prolong(answer.sent(), answer.body());
                renewAfter(((Number) answer.body().get("valid_ms")).longValue() / 3 - answer.sent().elapsed(), SHORTEST_PAUSE);
                return;
            }
            if (answer.isCode("lease-ended")) {
                Lost told = FencepostException.lost(name(), answer.body());
                lose(told.loss(), told.why());
                return;
            }
        } catch (IOException | RuntimeException e) {
            // It is tried again until the lease ends.
        } catch (InterruptedException e) {
            return;
        }
        renewAfter(pause, Math.min(2 * pause, LONGEST_PAUSE));
    }
}
