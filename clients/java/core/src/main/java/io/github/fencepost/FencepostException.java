package io.github.fencepost;

import java.util.List;
import java.util.Map;

/** Why there is no lock. Each kind is a class of its own. */
public sealed class FencepostException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String code;

    FencepostException(String code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    /** The code of the service, such as {@code busy} or {@code forbidden}. */
    public String code() {
        return code;
    }

    /** Somebody else has the lock, and the request did not wait, or not long enough: {@link TimedOut}. */
    public static sealed class Busy extends FencepostException {
        private static final long serialVersionUID = 1;

        private final transient List<String> holders;

        Busy(String code, String message, List<String> holders) {
            super(code, message, null);
            this.holders = holders;
        }

        /** The labels of those who hold the lock, if the access token may read the name. */
        public List<String> holders() {
            return holders == null ? List.of() : holders;
        }
    }

    /** The wait is over, and somebody else has the lock. */
    public static final class TimedOut extends Busy {
        private static final long serialVersionUID = 1;

        TimedOut(String message, List<String> holders) {
            super("timed-out", message, holders);
        }
    }

    /** The lock was held, and is lost: what was done under it may have met the work of another holder. */
    public static final class Lost extends FencepostException {
        private static final long serialVersionUID = 1;

        private final String loss;
        private final String why;

        Lost(String name, String loss, String why) {
            super("lease-ended", "the lock " + name + " is lost: " + loss + (why == null ? "" : " (" + why + ")"), null);
            this.loss = loss;
            this.why = why;
        }

        /** A new one for each throw: an exception cannot be suppressed by itself. */
        Lost again(String name) {
            return new Lost(name, loss, why);
        }

        /** How: {@code expired}, {@code evicted}, {@code deleted}, and others of the service. */
        public String loss() {
            return loss;
        }

        /** The reason that an operator gave, or null. */
        public String why() {
            return why;
        }
    }

    /** The service does not accept the access token, or the access token does not allow this for this name. */
    public static final class Denied extends FencepostException {
        private static final long serialVersionUID = 1;

        Denied(String code, String message) {
            super(code, message, null);
        }
    }

    /** No address of the service gave an answer for 10 s. */
    public static final class Unreachable extends FencepostException {
        private static final long serialVersionUID = 1;

        Unreachable(String message, Throwable cause) {
            super("unreachable", message, cause);
        }
    }

    /** No known authority has signed the certificate of the service, or it is for another host. */
    public static final class UntrustedCertificate extends FencepostException {
        private static final long serialVersionUID = 1;

        UntrustedCertificate(String message, Throwable cause) {
            super("certificate", message, cause);
        }
    }

    /** A job has run for this firing: {@link Once#run} returns it. */
    static final class AlreadyRun extends FencepostException {
        private static final long serialVersionUID = 1;

        private final transient Map<String, Object> run;

        AlreadyRun(String message, Map<String, Object> run) {
            super("already-run", message, null);
            this.run = run;
        }

        Map<String, Object> run() {
            return run;
        }
    }

    /** The request breaks a rule, which the message names, or the engine does not have what it asks for. */
    public static final class Invalid extends FencepostException {
        private static final long serialVersionUID = 1;

        Invalid(String code, String message) {
            super(code, message, null);
        }
    }

    /** Makes the exception for an answer that is final. */
    static FencepostException of(String name, int status, Map<String, Object> problem) {
        String code = problem.get("code") instanceof String text ? text : "status-" + status;
        String detail = problem.get("detail") instanceof String text ? text : "the service answered with status " + status;
        String message = "the lock " + name + ": " + detail;
        return switch (code) {
            case "busy" -> new Busy(code, message, holders(problem));
            case "timed-out" -> new TimedOut(message, holders(problem));
            case "already-run" -> new AlreadyRun(message, run(problem));
            case "lease-ended" -> lost(name, problem);
            case "unauthenticated", "forbidden", "proxied", "denied-by-engine" -> new Denied(code, message);
            default -> new Invalid(code, message);
        };
    }

    static Lost lost(String name, Map<String, Object> problem) {
        String loss = problem.get("loss") instanceof String text ? text : "deleted";
        return new Lost(name, loss, problem.get("why") instanceof String text ? text : null);
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> run(Map<String, Object> problem) {
        return problem.get("run") instanceof Map<?, ?> run ? (Map<String, Object>) run : Map.of();
    }

    private static List<String> holders(Map<String, Object> problem) {
        if (!(problem.get("holders") instanceof List<?> list)) {
            return List.of();
        }
        return list.stream()
                .filter(one -> one instanceof Map<?, ?>)
                .map(one -> String.valueOf(((Map<?, ?>) one).get("holder")))
                .toList();
    }
}
