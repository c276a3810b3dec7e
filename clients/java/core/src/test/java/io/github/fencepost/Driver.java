package io.github.fencepost;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Does what the cases of {@code clients/behaviour.json} say: docs/clients.md describes the commands. */
final class Driver {
    private final Map<String, Fencepost> clients = new ConcurrentHashMap<>();
    private final Map<String, Got> locks = new ConcurrentHashMap<>();
    private final Map<String, Owner> owners = new ConcurrentHashMap<>();
    private final Map<String, Elector> electors = new ConcurrentHashMap<>();

    /** A thread that locks. */
    private static final class Owner {
        private Thread thread;
        private final ExecutorService runs = Executors.newSingleThreadExecutor(task -> {
            thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
    }

    /** A lock that was granted, and how it is released. */
    private record Got(Lease lease, AutoCloseable release) {}

    /** The error that a job throws. */
    private static final class BodyFailed extends Exception {
        private static final long serialVersionUID = 1;
    }

    public static void main(String[] args) throws IOException {
        say(Map.of("client", "java", "pid", ProcessHandle.current().pid(), "can", List.of("reentrant")));
        Driver driver = new Driver();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            driver.begin(Json.readObject(line));
        }
        System.exit(0);
    }

    private static synchronized void say(Map<String, Object> message) {
        byte[] line = (Json.write(message) + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(line, 0, line.length);
        System.out.flush();
    }

    /** Runs a command on the thread that owns its lock. */
    private void begin(Map<String, Object> command) {
        String lock = text(command, "lock");
        String name = text(command, "owner") != null ? "owner " + text(command, "owner") : lock != null ? lock : text(command, "as");
        boolean owns = List.of("lock", "release").contains(text(command, "do"));
        if (owns && lock == null) {
            Owner owner = owners.computeIfAbsent(name, n -> new Owner());
            owners.put(text(command, "as"), owner);
            owner.runs.execute(() -> answer(command));
        } else if (owns) {
            owners.get(lock).runs.execute(() -> answer(command));
        } else if (text(command, "do").equals("open")) {
            answer(command);
        } else {
            new Thread(() -> answer(command)).start();
        }
    }

    private void answer(Map<String, Object> command) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", command.get("id"));
        try {
            answer.put("ok", act(command));
        } catch (Throwable error) {
            answer.put("message", error.toString());
            answer.put("error", kind(error));
            if (error instanceof FencepostException.Busy busy && !busy.holders().isEmpty()) {
                answer.put("holder", busy.holders().get(0));
            }
            if (error instanceof FencepostException.Lost lost) {
                answer.put("loss", lost.loss());
                answer.put("why", lost.why());
            }
            for (Throwable suppressed : error.getSuppressed()) {
                answer.put("attached", kind(suppressed));
            }
        }
        say(answer);
    }

    private static String kind(Throwable error) {
        if (error instanceof FencepostException.TimedOut) {
            return "timeout";
        } else if (error instanceof FencepostException.Busy) {
            return "busy";
        } else if (error instanceof FencepostException.Lost) {
            return "lost";
        } else if (error instanceof InterruptedException) {
            return "cancelled";
        } else if (error instanceof FencepostException.Denied) {
            return "denied";
        } else if (error instanceof FencepostException.Unreachable) {
            return "unreachable";
        } else if (error instanceof FencepostException.UntrustedCertificate) {
            return "certificate";
        } else if (error instanceof FencepostException.Invalid invalid) {
            return invalid.code().equals("unsupported") ? "unsupported" : "invalid";
        } else if (error instanceof BodyFailed) {
            return "body";
        }
        error.printStackTrace();
        return "unknown";
    }

