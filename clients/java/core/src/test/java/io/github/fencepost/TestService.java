package io.github.fencepost;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/** A lock service on a database of its own, for tests. The variable FENCEPOST names the program. */
public final class TestService implements AutoCloseable {
    private final Process process;
    private String url;

    /** Starts it, and waits until it answers. */
    public TestService() {
        try {
            Path folder = Files.createTempDirectory("fencepost-java");
            String program = System.getenv().getOrDefault("FENCEPOST", "fencepost");
            process = new ProcessBuilder(program, "serve", "-b", "sqlite:" + folder.resolve("locks.db"), "--listen", "127.0.0.1:0")
                    .redirectError(new File(folder.toFile(), "log"))
                    .start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
            BufferedReader said = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
            for (String line = said.readLine(); line != null && !line.startsWith("try: "); line = said.readLine()) {
                url = line.startsWith("the page: ") ? line.substring(10).strip() : url;
            }
        } catch (IOException e) {
            throw new IllegalStateException("the service did not start", e);
        }
    }

    /** Its address. */
    public String url() {
        return url;
    }

    /** How many hold this lock now. The name is plain. */
    public int holders(String name) {
        return ((List<?>) get("v1/lock?name=" + name).get("holders")).size();
    }

    /** How many wait for this lock now. The name is plain. */
    public int waiters(String name) {
        return ((List<?>) get("v1/lock?name=" + name).get("waiters")).size();
    }

    /** Evicts the only holder of this lock. */
    public void evict(String name, String reason) {
        Map<?, ?> holder = (Map<?, ?>) ((List<?>) get("v1/lock?name=" + name).get("holders")).get(0);
        String body = Json.write(Map.of("name", name, "token", holder.get("token"), "reason", reason));
        send(HttpRequest.newBuilder(URI.create(url + "v1/evict"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body)));
    }

    private Map<String, Object> get(String path) {
        return Json.readObject(send(HttpRequest.newBuilder(URI.create(url + path))));
    }

    private static String send(HttpRequest.Builder request) {
        try {
            HttpResponse<String> response = HttpClient.newHttpClient().send(request.build(), HttpResponse.BodyHandlers.ofString());
            if (response.statusCode() >= 300) {
                throw new IllegalStateException(response.body());
            }
            return response.body();
        } catch (IOException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public void close() {
        process.destroyForcibly();
    }
}
