package io.github.fencepost;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;

/**
 * A moment, which knows how much time has passed since. {@link System#nanoTime} stops while the machine is suspended, and the lease does
 * not. So {@code /proc/uptime} counts, and where there is none, the earlier verdict of the monotonic clock and of the wall clock.
 */
final class Moment {
    /** {@code /proc/uptime} has two digits behind the point. */
    private static final long STEP = 10;
    // Not a channel: an interrupt of one thread closes a channel for all of them.
    private static final RandomAccessFile UPTIME = open();

    private final long uptime = uptime();
    private final long nanos = System.nanoTime();
    private final long wall = System.currentTimeMillis();

    /** The milliseconds that have passed since, at most. */
    long elapsed() {
        long now = uptime();
        if (uptime >= 0 && now >= 0) {
            return now + STEP - uptime;
        }
        return Math.max((System.nanoTime() - nanos) / 1_000_000 + 1, System.currentTimeMillis() - wall);
    }

    private static RandomAccessFile open() {
        try {
            return new RandomAccessFile("/proc/uptime", "r");
        } catch (IOException | SecurityException e) {
            return null;
        }
    }

    private static long uptime() {
        if (UPTIME == null) {
            return -1;
        }
        byte[] read = new byte[64];
        try {
            int length;
            synchronized (UPTIME) {
                UPTIME.seek(0);
                length = UPTIME.read(read);
            }
            String first = new String(read, 0, Math.max(0, length), StandardCharsets.US_ASCII).split(" ")[0];
            int point = first.indexOf('.');
            return Long.parseLong(first.substring(0, point)) * 1000 + Long.parseLong(first.substring(point + 1)) * STEP;
        } catch (IOException | RuntimeException e) {
            return -1;
        }
    }
}
