import io.github.fencepost.Fencepost;
import io.github.fencepost.Lease;

public class CriticalSection {
    public static void main(String[] args) throws InterruptedException {
        try (Fencepost locks = Fencepost.connect();
                Lease lease = locks.lock("stock/42").acquire()) {
            lease.check();                       // before each step that cannot be undone
            System.out.println("token for the database: " + lease.token());
        }
    }
}
