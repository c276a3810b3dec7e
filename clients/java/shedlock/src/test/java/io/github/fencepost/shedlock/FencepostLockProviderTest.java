package io.github.fencepost.shedlock;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.fencepost.Fencepost;
import io.github.fencepost.TestService;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.test.support.AbstractExtensibleLockProviderIntegrationTest;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** ShedLock's own test kit, with its fuzz test. */
class FencepostLockProviderTest extends AbstractExtensibleLockProviderIntegrationTest {
    private TestService service;
    private Fencepost locks;

    @BeforeEach
    void start() {
        service = new TestService();
        locks = Fencepost.connect(service.url());
    }

    @AfterEach
    void stop() {
        locks.close();
        service.close();
    }

    @Override
    protected ExtensibleLockProvider getLockProvider() {
        return new FencepostLockProvider(locks);
    }

    @Override
    protected void assertUnlocked(String name) {
        assertThat(service.holders(name)).isZero();
    }

    @Override
    protected void assertLocked(String name) {
        assertThat(service.holders(name)).isEqualTo(1);
    }
}
