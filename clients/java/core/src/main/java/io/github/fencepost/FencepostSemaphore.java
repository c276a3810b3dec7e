package io.github.fencepost;

import java.time.Duration;

/** As many holders as there are permits. Permits are not reentrant, and belong to no thread: closing the lease returns them. */
public final class FencepostSemaphore {
    private final Fencepost client;
    private final Request request;

    FencepostSemaphore(Fencepost client, Request request) {
        this.client = client;
        this.request = request;
    }

    /** The same semaphore with leases of this length. */
    public FencepostSemaphore withTtl(Duration ttl) {
        return new FencepostSemaphore(client, request.withTtl(ttl, request.keep()));
    }

    /** The same semaphore by a stream: the service renews the lease as long as the connection lasts. */
    public FencepostSemaphore withStream() {
        return new FencepostSemaphore(client, request.withTtl(request.ttl(), Request.Keep.STREAMED));
    }

    /** The same semaphore with another label for operators. */
    public FencepostSemaphore withHolder(String holder) {
        return new FencepostSemaphore(client, request.withHolder(holder));
    }

    /** Waits for a permit without a limit. */
    public Lease acquire() throws InterruptedException {
        return acquire(1);
    }

    /** Waits for so many permits without a limit. */
    public Lease acquire(int permits) throws InterruptedException {
        return client.acquire(request.withTake(permits), null, true);
    }

    /**
     * Waits for so many permits, with a limit; zero is a try.
     *
     * @throws FencepostException.Busy if others have them
     */
    public Lease acquire(int permits, Duration wait) throws InterruptedException {
        return client.acquire(request.withTake(permits), wait, true);
    }
}
