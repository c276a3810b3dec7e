import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/** Sets how many children nodes ever had, in the data of a server that does not run: a folder, then a path and a number for each node. */
public class SetCount {
    public static void main(String[] args) throws Exception {
        File data = new File(args[0]);
        FileTxnSnapLog files = new FileTxnSnapLog(data, data);
        DataTree tree = new DataTree();
        ConcurrentHashMap<Long, Integer> sessions = new ConcurrentHashMap<>();
        files.restore(tree, sessions, (header, txn, digest) -> {});
        for (int node = 1; node < args.length; node += 2) {
            tree.getNode(args[node]).stat.setCversion(Integer.parseInt(args[node + 1]));
        }
        files.save(tree, sessions, true);
        files.close();
    }
}
