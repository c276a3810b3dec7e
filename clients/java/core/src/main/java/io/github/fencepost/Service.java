package io.github.fencepost;

import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Sends requests to the addresses of the service, and repeats those whose answer may have been lost. */
final class Service {
    /** How long a request may take that does not wait for a lock. */
    static final long LIMIT = 5_000;
    /** How long it is tried to get any answer that counts. */
    static final long PATIENCE = 10_000;
    /** A request that is answered at once. */
    static final LongSupplier NO_WAIT = () -> 0;

    private static final long SHORTEST_PAUSE = 100;
    private static final long LONGEST_PAUSE = 1_000;
    private static final Set<String> AGAIN =
            Set.of("closing", "in-progress", "overloaded", "too-many-requests", "too-many-waiting", "unreachable");

    private final List<URI> addresses;
    private final HttpClient http;
    private final Path tokenFile;
    private final ScheduledExecutorService timer;
    private volatile String token;
    private volatile int preferred;

    Service(List<URI> addresses, String token, Path tokenFile, Path authority, ScheduledExecutorService timer) {
        this.addresses = addresses;
        this.tokenFile = tokenFile;
        this.token = tokenFile == null ? token : readToken();
        this.timer = timer;
        HttpClient.Builder builder = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .followRedirects(HttpClient.Redirect.NEVER)
                .connectTimeout(Duration.ofMillis(LIMIT));
        this.http = (authority == null ? builder : builder.sslContext(trusting(authority))).build();
    }

    /** An answer, and the moment before its request was sent. */
    record Answer(int status, Map<String, Object> body, Moment sent) {
        /** Whether the same request has to be sent again: nothing was decided. */
        boolean isTransient() {
            return body.get("code") instanceof String code ? AGAIN.contains(code) : status >= 500;
        }

        boolean isCode(String code) {
            return code.equals(body.get("code"));
        }

        /** Whether this copy of the service closes: it has answered until now. */
        boolean isClosing() {
            return isCode("closing");
        }
    }

    /** A request: its path, its key or null, and its body, which may be another one at each try. Without a body it is a GET. */
    record Call(String path, String key, Supplier<Map<String, Object>> body) {
        static Call of(String path, Map<String, Object> body) {
            return new Call(path, null, () -> body);
        }
    }

    /** The tries of one request: where it is sent, and how many of them had no answer, so that it may have been received. */
    final class Tries {
        private int address = preferred;
        private int unanswered;

        boolean mayHaveBeenReceived() {
            return unanswered > 0;
        }
    }

