import io.github.fencepost.Fencepost;
import io.github.fencepost.Lease;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.Statement;

public class FencedWrite {
    public static void main(String[] args) throws Exception {
        try (Fencepost locks = Fencepost.connect();
                Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"));
                Statement statement = db.createStatement()) {
            statement.execute("CREATE TABLE IF NOT EXISTS stock "
                    + "(id BIGINT PRIMARY KEY, pieces BIGINT NOT NULL, token BIGINT NOT NULL DEFAULT 0)");
            statement.execute("INSERT INTO stock VALUES (42, 10) ON CONFLICT DO NOTHING");

            try (Lease lease = locks.lock("stock/42").acquire();
                    PreparedStatement read = db.prepareStatement(
                            "UPDATE stock SET token = ? WHERE id = 42 AND token <= ? RETURNING pieces");
                    PreparedStatement write = db.prepareStatement(
                            "UPDATE stock SET pieces = ? WHERE id = 42 AND token = ?")) {
                read.setLong(1, lease.token());
                read.setLong(2, lease.token());
                ResultSet row = read.executeQuery();
                if (!row.next()) {
                    throw new IllegalStateException("a later holder was here");
                }
                long pieces = row.getLong("pieces") - 1;
                write.setLong(1, pieces);
                write.setLong(2, lease.token());
                if (write.executeUpdate() != 1) {
                    throw new IllegalStateException("a later holder was here");
                }
                System.out.println("pieces: " + pieces);
            }
        }
    }
}
