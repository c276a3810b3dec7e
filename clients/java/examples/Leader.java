import io.github.fencepost.Elector;
import io.github.fencepost.Fencepost;
import java.util.concurrent.CountDownLatch;

public class Leader {
    public static void main(String[] args) throws InterruptedException {
        CountDownLatch worked = new CountDownLatch(1);
        try (Fencepost locks = Fencepost.connect();
                Elector elector = locks.elect("reminders", term -> {
                    while (term.isHeld()) {
                        System.out.println("leads with token " + term.token());
                        worked.countDown();
                        Thread.sleep(100);       // is interrupted when the leadership ends
                    }
                })) {
            worked.await();
        }                                        // the next copy leads at once
    }
}
