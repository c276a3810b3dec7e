package io.github.fencepost;

import java.time.Duration;
import java.util.Map;

/**
 * Whether a job has succeeded lately: {@link Fencepost#check}.
 *
 * @param status {@code ok}; {@code warning}: the lock is held for too long; {@code critical}: no run has succeeded lately, or the last one
 *     failed; or {@code unknown}
 * @param code the exit code of monitoring plugins, 0 for {@code ok}
 * @param message a sentence for people
 * @param goodAge how long ago the last good run ended, or null
 * @param held how long the lock has been held: zero if it is free, and null if that is unknown
 */
public record Check(String status, int code, String message, Duration goodAge, Duration held) {
    static Check of(Map<String, Object> answer) {
        return new Check(
                (String) answer.get("status"),
                ((Number) answer.get("code")).intValue(),
                (String) answer.get("message"),
                millis(answer.get("good_age_ms")),
                millis(answer.get("held_ms")));
    }

    private static Duration millis(Object value) {
        return value instanceof Number number ? Duration.ofMillis(number.longValue()) : null;
    }
}
