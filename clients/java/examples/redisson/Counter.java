import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** 20 threads add 50 times each to one counter. */
public class Counter {
    private static int counter;

    private static RedissonClient connect() {
        Config config = new Config();
        config.useSingleServer().setAddress(System.getenv("REDIS_URL"));
        return Redisson.create(config);
    }

    private static Lock lockOf(RedissonClient locks, String name) {
        return locks.getLock(name);
    }

    public static void main(String[] args) throws InterruptedException {
        var locks = connect();
        ExecutorService threads = Executors.newFixedThreadPool(20);
        for (int thread = 0; thread < 20; thread++) {
            threads.execute(() -> {
                Lock lock = lockOf(locks, "counter");
                for (int time = 0; time < 50; time++) {
                    lock.lock();
                    try {
                        counter++;
                    } finally {
                        lock.unlock();
                    }
                }
            });
        }
        threads.shutdown();
        threads.awaitTermination(100, TimeUnit.SECONDS);
        System.out.println("counter: " + counter);
        System.exit(counter == 1000 ? 0 : 1);
    }
}
