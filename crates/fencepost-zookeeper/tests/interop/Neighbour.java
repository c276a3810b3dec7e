import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryNTimes;

/** Holds a lock of Curator's from its "held" to the next line of its input. */
public class Neighbour {
    public static void main(String[] args) throws Exception {
        String hosts = args[0], path = args[1], kind = args[2];
        int session = Integer.parseInt(args[3]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(hosts, session, 6000, new RetryNTimes(50, 100));
        client.start();
        client.blockUntilConnected(30, TimeUnit.SECONDS);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        if (kind.startsWith("semaphore")) {
            int leases = Integer.parseInt(kind.substring("semaphore".length()));
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, path, leases);
            Lease lease = semaphore.acquire();
            System.out.println("held");
            System.out.flush();
            input.readLine();
            semaphore.returnLease(lease);
        } else {
            InterProcessReadWriteLock pair = new InterProcessReadWriteLock(client, path);
            InterProcessLock lock = switch (kind) {
                case "mutex" -> new InterProcessMutex(client, path);
                case "read" -> pair.readLock();
                case "write" -> pair.writeLock();
                default -> throw new IllegalArgumentException(kind);
            };
            lock.acquire();
            System.out.println("held");
            System.out.flush();
            input.readLine();
            lock.release();
        }
        System.out.println("released");
        System.out.flush();
        client.close();
    }
}
