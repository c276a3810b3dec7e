import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** 200 customers want one piece each of a stock of 100. */
public class Stock {
    private static int pieces = 100;

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
        AtomicInteger sold = new AtomicInteger();
        ExecutorService customers = Executors.newFixedThreadPool(20);
        for (int customer = 0; customer < 200; customer++) {
            customers.execute(() -> {
                Lock lock = lockOf(locks, "stock/42");
                try {
                    if (!lock.tryLock(60, TimeUnit.SECONDS)) {
                        return;
                    }
                } catch (InterruptedException e) {
                    return;
                }
                try {
                    if (pieces > 0) {
                        pieces--;
                        sold.incrementAndGet();
                    }
                } finally {
                    lock.unlock();
                }
            });
        }
        customers.shutdown();
        customers.awaitTermination(100, TimeUnit.SECONDS);
        System.out.println("sold " + sold + ", left " + pieces);
        System.exit(sold.get() == 100 && pieces == 0 ? 0 : 1);
    }
}
