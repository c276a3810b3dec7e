package io.github.fencepost.micrometer;

import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.micrometer.core.instrument.MeterRegistry;
import java.time.Duration;

/**
 * Timers of Micrometer for the locks of a client: {@code fencepost.lock.wait} with the {@code outcome} of each request, and {@code
 * fencepost.lock.held} with the {@code loss} of each lock, or {@code none}. No metric names a lock, because names have no limit.
 *
 * <pre>{@code
 * Fencepost locks = Fencepost.builder().listener(new FencepostMetrics(registry)).build();
 * }</pre>
 */
public final class FencepostMetrics implements Fencepost.Listener {
    private final MeterRegistry registry;

    /** Makes a listener for one client or several. */
    public FencepostMetrics(MeterRegistry registry) {
        this.registry = registry;
    }

    @Override
    public void asked(String name, String outcome, Duration waited) {
        registry.timer("fencepost.lock.wait", "outcome", outcome).record(waited);
    }

    @Override
    public void ended(String name, Duration held, FencepostException.Lost loss) {
        registry.timer("fencepost.lock.held", "loss", loss == null ? "none" : loss.loss()).record(held);
    }
}
