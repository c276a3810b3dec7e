import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.Lease;
import java.time.Duration;
import java.util.concurrent.TimeUnit;

public class WaitWithLimit {
    public static void main(String[] args) throws InterruptedException {
        try (Fencepost locks = Fencepost.builder().holder("shop 1").build();
                Lease held = locks.lock("stock/42").acquire()) {
            try (Lease second = locks.lock("stock/42").acquire(Duration.ofSeconds(1))) {
                throw new AssertionError("two have it");
            } catch (FencepostException.TimedOut busy) {
                System.out.println("still held by " + busy.holders().get(0));
            }
            // The same as a java.util.concurrent.locks.Lock.
            if (!locks.lock("stock/42").tryLock(1, TimeUnit.SECONDS)) {
                System.out.println("busy");
            }
        }
    }
}
