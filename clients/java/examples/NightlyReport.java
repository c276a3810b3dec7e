import io.github.fencepost.Fencepost;
import io.github.fencepost.Once;
import java.time.Duration;

public class NightlyReport {
    public static void main(String[] args) throws InterruptedException {
        try (Fencepost locks = Fencepost.connect()) {
            Once report = locks.once("nightly-report", Duration.ofHours(24));      // the period of the job
            for (int host = 1; host <= 2; host++) {
                Once.Outcome outcome = report.run(lease -> System.out.println("reports"));
                if (outcome instanceof Once.Outcome.AlreadyRun run) {
                    System.out.println("ran before, exit code " + run.exitCode());
                }
            }
        }
    }
}
