package io.github.fencepost;

import java.io.IOException;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** The process as operators see it. */
final class Host {
    static final Map<String, Object> PROCESS = Map.of("host", name(), "pid", ProcessHandle.current().pid());

    private Host() {}

    private static String name() {
        try {
            return Files.readString(Path.of("/proc/sys/kernel/hostname")).strip();
        } catch (IOException | SecurityException e) {
            try {
                return InetAddress.getLocalHost().getHostName();
            } catch (UnknownHostException unknown) {
                return "localhost";
            }
        }
    }
}