    /**
     * Sends a request again and again until an answer counts. Each try waits at the service for the milliseconds of {@code waits}. Gives up
     * after {@code patience} without an answer, which counts from the first failure of a request that waits. An interrupt ends it, unless it is told not to: then the thread is interrupted afterwards.
     */
    Answer repeat(Call call, LongSupplier waits, long patience, boolean interruptibly, Tries tries) throws InterruptedException {
        Moment began = new Moment();
        Moment failed = null;
        boolean interrupted = false;
        String last = "there was no answer";
        IOException cause = null;
        long pause = 0;
        try {
            while (true) {
                long wait = waits.getAsLong();
                cause = null;
                try {
                    try {
                        long left = patience - (failed == null ? 0 : failed.elapsed());
                        long limit = wait > 0 ? wait + LIMIT : Math.max(500, Math.min(LIMIT, left));
                        Answer answer = send(addresses.get(tries.address), call, limit);
                        if (!answer.isTransient()) {
                            preferred = tries.address;
                            return answer;
                        }
                        failed = answer.isClosing() ? new Moment() : failed;
                        last = "the last answer was " + answer.body().getOrDefault("code", "status " + answer.status());
                    } catch (IOException e) {
                        tries.unanswered++;
                        if (isUntrusted(e)) {
                            String message = "the certificate of " + addresses.get(tries.address) + " is not trusted: " + e.getMessage();
                            throw new FencepostException.UntrustedCertificate(message, e);
                        }
                        cause = e;
                        last = "the last error was " + e;
                    }
                    if (failed == null) {
                        failed = wait > 0 ? new Moment() : began;
                    }
                    if (failed.elapsed() > patience) {
                        throw new FencepostException.Unreachable("the lock service is unreachable: " + last, cause);
                    }
                    // A connection that broke may have been idle for too long, and the position in the queue is kept at the same address.
                    boolean broke = cause != null && !(cause instanceof ConnectException) && !(cause instanceof HttpTimeoutException);
                    if (!broke || pause > 0) {
                        tries.address = (tries.address + 1) % addresses.size();
                    }
                    Thread.sleep(pause);
                    pause = pause == 0 ? SHORTEST_PAUSE : Math.min(2 * pause, LONGEST_PAUSE);
                } catch (InterruptedException e) {
                    tries.unanswered++;
                    if (interruptibly) {
                        throw e;
                    }
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Sends a request once, to the address that answered last. After a failure the next one goes to another address. */
    Answer once(Call call, long limit) throws IOException, InterruptedException {
        int address = preferred;
        try {
            Answer answer = send(addresses.get(address), call, limit);
            if (answer.isTransient()) {
                preferred = (address + 1) % addresses.size();
            }
            return answer;
        } catch (IOException e) {
            preferred = (address + 1) % addresses.size();
            throw e;
        }
    }

    private Answer send(URI address, Call call, long limit) throws IOException, InterruptedException {
        Moment sent = new Moment();
        Map<String, Object> body = call.body().get();
        HttpResponse<InputStream> response = open(address, call.path(), body, call.key(), limit);
        // The time limit of a request ends with the head of the answer.
        InputStream in = response.body();
        Limit end = new Limit(in, limit);
        try (in; end) {
            String text = new String(in.readAllBytes(), StandardCharsets.UTF_8);
            return new Answer(response.statusCode(), Json.readObject(text), sent);
        }
    }

    /** Opens a stream at the address that answered last, or at another one after that failed. */
    HttpResponse<InputStream> stream(int attempt, String path, Map<String, Object> body)
            throws IOException, InterruptedException {
        return open(addresses.get((preferred + attempt) % addresses.size()), path, body, null, PATIENCE);
    }

    private HttpResponse<InputStream> open(URI address, String path, Map<String, Object> body, String key, long limit)
            throws IOException, InterruptedException {
        String used = token;
        HttpResponse<InputStream> response = http.send(request(address, path, body, key, limit, used), HttpResponse.BodyHandlers.ofInputStream());
        if (response.statusCode() == 401 && tokenFile != null) {
            String read = readToken();
            if (!read.equals(used)) {
                token = read;
                response.body().close();
                return http.send(request(address, path, body, key, limit, read), HttpResponse.BodyHandlers.ofInputStream());
            }
        }
        return response;
    }

    private static HttpRequest request(URI address, String path, Map<String, Object> body, String key, long limit, String token) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(address + path))
                .timeout(Duration.ofMillis(limit))
                .GET();
        if (body != null) {
            request.header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(Json.write(body)));
        }
        if (token != null && !token.isEmpty()) {
            request.header("Authorization", "Bearer " + token);
        }
        if (key != null) {
            request.header("Idempotency-Key", key);
        }
        return request.build();
    }

    /** Closes a stream after a time, unless it is closed before: reading then ends with an error. */
    final class Limit implements AutoCloseable {
        private final InputStream in;
        private ScheduledFuture<?> end;

        Limit(InputStream in, long limit) {
            this.in = in;
            again(limit);
        }

        void again(long limit) {
            close();
            end = timer.schedule(() -> {
                in.close();
                return null;
            }, limit, TimeUnit.MILLISECONDS);
        }

        @Override
        public void close() {
            if (end != null) {
                end.cancel(false);
            }
        }
    }

    private String readToken() {
        try {
            return Files.readString(tokenFile).strip();
        } catch (IOException e) {
            // A file that is being replaced: the access token that is known is tried on.
            if (token != null) {
                return token;
            }
            throw new FencepostException.Denied("unauthenticated", "the file of the access token cannot be read: " + e);
        }
    }

    static boolean isUntrusted(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof CertificateException || cause instanceof java.security.cert.CertPathValidatorException) {
                return true;
            }
        }
        return false;
    }

    private static SSLContext trusting(Path authority) {
        try (InputStream in = Files.newInputStream(authority)) {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
                store.setCertificateEntry("authority-" + store.size(), one);
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (IOException | GeneralSecurityException e) {
            throw new IllegalArgumentException("the certificates of " + authority + " cannot be read", e);
        }
    }
}
