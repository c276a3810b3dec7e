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
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson on the measuring line, its plain or its fair lock: see ../README.md for the words it is spoken to with. */
public final class Redisson {
    private static RedissonClient client;
    private static boolean fair;

    public static void main(String[] given) throws Exception {
        fair = given[0].equals("fair");
        String[] arguments = Arrays.copyOfRange(given, 1, given.length);
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[1]);
        client = org.redisson.Redisson.create(config);
        switch (arguments[0]) {
            case "cycle" -> cycle(Integer.parseInt(arguments[2]));
            case "tasks" -> tasks(Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
            case "drain" -> drain(arguments[2]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }

    private static RLock lock(String name) {
        return fair ? client.getFairLock(name) : client.getLock(name);
    }

    /** With its own renewal; for 20 s at most. */
    private static boolean take(RLock lock) throws InterruptedException {
        return lock.tryLock(20, TimeUnit.SECONDS);
    }

    private static void cycle(int count) throws Exception {
        RLock lock = lock("uncontended");
        double[] times = new double[count];
        // As many again before, for the compiler to warm up.
        for (int cycle = -count; cycle < count; cycle++) {
            long start = System.nanoTime();
            take(lock);
            lock.unlock();
            if (cycle >= 0) {
                times[cycle] = (System.nanoTime() - start) / 1e3;
            }
        }
        Arrays.sort(times);
        System.out.println("{\"p50\":" + times[count / 2] + "}");
    }

    private static void tasks(int count, int seconds) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(count);
        // The first round is for the compiler to warm up.
        double rate = 0;
        for (int round = 0; round < 2; round++) {
            long start = System.nanoTime();
            List<Callable<Integer>> running = new ArrayList<>();
            for (int task = 0; task < count; task++) {
                RLock lock = lock("task/" + task);
                running.add(() -> {
                    int cycles = 0;
                    while (System.nanoTime() - start < seconds * 1_000_000_000L) {
                        if (take(lock)) {
                            lock.unlock();
                            cycles++;
                        }
                    }
                    return cycles;
                });
            }
            int cycles = 0;
            for (Future<Integer> task : threads.invokeAll(running)) {
                cycles += task.get();
            }
            rate = cycles / ((System.nanoTime() - start) / 1e9);
        }
        System.out.println("{\"rate\":" + rate + "}");
    }

    private static void drain(String name) throws Exception {
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<Long>> waiting = new ArrayList<>();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "hold" -> {
                    take(lock(name));
                    System.out.println("held");
                }
                case "line" -> {
                    for (int waiter = 0; waiter < Integer.parseInt(words[1]); waiter++) {
                        waiting.add(threads.submit(() -> {
                            RLock lock = lock(name);
                            if (!take(lock)) {
                                return 0L;
                            }
                            long granted = now();
                            lock.unlock();
                            return granted;
                        }));
                    }
                    System.out.println("waiting");
                }
                case "load" -> {
                    int tasks = Integer.parseInt(words[1]);
                    System.out.println("loaded " + load(name, threads, tasks, Integer.parseInt(words[2])));
                }
                case "free" -> {
                    System.out.println("freed " + now());
                    lock(name).unlock();
                }
                default -> {
                    StringBuilder done = new StringBuilder("done");
                    for (Future<Long> task : waiting) {
                        try {
                            long granted = task.get();
                            if (granted > 0) {
                                done.append(' ').append(granted);
                            }
                        } catch (java.util.concurrent.ExecutionException failed) {
                            // Counted as not granted.
                        }
                    }
                    waiting.clear();
                    System.out.println(done);
                }
            }
        }
    }

    /** Lets threads take and release one lock for some seconds. Returns how often they were granted it. */
    private static int load(String name, ExecutorService threads, int tasks, int seconds) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        List<Callable<Integer>> running = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            running.add(() -> {
                RLock lock = lock(name);
                int grants = 0;
                while (System.nanoTime() < end) {
                    if (take(lock)) {
                        grants += System.nanoTime() < end ? 1 : 0;
                        lock.unlock();
                    }
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
