import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryNTimes;

/** Curator's locks in the mixed soak: URL, FOLDER, and KIND:PATH:CYCLES for each thread. See ../README.md. */
public final class CuratorSoak {
    private static final AtomicLong overlaps = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        String hosts = arguments[0].substring("zookeeper://".length());
        CuratorFramework client = CuratorFrameworkFactory.newClient(hosts, 30_000, 15_000, new RetryNTimes(10, 200));
        client.start();
        client.blockUntilConnected();
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<Long>> all = new ArrayList<>();
        for (int number = 2; number < arguments.length; number++) {
            String[] words = arguments[number].split(":");
            String name = "curator-" + number;
            all.add(threads.submit(() -> soak(client, Path.of(arguments[1]), words, name)));
        }
        long cycles = 0;
        for (Future<Long> one : all) {
            cycles += one.get();
        }
        System.out.println("{\"cycles\":" + cycles + ",\"overlaps\":" + overlaps.get() + "}");
        System.exit(0);
    }

    private static long soak(CuratorFramework client, Path folder, String[] words, String name) throws Exception {
        String kind = words[0], path = words[1];
        Path place = folder.resolve(path.substring(1).replace('/', '-'));
        long count = Long.parseLong(words[2]);
        InterProcessReadWriteLock pair = new InterProcessReadWriteLock(client, path);
        for (long cycle = 0; cycle < count; cycle++) {
            if (kind.equals("permits")) {
                InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, path, 3);
                Lease lease = semaphore.acquire();
                inside(place, kind, name);
                semaphore.returnLease(lease);
                continue;
            }
            InterProcessLock lock = switch (kind) {
                case "mutex" -> new InterProcessMutex(client, path);
                case "read" -> pair.readLock();
                case "write" -> pair.writeLock();
                default -> throw new IllegalArgumentException(kind);
            };
            lock.acquire();
            inside(place, kind, name);
            lock.release();
        }
        return count;
    }

    /** Leaves a file as long as it holds, and looks whose files are there. */
    private static void inside(Path place, String kind, String name) throws Exception {
        Path own = place.resolve("in").resolve(kind + "." + name);
        Files.createFile(own);
        String[] there = place.resolve("in").toFile().list();
        boolean alone = kind.equals("mutex") || kind.equals("write");
        long strangers = switch (kind) {
            case "permits" -> there.length - 3;
            case "read" -> List.of(there).stream().filter(file -> !file.startsWith("read.")).count();
            default -> there.length - 1;
        };
        if (strangers > 0) {
            overlaps.incrementAndGet();
        }
        if (alone) {
            Path counter = place.resolve("count");
            Files.writeString(counter, String.valueOf(Long.parseLong(Files.readString(counter)) + 1));
        }
        Files.delete(own);
    }
}
