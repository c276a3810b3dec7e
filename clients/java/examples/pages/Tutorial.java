import static java.util.concurrent.TimeUnit.SECONDS;

import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.FencepostLock;
import io.github.fencepost.Lease;
import io.github.fencepost.Once;
import java.time.Duration;

/** The steps of docs/zh/tutorial.md, in their order. */
public class Tutorial {
    private static int pieces = 10;
    private static boolean isUnprotected;

    public static void main(String[] args) throws InterruptedException {
        try (Fencepost locks = Fencepost.connect()) {
            expiry(locks);
            sell(locks);
            watchdog(locks);
            waiting(locks);
            token(locks);
            segments(locks);
            once(locks);
            System.out.println(pieces);
            if (pieces != 7) {
                throw new AssertionError("3 were to be sold");
            }
        }
        try (Fencepost nobody = Fencepost.connect("http://127.0.0.1:1")) {
            outage(nobody);
            if (!isUnprotected) {
                throw new AssertionError("no service, and a lock");
            }
        }
    }

    private static void expiry(Fencepost locks) throws InterruptedException {
        try (Lease lease = locks.lock("stock/42").withTtl(Duration.ofSeconds(10)).acquire()) {
            lease.check();
        }
    }

    static void sell(Fencepost locks) throws InterruptedException {
        locks.lock("stock/42").run(() -> {                // 向服务申请
            restock(locks);
            pieces--;
        });
    }

    static void restock(Fencepost locks) {
        FencepostLock stock = locks.lock("stock/42");
        stock.lock();                                     // 同一个线程已经持有：不发请求
        try {
            System.out.println("令牌 " + stock.held().token());
        } finally {
            stock.unlock();
        }
    }

    private static void watchdog(Fencepost locks) throws InterruptedException {
        FencepostLock stock = locks.lock("stock/42");
        int sold = stock.call(lease -> {
            Thread worker = Thread.currentThread();
            lease.onLost(lost -> worker.interrupt());     // 丢锁时中断业务
            lease.check();                                // 关键的一步之前，再检查一次
            pieces--;
            return 1;
        });                                               // 丢过锁就抛 Lost
        System.out.println("卖出 " + sold);

        // 要固定租约、不续期：相当于 tryLock(3, 10, SECONDS)。
        FencepostLock fixed = stock.withFixedLease(Duration.ofSeconds(10));
        if (fixed.tryLock(3, SECONDS)) {
            fixed.unlock();
        }
    }

    private static void waiting(Fencepost locks) throws InterruptedException {
        FencepostLock stock = locks.lock("stock/42");
        stock.lock();
        stock.unlock();
        if (stock.tryLock(3, SECONDS)) {
            stock.unlock();
        }
    }

    private static void token(Fencepost locks) throws InterruptedException {
        FencepostLock stock = locks.lock("stock/42");
        Lease early = stock.acquire();
        early.close();
        try (Lease late = stock.acquire()) {
            if (late.token() <= early.token()) {          // 库存见过 late 的令牌，就拒绝 early 的写入
                throw new AssertionError();
            }
        }
    }

    private static void segments(Fencepost locks) throws InterruptedException {
        int[] stock = new int[20];                        // 每段的库存，放在数据库里
        stock[7] = 1;                                     // 只有一段还剩一件
        for (int segment = 0; segment < 20; segment++) {  // 从随机的一段开始更好
            try (Lease lease = locks.lock("stock/42/" + segment).acquire(Duration.ZERO)) {
                if (stock[segment] > 0) {
                    stock[segment]--;
                    break;
                }
            } catch (FencepostException.Busy taken) {
                // 别人在用：先看下一段，最后再回来等它
            }
        }
        pieces -= 1 - stock[7];
    }

    private static void outage(Fencepost locks) throws InterruptedException {
        try (Lease lease = locks.lock("stock/42").acquire(Duration.ofSeconds(2))) {
            System.out.println("正常，令牌 " + lease.token());
        } catch (FencepostException.Unreachable away) {
            isUnprotected = true;                         // 没有互斥：只做允许重复的事
        }
    }

    private static void once(Fencepost locks) throws InterruptedException {
        Once nightly = locks.once("nightly", Duration.ofHours(24));
        for (int host = 1; host <= 3; host++) {
            Once.Outcome outcome = nightly.run(lease -> System.out.println("生成报表"));
            System.out.println(outcome);
        }
    }
}
