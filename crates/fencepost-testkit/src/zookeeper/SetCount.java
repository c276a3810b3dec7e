import java.io.File;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.zookeeper.server.DataTree;
import org.apache.zookeeper.server.persistence.FileTxnSnapLog;

/** Sets how many children a node ever had, in the data of a server that does not run. */
public class SetCount {
    public static void main(String[] args) throws Exception {
        File data = new File(args[0]);
        FileTxnSnapLog files = new FileTxnSnapLog(data, data);
        DataTree tree = new DataTree();
        ConcurrentHashMap<Long, Integer> sessions = new ConcurrentHashMap<>();
        files.restore(tree, sessions, (header, txn, digest) -> {});
        tree.getNode(args[1]).stat.setCversion(Integer.parseInt(args[2]));
        files.save(tree, sessions, true);
        files.close();
    }
}
