import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.Lease;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

public class Endpoint {
    private static void sell(Fencepost locks, HttpExchange request) throws IOException {
        try (Lease lease = locks.lock("stock/42").acquire(Duration.ofSeconds(2))) {
            Thread.sleep(100);                                 // the work
            lease.check();
            answer(request, 200, "sold under token " + lease.token());
        } catch (FencepostException.TimedOut busy) {
            answer(request, 409, "held by " + busy.holders().get(0));
        } catch (FencepostException | InterruptedException e) {
            answer(request, 503, e.toString());
        }
    }

    private static void answer(HttpExchange request, int status, String text) throws IOException {
        byte[] body = text.getBytes(StandardCharsets.UTF_8);
        request.sendResponseHeaders(status, body.length);
        request.getResponseBody().write(body);
        request.close();
    }

    public static void main(String[] args) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(threads);
        try (Fencepost locks = Fencepost.builder().holder("shop 1").build()) {
            server.createContext("/sales", request -> sell(locks, request));
            server.start();

            URI sales = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/sales");
            HttpRequest sale = HttpRequest.newBuilder(sales).POST(HttpRequest.BodyPublishers.noBody()).build();
            HttpClient customer = HttpClient.newHttpClient();
            HttpResponse<String> first = customer.send(sale, HttpResponse.BodyHandlers.ofString());
            System.out.println(first.statusCode() + " " + first.body());
            try (Lease stocktaking = locks.lock("stock/42").acquire()) {
                HttpResponse<String> second = customer.send(sale, HttpResponse.BodyHandlers.ofString());
                System.out.println(second.statusCode() + " " + second.body());
                if (first.statusCode() != 200 || second.statusCode() != 409) {
                    throw new AssertionError("sold beside another holder");
                }
            }
        } finally {
            server.stop(0);
            threads.shutdown();
        }
    }
}
