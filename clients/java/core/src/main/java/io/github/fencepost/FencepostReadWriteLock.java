package io.github.fencepost;

import java.util.concurrent.locks.ReadWriteLock;

/** Many readers or one writer. A thread that writes may also read; one that reads cannot begin to write. */
public record FencepostReadWriteLock(FencepostLock readLock, FencepostLock writeLock) implements ReadWriteLock {}
