import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Curator's mutex on the measuring line: see ../README.md for the words it is spoken to with. */
public final class Curator {
    private static CuratorFramework client;

    public static void main(String[] arguments) throws Exception {
        String hosts = arguments[1].substring("zookeeper://".length());
        client = CuratorFrameworkFactory.newClient(hosts, 30_000, 15_000, new RetryOneTime(1));
        client.start();
        client.blockUntilConnected();
        switch (arguments[0]) {
            case "cycle" -> cycle(Integer.parseInt(arguments[2]));
            case "drain" -> drain("/" + arguments[2]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }

    private static void cycle(int count) throws Exception {
        InterProcessMutex lock = new InterProcessMutex(client, "/uncontended");
        double[] times = new double[count];
        // As many again before, for the compiler to warm up.
        for (int cycle = -count; cycle < count; cycle++) {
            long start = System.nanoTime();
            lock.acquire();
            lock.release();
            if (cycle >= 0) {
                times[cycle] = (System.nanoTime() - start) / 1e3;
            }
        }
        Arrays.sort(times);
        System.out.println("{\"p50\":" + times[count / 2] + "}");
    }

    private static void drain(String path) throws Exception {
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<Long>> waiting = new ArrayList<>();
        InterProcessMutex held = new InterProcessMutex(client, path);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "hold" -> {
                    held.acquire();
                    System.out.println("held");
                }
                case "line" -> {
                    for (int waiter = 0; waiter < Integer.parseInt(words[1]); waiter++) {
                        waiting.add(threads.submit(() -> {
                            InterProcessMutex lock = new InterProcessMutex(client, path);
                            lock.acquire();
                            long granted = now();
                            lock.release();
                            return granted;
                        }));
                    }
                    System.out.println("waiting");
                }
                case "load" -> {
                    int tasks = Integer.parseInt(words[1]);
                    System.out.println("loaded " + load(path, threads, tasks, Integer.parseInt(words[2])));
                }
                case "free" -> {
                    System.out.println("freed " + now());
                    held.release();
                }
                default -> {
                    StringBuilder done = new StringBuilder("done");
                    for (Future<Long> task : waiting) {
                        done.append(' ').append(task.get());
                    }
                    waiting.clear();
                    System.out.println(done);
                }
            }
        }
    }

    /** Lets threads take and release one lock for some seconds. Returns how often they were granted it. */
    private static int load(String path, ExecutorService threads, int tasks, int seconds) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        List<Callable<Integer>> running = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            running.add(() -> {
                InterProcessMutex lock = new InterProcessMutex(client, path);
                int grants = 0;
                while (System.nanoTime() < end) {
                    lock.acquire();
                    grants += System.nanoTime() < end ? 1 : 0;
                    lock.release();
                }
                return grants;
            });
        }
        int grants = 0;
        for (Future<Integer> task : threads.invokeAll(running)) {
            grants += task.get();
        }
        return grants;
    }

    private static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }
}
