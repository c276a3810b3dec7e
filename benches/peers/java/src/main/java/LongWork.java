import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Two clients of Redisson, with 3 s of work under a lease of 2 s: the story of docs/demos/zombie.md. */
public final class LongWork {
    private static final long START = System.nanoTime();

    public static void main(String[] arguments) throws Exception {
        Thread first = new Thread(() -> work("first", arguments[1]));
        first.start();
        Thread.sleep(500);
        Thread second = new Thread(() -> work("second", arguments[1]));
        second.start();
        first.join();
        second.join();
        System.exit(0);
    }

    private static void work(String who, String address) {
        Config config = new Config();
        config.useSingleServer().setAddress(address);
        RedissonClient client = Redisson.create(config);
        RLock lock = client.getLock("stock");
        try {
            if (lock.tryLock(10, 2, TimeUnit.SECONDS)) {
                say(who, "began");
                Thread.sleep(3_000);
                say(who, "ended");
                lock.unlock();
            }
        } catch (IllegalMonitorStateException told) {
            say(who, "told");
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static void say(String who, String what) {
        long millis = (System.nanoTime() - START) / 1_000_000;
        System.out.println("{\"who\":\"" + who + "\",\"what\":\"" + what + "\",\"at\":" + millis + "}");
    }
}
