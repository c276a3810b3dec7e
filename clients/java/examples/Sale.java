import io.github.fencepost.DistributedLocker;
import io.github.fencepost.Fencepost;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

public class Sale {
    private static int pieces = 5;

    public static void main(String[] args) throws InterruptedException {
        AtomicInteger sold = new AtomicInteger();
        ExecutorService customers = Executors.newFixedThreadPool(20);
        try (Fencepost client = Fencepost.connect()) {
            DistributedLocker locks = client.locker();         // the interface of wrappers of Redisson
            for (int customer = 0; customer < 20; customer++) {
                customers.execute(() -> {
                    if (!locks.tryLock("stock/42", TimeUnit.SECONDS, 60, -1)) {
                        return;
                    }
                    try {
                        if (pieces > 0) {                      // read, decide, write: nobody comes between
                            pieces--;
                            sold.incrementAndGet();
                        }
                    } finally {
                        locks.unlock("stock/42");
                    }
                });
            }
            customers.shutdown();
            customers.awaitTermination(90, TimeUnit.SECONDS);
        }
        System.out.println("sold " + sold + ", left " + pieces);
        if (sold.get() != 5 || pieces != 0) {
            throw new AssertionError("sold twice");
        }
    }
}
