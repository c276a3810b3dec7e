package io.github.fencepost;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongSupplier;
import java.util.stream.Stream;

/**
 * A client of the lock service. A program makes one, and closes it at its end.
 *
 * <pre>{@code
 * try (Fencepost locks = Fencepost.connect("http://127.0.0.1:7070");
 *         Lease lease = locks.lock("stock/42").acquire()) {
 *     lease.check();     // before each step that cannot be undone
 *     sell(lease.token());
 * }
 * }</pre>
 *
 * <p>A lock is renewed in the background by daemon threads. It can be lost nevertheless, for example because the service cannot be reached
 * for as long as the lease lasts. {@link Lease#check} tells that, {@link Lease#onLost} calls back, and the release throws {@link
 * FencepostException.Lost}.
 */
public final class Fencepost implements AutoCloseable {
    /** While more is left of a limited wait, the request waits without a limit, and is answered after 10 s that it is queued. */
    private static final long ROUND = 10_000;
    /** The longest wait with a limit that a stream may ask for. */
    private static final long LONGEST = 300_000;

    final Service service;
    final Listener listener;
    final ScheduledThreadPoolExecutor timer;
    final ExecutorService workers;
    final Set<Lease> leases = ConcurrentHashMap.newKeySet();
    private final Map<Owner, Grip> grips = new ConcurrentHashMap<>();
    private final Duration ttl;
    private final String holder;

    private Fencepost(Builder builder) {
        ttl = builder.ttl;
        holder = builder.holder;
        listener = builder.listener;
        timer = new ScheduledThreadPoolExecutor(1, daemons("fencepost-timer"));
        timer.setRemoveOnCancelPolicy(true);
        workers = Executors.newCachedThreadPool(daemons("fencepost-worker"));
        service = new Service(builder.addresses, builder.token, builder.tokenFile, builder.authority, timer);
    }

    /** Makes a client with the defaults of {@link Builder}. Nothing is sent before the first lock. */
    public static Fencepost connect(String... addresses) {
        return builder(addresses).build();
    }

    /** Makes a client step by step. Without addresses they come from the environment's {@code FENCEPOST_URL}. With several addresses a request goes to the next one if the first does not answer. */
    public static Builder builder(String... addresses) {
        return new Builder(addresses);
    }

    /** The lock of this name: reentrant by thread, as {@link java.util.concurrent.locks.ReentrantLock} is. */
    public FencepostLock lock(String name) {
        return new FencepostLock(this, request(name, Request.EXCLUSIVE, null));
    }

    /** The lock of this name for many readers or one writer. The write lock is the one of {@link #lock}. */
    public FencepostReadWriteLock readWriteLock(String name) {
        FencepostLock read = new FencepostLock(this, request(name, Request.SHARED, null));
        return new FencepostReadWriteLock(read, lock(name));
    }

    /** A semaphore with so many permits. All programs that use the name say the same number. */
    public FencepostSemaphore semaphore(String name, int permits) {
        return new FencepostSemaphore(this, request(name, Request.PERMITS, permits));
    }

    /** A job that several hosts start, and that runs once in each period, such as {@code Duration.ofHours(24)}. */
    public Once once(String name, Duration period) {
        return new Once(this, request(name, Request.EXCLUSIVE, null).withOnce(new Once.Window(period, false)));
    }

    /**
     * Whether a run of a {@link #once} job has succeeded within {@code maxAge}, and its lock is not held for longer than {@code maxHeld}.
     * A limit that is null is not checked.
     */
    public Check check(String name, Duration maxAge, Duration maxHeld) throws InterruptedException {
        StringBuilder path = new StringBuilder("/v1/check?name=").append(URLEncoder.encode(name, StandardCharsets.UTF_8));
        if (maxAge != null) {
            path.append("&max_age=").append(Request.text(maxAge));
        }
        if (maxHeld != null) {
            path.append("&max_held=").append(Request.text(maxHeld));
        }
        Service.Call call = new Service.Call(path.toString(), null, () -> null);
        Service.Answer answer = service.repeat(call, Service.NO_WAIT, Service.PATIENCE, true, service.new Tries());
        if (answer.status() != 200) {
            throw FencepostException.of(name, answer.status(), answer.body());
        }
        return Check.of(answer.body());
    }

    /** Begins a candidacy for the leadership of this name, which ends with {@link Elector#close}. */
    public Elector elect(String name, Elector.Candidate candidate) {
        return elect(name, ttl, candidate);
    }

    /** The same with a lease of another length: the longer it is, the later others lead after the death of this host. */
    public Elector elect(String name, Duration ttl, Elector.Candidate candidate) {
        return new Elector(lock(name).withTtl(ttl), candidate);
    }