    private Object act(Map<String, Object> command) throws Exception {
        switch (text(command, "do")) {
            case "open" -> {
                List<String> urls = new ArrayList<>();
                ((List<?>) command.get("urls")).forEach(url -> urls.add((String) url));
                Fencepost.Builder builder = Fencepost.builder(urls.toArray(String[]::new)).token(null);
                if (text(command, "token_file") != null) {
                    builder.tokenFile(Path.of(text(command, "token_file")));
                }
                if (text(command, "ca") != null) {
                    builder.authority(Path.of(text(command, "ca")));
                }
                clients.put(text(command, "as"), builder.build());
            }
            case "lock" -> {
                String as = text(command, "as");
                Got got = lock(command);
                locks.put(as, got);
                got.lease.onLost(lost -> {
                    Map<String, Object> event = new LinkedHashMap<>(Map.of("event", "lost", "lock", as, "loss", lost.loss()));
                    event.put("why", lost.why());
                    say(event);
                });
                return Map.of("held", true, "token", got.lease.token());
            }
            case "check" -> {
                Lease lease = locks.get(text(command, "lock")).lease;
                Map<String, Object> ok = new LinkedHashMap<>(Map.of("held", lease.isHeld(), "token", lease.token()));
                try {
                    lease.check();
                } catch (FencepostException.Lost lost) {
                    ok.put("loss", lost.loss());
                    ok.put("why", lost.why());
                }
                return ok;
            }
            case "release" -> locks.get(text(command, "lock")).release.close();
            case "cancel" -> owners.get(text(command, "request")).thread.interrupt();
            case "run" -> {
                boolean fails = text(command, "body").equals("fail-after-loss");
                client(command).lock(text(command, "name")).withTtl(duration(text(command, "ttl"))).call(lease -> {
                    lease.awaitLoss();
                    return fail(fails);
                });
            }
            case "once" -> {
                Once once = client(command).once(text(command, "name"), duration(text(command, "window")));
                once = command.get("retry") == Boolean.TRUE ? once.withRetry() : once;
                Once.Outcome outcome = once.run(lease -> fail(text(command, "body").equals("fail")));
                Map<String, Object> ok = new LinkedHashMap<>(Map.of("ran", outcome instanceof Once.Outcome.Ran));
                ok.put("exit_code", outcome instanceof Once.Outcome.AlreadyRun run ? run.exitCode() : null);
                return ok;
            }
            case "check_job" -> {
                Check check = client(command).check(text(command, "name"), duration(text(command, "max_age")), null);
                return Map.of("status", check.status(), "code", check.code());
            }
            case "elect" -> {
                String as = text(command, "as");
                electors.put(as, client(command).elect(text(command, "name"), duration(text(command, "ttl")), new Elector.Candidate() {
                    @Override
                    public void lead(Lease term) throws Exception {
                        say(Map.of("event", "leads", "candidate", as));
                        term.awaitLoss();
                    }

                    @Override
                    public void follow(Exception thrown) {
                        say(Map.of("event", "follows", "candidate", as));
                    }
                }));
            }
            case "resign" -> electors.remove(text(command, "candidate")).close();
            default -> throw new IllegalArgumentException("no such command: " + command);
        }
        return Map.of();
    }

    private Got lock(Map<String, Object> command) throws InterruptedException {
        Fencepost client = client(command);
        String name = text(command, "name");
        String wait = text(command, "wait");
        Duration limit = wait == null ? Duration.ZERO : wait.equals("forever") ? null : duration(wait);
        Duration ttl = text(command, "ttl") == null ? Duration.ofSeconds(30) : duration(text(command, "ttl"));
        boolean streams = "hold".equals(text(command, "via"));
        if (command.get("permits") instanceof Number permits) {
            int take = command.get("take") instanceof Number number ? number.intValue() : 1;
            FencepostSemaphore semaphore = client.semaphore(name, permits.intValue()).withTtl(ttl);
            Lease lease = limit == null ? semaphore.acquire(take) : semaphore.acquire(take, limit);
            return new Got(lease, lease);
        }
        boolean isShared = "shared".equals(text(command, "mode"));
        FencepostLock lock = isShared ? client.readWriteLock(name).readLock() : client.lock(name);
        lock = lock.withTtl(ttl);
        lock = text(command, "holder") == null ? lock : lock.withHolder(text(command, "holder"));
        lock = streams ? lock.withStream() : lock;
        if (text(command, "owner") != null) {
            if (!lock.tryLock()) {
                throw new FencepostException.Busy("busy", "another thread has it", List.of());
            }
            return new Got(lock.held(), lock::unlock);
        }
        Lease lease = limit == null ? lock.acquire() : lock.acquire(limit);
        return new Got(lease, lease);
    }

    private static Void fail(boolean fails) throws BodyFailed {
        if (fails) {
            throw new BodyFailed();
        }
        return null;
    }

    private Fencepost client(Map<String, Object> command) {
        return clients.get(text(command, "client"));
    }

    private static String text(Map<String, Object> command, String field) {
        return (String) command.get(field);
    }

    private static Duration duration(String text) {
        return text.endsWith("ms")
                ? Duration.ofMillis(Long.parseLong(text.substring(0, text.length() - 2)))
                : Duration.parse("PT" + text);
    }
}
