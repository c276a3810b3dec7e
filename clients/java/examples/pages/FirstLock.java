import io.github.fencepost.Fencepost;
import io.github.fencepost.Lease;

public class FirstLock {
    public static void main(String[] args) throws InterruptedException {
        try (Fencepost locks = Fencepost.connect();                     // 地址在环境变量 FENCEPOST_URL 里
                Lease lease = locks.lock("stock/42").acquire()) {       // 加锁、租约、持有者标识：一步完成
            System.out.println("读库存，处理，写库存，令牌 " + lease.token());
        }                                                               // 校验持有者并释放：一步完成
    }
}