    /** The interface that people know from wrappers of Redisson. */
    public DistributedLocker locker() {
        return new DistributedLocker.OfFencepost(this);
    }

    /** Releases all locks that are held, and ends the background threads. */
    @Override
    public void close() {
        for (Lease lease : leases) {
            try {
                lease.close();
            } catch (FencepostException e) {
                // Its holder learns of the loss by `check`.
            }
        }
        workers.shutdown();
        try {
            // Releases of leases that were lost are under way.
            workers.awaitTermination(1, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        timer.shutdownNow();
        workers.shutdownNow();
    }

    /** Runs this in the background, unless the client is closed. */
    void background(Runnable task) {
        try {
            workers.execute(task);
        } catch (RejectedExecutionException e) {
            // What is not released ends with its lease.
        }
    }

    private Request request(String name, String mode, Integer permits) {
        return new Request(name, mode, permits, null, ttl, Request.Keep.EXTENDED, holder, null, null);
    }

    private static ThreadFactory daemons(String name) {
        AtomicInteger number = new AtomicInteger();
        return task -> {
            Thread thread = new Thread(task, name + "-" + number.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        };
    }

    /**
     * Acquires a lock. {@code wait} is zero for a try, and null for a wait without a limit. An interrupt withdraws the request, unless it
     * is told to wait on.
     */
    Lease acquire(Request request, Duration wait, boolean interruptibly) throws InterruptedException {
        Moment began = new Moment();
        String outcome = "failed";
        try {
            Lease lease = request.keep() == Request.Keep.STREAMED
                    ? stream(request, wait, interruptibly)
                    : ask(request, wait, interruptibly);
            leases.add(lease);
            outcome = "granted";
            return lease;
        } catch (FencepostException e) {
            outcome = e.code();
            throw e;
        } catch (InterruptedException e) {
            outcome = "interrupted";
            throw e;
        } finally {
            listener.asked(request.name(), outcome, Duration.ofMillis(began.elapsed()));
        }
    }

    private Lease ask(Request request, Duration wait, boolean interruptibly) throws InterruptedException {
        Moment began = new Moment();
        String key = UUID.randomUUID().toString();
        Service.Tries tries = service.new Tries();
        try {
            while (true) {
                LongSupplier waits = () -> wait == null ? ROUND : Math.max(0, Math.min(ROUND, wait.toMillis() - began.elapsed()));
                Service.Call call = new Service.Call("/v1/acquire", key, () -> request.body(waitOf(wait, began)));
                Service.Answer answer = service.repeat(call, waits, Service.PATIENCE, interruptibly, tries);
                if (answer.status() == 200) {
                    return new Lease(this, request, answer.body(), answer.sent(), null);
                }
                if (answer.status() != 202) {
                    throw refused(request, wait, answer.status(), answer.body());
                }
            }
        } catch (InterruptedException | FencepostException.Unreachable | FencepostException.UntrustedCertificate e) {
            withdraw(request, key);
            throw e;
        }
    }

    private static String waitOf(Duration wait, Moment began) {
        return wait != null && wait.toMillis() - began.elapsed() > ROUND ? "forever" : limited(wait, began);
    }

    private static String limited(Duration wait, Moment began) {
        if (wait == null) {
            return "forever";
        }
        long left = Math.min(wait.toMillis() - began.elapsed(), LONGEST);
        return left > 0 ? left + "ms" : null;
    }

    private static FencepostException refused(Request request, Duration wait, int status, Map<String, Object> problem) {
        FencepostException refused = FencepostException.of(request.name(), status, problem);
        boolean hasWaited = wait == null || !wait.isZero();
        return hasWaited && refused instanceof FencepostException.Busy busy
                ? new FencepostException.TimedOut(busy.getMessage(), busy.holders())
                : refused;
    }

    /** Leaves the queue, in the background: the caller waits a second, so that a program that ends now leaves nothing behind. */
    private void withdraw(Request request, String key) {
        Service.Call call = new Service.Call("/v1/withdraw", key, () -> request.body(null));
        try {
            workers.submit(() -> service.repeat(call, Service.NO_WAIT, Service.PATIENCE, false, service.new Tries())).get(1, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException | RejectedExecutionException e) {
            // The place is lost 5 s after the last request.
        }
    }

    /**
     * Acquires a lock by a stream. A thread reads its events, and ends the request if the caller has given up meanwhile. The first event has
     * the lease of the grant. If the stream ends before the grant was read, the lease is released, because the service may have granted the
     * lock at that moment.
     */
    private Lease stream(Request request, Duration wait, boolean interruptibly) throws InterruptedException {
        CompletableFuture<Lease> granted = new CompletableFuture<>();
        AtomicReference<InputStream> open = new AtomicReference<>();
        workers.execute(() -> read(request, wait, granted, open));
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return granted.get();
                } catch (InterruptedException e) {
                    if (!interruptibly) {
                        interrupted = true;
                    } else if (granted.completeExceptionally(e)) {
                        close(open.get());
                        throw e;
                    }
                } catch (ExecutionException e) {
                    throw e.getCause() instanceof FencepostException why ? why : new IllegalStateException(e.getCause());
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void read(Request request, Duration wait, CompletableFuture<Lease> granted, AtomicReference<InputStream> open) {
        Moment began = new Moment();
        Moment heard = began;
        for (int attempt = 0; !granted.isDone(); attempt++) {
            Moment sent = new Moment();
            boolean isPart = wait != null && wait.toMillis() - began.elapsed() > LONGEST;
            String last;
            Lease lease = null;
            String told = null;
            try {
                HttpResponse<InputStream> response = service.stream(attempt, "/v1/hold", request.body(limited(wait, began)));
                InputStream in = response.body();
                try (in; Service.Limit limit = service.new Limit(in, Service.PATIENCE)) {
                    if (response.statusCode() != 200) {
                        Map<String, Object> problem = Json.readObject(new String(in.readAllBytes(), StandardCharsets.UTF_8));
                        Service.Answer answer = new Service.Answer(response.statusCode(), problem, sent);
                        if (!answer.isTransient()) {
                            granted.completeExceptionally(refused(request, wait, answer.status(), problem));
                        }
                        heard = answer.isClosing() ? new Moment() : heard;
                        last = "the last answer was " + problem.getOrDefault("code", "status " + answer.status());
                    } else {
                        BufferedReader lines = new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8));
                        String event = "";
                        last = "the stream ended";
                        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                            if (line.startsWith("event:")) {
                                event = line.substring(6).strip();
                            }
                            if (!line.startsWith("data:")) {
                                continue;
                            }
                            limit.again(Service.PATIENCE);
                            heard = new Moment();
                            Map<String, Object> data = Json.readObject(line.substring(5));
                            switch (event) {
                                case "waiting" -> {
                                    told = (String) data.get("lease");
                                    open.set(in);
                                    if (granted.isDone()) {
                                        // The caller was interrupted before it could close the stream.
                                        in.close();
                                    }
                                }
                                case "granted" -> {
                                    lease = new Lease(this, request, data, sent, in);
                                    if (!granted.complete(lease)) {
                                        lease.close();
                                    }
                                }
                                case "held" -> lease.prolong(sent, data);
                                case "lost" -> {
                                    FencepostException.Lost why = FencepostException.lost(request.name(), data);
                                    lease.lose(why.loss(), why.why());
                                }
                                case "refused" -> {
                                    told = null;
                                    Service.Answer answer = new Service.Answer(0, data, sent);
                                    FencepostException refused = refused(request, wait, 0, data);
                                    if (!answer.isTransient() && !(isPart && refused instanceof FencepostException.TimedOut)) {
                                        granted.completeExceptionally(refused);
                                    }
                                    last = "the last answer was " + data.get("code");
                                }
                                default -> { }
                            }
                        }
                    }
                }
            } catch (IOException | RuntimeException e) {
                last = "the last error was " + e;
                if (Service.isUntrusted(e)) {
                    granted.completeExceptionally(new FencepostException.UntrustedCertificate("the certificate is not trusted: " + e, e));
                }
            } catch (InterruptedException e) {
                last = "interrupted";
                granted.completeExceptionally(new FencepostException.Unreachable("the client is closed", e));
            }
            if (lease == null && told != null) {
                // The stream has ended, perhaps in the moment of the grant.
                giveBack(told);
            }
            if (lease != null) {
                lease.lose("expired", null);
            } else if (heard.elapsed() > Service.PATIENCE) {
                granted.completeExceptionally(new FencepostException.Unreachable("the lock service is unreachable: " + last, null));
            } else {
                pause(attempt);
            }
        }
    }

    /** Releases what may have been granted to a stream that has ended, in the background. */
    private void giveBack(String lease) {
        Service.Call call = Service.Call.of("/v1/leases/release", Map.of("lease", lease));
        try {
            workers.execute(() -> {
                try {
                    service.repeat(call, Service.NO_WAIT, Service.PATIENCE, false, service.new Tries());
                } catch (InterruptedException | FencepostException e) {
                    // The lock becomes free some seconds later.
                }
            });
        } catch (RejectedExecutionException e) {
            // The client is closed.
        }
    }

    private static void pause(int attempt) {
        try {
            Thread.sleep(attempt == 0 ? 0 : Math.min(1_000, 50L << Math.min(attempt, 5)));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static void close(InputStream in) {
        try {
            if (in != null) {
                in.close();
            }
        } catch (IOException e) {
            // It has ended.
        }
    }

    // Locks of one thread in each other.

    /** Whose lock it is. */
    private record Owner(String name, String mode, Thread thread) {}

    /** A lease, and how often its owner has locked. Only the owner's thread uses it. */
    private static final class Grip {
        private final Lease lease;
        private int count = 1;

        Grip(Lease lease) {
            this.lease = lease;
        }
    }

    private static Owner owner(Request request, String mode) {
        return new Owner(request.name(), mode, Thread.currentThread());
    }

    /** The grip of this thread, if any: who writes may read. */
    private Owner gripping(Request request) {
        Owner own = owner(request, request.mode());
        if (grips.containsKey(own) || request.mode().equals(Request.EXCLUSIVE)) {
            return own;
        }
        return owner(request, Request.EXCLUSIVE);
    }

    /** Returns the lease of this thread, or null. */
    Lease held(Request request) {
        Grip grip = grips.get(gripping(request));
        return grip == null ? null : grip.lease;
    }

    /** Locks for this thread. If it has the lock already, that costs no request. */
    void enter(Request request, Duration wait, boolean interruptibly) throws InterruptedException {
        if (interruptibly && Thread.interrupted()) {
            throw new InterruptedException();
        }
        Grip grip = grips.get(gripping(request));
        if (grip != null) {
            grip.lease.check();
            grip.count++;
            return;
        }
        if (request.mode().equals(Request.EXCLUSIVE) && grips.containsKey(owner(request, Request.SHARED))) {
            throw new IllegalStateException("a thread that reads " + request.name() + " would wait for itself to write");
        }
        grips.put(owner(request, request.mode()), new Grip(acquire(request, wait, interruptibly)));
    }

    /** Unlocks for this thread. The last one releases. */
    void leave(Request request) {
        Owner owner = gripping(request);
        Grip grip = grips.get(owner);
        if (grip == null) {
            throw new IllegalMonitorStateException("this thread does not have the lock " + request.name());
        }
        if (--grip.count == 0) {
            grips.remove(owner);
            grip.lease.close();
        }
    }

    /** The settings of a client. */
    public static final class Builder {
        private final List<URI> addresses;
        private String token = System.getenv("FENCEPOST_SERVICE_TOKEN");
        private Path tokenFile;
        private Path authority;
        private Duration ttl = Duration.ofSeconds(30);
        private String holder;
        private Listener listener = new Listener() {};

        private Builder(String... addresses) {
            if (addresses.length == 0) {
                String text = System.getenv("FENCEPOST_URL");
                if (text == null || text.isBlank()) {
                    throw new IllegalArgumentException("the client needs an address, such as http://127.0.0.1:7070, or FENCEPOST_URL");
                }
                addresses = text.strip().split("[, ]+");
            }
            this.addresses = Stream.of(addresses).map(address -> URI.create(address.replaceAll("/+$", ""))).toList();
        }

        /** The access token. The default is the environment's {@code FENCEPOST_SERVICE_TOKEN}. */
        public Builder token(String token) {
            this.token = token;
            return this;
        }

        /** A file with the access token. It is read again when the service refuses the one that is known. */
        public Builder tokenFile(Path file) {
            this.tokenFile = file;
            return this;
        }

        /** A file with the certificates, in PEM, that are trusted instead of those of Java. */
        public Builder authority(Path file) {
            this.authority = file;
            return this;
        }

        /** How long a lease lasts if it is not renewed: 30 s by default. */
        public Builder ttl(Duration ttl) {
            this.ttl = ttl;
            return this;
        }

        /** The label under which others see this program, such as {@code checkout}. Host and process id are told anyway. */
        public Builder holder(String holder) {
            this.holder = holder;
            return this;
        }

        /** What is told of each lock, for metrics. */
        public Builder listener(Listener listener) {
            this.listener = listener;
            return this;
        }

        /** Makes the client. */
        public Fencepost build() {
            return new Fencepost(this);
        }
    }

    /** Is told of each lock. Its methods are called by the threads that lock, so they have to be fast and not to throw. */
    public interface Listener {
        /** A request ended: {@code granted}, {@code interrupted}, or the code of the exception. */
        default void asked(String name, String outcome, Duration waited) {}

        /** A lock that was held was given back after so long, with the loss if it was lost before, or null. */
        default void ended(String name, Duration held, FencepostException.Lost loss) {}
    }
}
