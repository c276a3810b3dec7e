package io.github.fencepost;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/** What is asked of the service, and how the lease is kept. */
record Request(
        String name, String mode, Integer permits, Integer take, Duration ttl, Keep keep, String holder, String reason, Once.Window once) {
    private static final Duration SHORTEST = Duration.ofSeconds(2);

    static final String EXCLUSIVE = "exclusive";
    static final String SHARED = "shared";
    static final String PERMITS = "permits";

    /** Who keeps the lease from ending. */
    enum Keep {
        /** This client extends it. */
        EXTENDED,
        /** The service does, as long as a stream lasts. */
        STREAMED,
        /** Nobody does, so it ends after its time. */
        FIXED
    }

    Request withTtl(Duration ttl, Keep keep) {
        return new Request(name, mode, permits, take, ttl, keep, holder, reason, once);
    }

    Request withHolder(String holder) {
        return new Request(name, mode, permits, take, ttl, keep, holder, reason, once);
    }

    Request withReason(String reason) {
        return new Request(name, mode, permits, take, ttl, keep, holder, reason, once);
    }

    Request withOnce(Once.Window once) {
        return new Request(name, mode, permits, take, ttl, keep, holder, reason, once);
    }

    Request withTake(int take) {
        return new Request(name, mode, permits, take, ttl, keep, holder, reason, once);
    }

    /** The body of the request, with a {@code wait} or null. */
    Map<String, Object> body(String wait) {
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("name", name);
        body.put("mode", mode);
        body.put("permits", permits);
        body.put("take", take);
        body.put("ttl", ttlText());
        body.put("wait", wait);
        body.put("holder", holder);
        body.put("reason", reason);
        body.put("process", Host.PROCESS);
        if (once != null) {
            body.put("once", Map.of("window", text(once.period()), "retry", once.retry()));
        }
        return body;
    }

    /** The lease that is asked for. Engines refuse very short ones, and this client itself ends one that nobody renews. */
    String ttlText() {
        return text(keep == Keep.FIXED && ttl.compareTo(SHORTEST) < 0 ? SHORTEST : ttl);
    }

    static String text(Duration duration) {
        return duration.toMillis() + "ms";
    }
}
