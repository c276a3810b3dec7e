package io.github.fencepost.spring.boot;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostException;
import io.github.fencepost.TestService;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.BeanCreationException;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.scheduling.annotation.EnableScheduling;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;

class FencepostStarterTest {
    private TestService service;
    private ConfigurableApplicationContext first;
    private ConfigurableApplicationContext second;

    @BeforeEach
    void start() {
        service = new TestService();
        first = host(Program.class);
        second = host(Program.class);
    }

    @AfterEach
    void stop() {
        first.close();
        second.close();
        service.close();
    }

    private ConfigurableApplicationContext host(Class<?> program) {
        return new SpringApplicationBuilder(program).run(
                "--fencepost.urls=" + service.url(), "--fencepost.ttl=5s", "--spring.application.name=shop", "--place=north");
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    static class Program {
        @Bean
        Stock stock(Fencepost locks) {
            return new Stock();
        }
    }

    static class Stock {
        private int reports;

        @Locked("${place}/stock/#{#article}")
        public <T> T sell(Integer article, Callable<T> body) throws Exception {
            return body.call();
        }

        @Locked(value = "${place}/stock/#{#p0}", waitTime = "${patience:0s}")
        public String trySell(int article) {
            return "sold";
        }

        @Locked(value = "${place}/stock/42", waitTime = "1s")
        public String sellSoon() {
            return "sold";
        }

        @OncePer(value = "24h", name = "report")
        public Integer report() {
            return ++reports;
        }

        @OncePer(value = "24h", name = "attempts", retry = true)
        public Optional<String> attempt(boolean fails) {
            if (fails) {
                throw new IllegalStateException("failed");
            }
            return Optional.of("done");
        }
    }

    @Test
    void aMethodRunsUnderItsLock() throws Exception {
        Stock here = first.getBean(Stock.class);
        Stock there = second.getBean(Stock.class);
        String said = here.sell(42, () -> {
            assertEquals(1, service.holders("north/stock/42"));
            // The same thread may lock again, and another host may not.
            assertEquals("sold", here.trySell(42));
            FencepostException.Busy busy = assertThrows(FencepostException.Busy.class, () -> there.trySell(42));
            assertEquals(List.of("shop"), busy.holders());
            assertThrows(FencepostException.TimedOut.class, there::sellSoon);
            return there.trySell(43);
        });
        assertEquals("sold", said);
        // Not the lock of all articles.
        assertThrows(IllegalArgumentException.class, () -> here.sell(null, () -> "sold"));
        assertEquals(0, service.holders("north/stock/42"));
        Exception failure = new Exception("of the body");
        assertSame(failure, assertThrows(Exception.class, () -> here.sell(42, () -> {
            throw failure;
        })));
        assertEquals("sold", there.trySell(42));
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    static class Storing {
        @Bean
        Store store(JdbcTemplate database) {
            return new Store(database);
        }
    }

    static class Store {
        private final JdbcTemplate database;

        Store(JdbcTemplate database) {
            this.database = database;
        }

        @Transactional
        @Locked("${place}/stock/42")
        public void sell(Runnable after, boolean fails) {
            assertTrue(TransactionSynchronizationManager.isActualTransactionActive());
            database.update("INSERT INTO sales VALUES (42)");
            TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
                @Override
                public void afterCompletion(int status) {
                    after.run();
                }
            });
            if (fails) {
                throw new IllegalStateException("failed");
            }
        }
    }

    @Test
    void theLockIsReleasedWhenTheTransactionHasEnded() {
        try (ConfigurableApplicationContext shop = host(Storing.class)) {
            JdbcTemplate database = shop.getBean(JdbcTemplate.class);
            database.execute("CREATE TABLE sales (article INT)");
            // Another thread has a connection of its own, which sees only what was committed.
            Supplier<Integer> sales = () -> database.queryForObject("SELECT COUNT(*) FROM sales", Integer.class);
            List<Integer> seen = new ArrayList<>();
            Runnable look = () -> {
                seen.add(service.holders("north/stock/42"));
                seen.add(CompletableFuture.supplyAsync(sales).join());
            };
            shop.getBean(Store.class).sell(look, false);
            assertThrows(IllegalStateException.class, () -> shop.getBean(Store.class).sell(look, true));
            assertEquals(List.of(1, 1, 1, 1), seen);
            assertEquals(0, service.holders("north/stock/42"));
        }
    }

    @Test
    void aLossIsToldAfterTheMethod() {
        Stock stock = first.getBean(Stock.class);
        FencepostException.Lost lost = assertThrows(FencepostException.Lost.class, () -> stock.sell(42, () -> {
            service.evict("north/stock/42", "deploy");
            return first.getBean(Fencepost.class).lock("north/stock/42").held().awaitLoss();
        }));
        assertEquals("evicted", lost.loss());
    }

    @Test
    void aJobRunsOnceForEachFiring() {
        assertEquals(1, first.getBean(Stock.class).report());
        assertNull(first.getBean(Stock.class).report());
        assertNull(second.getBean(Stock.class).report());
        assertThrows(IllegalStateException.class, () -> first.getBean(Stock.class).attempt(true));
        assertEquals(Optional.of("done"), second.getBean(Stock.class).attempt(false));
        assertEquals(Optional.empty(), first.getBean(Stock.class).attempt(false));
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @EnableScheduling
    static class Scheduling {
        static final AtomicInteger RUNS = new AtomicInteger();
        static final CountDownLatch FIRED = new CountDownLatch(2);

        @Bean
        Nightly nightly() {
            return new Nightly();
        }

        @Bean
        Beside beside() {
            return new Beside();
        }
    }

    static class Nightly {
        @Scheduled(fixedDelay = 3_600_000)
        @OncePer(value = "1h", name = "nightly")
        public void run() {
            Scheduling.RUNS.incrementAndGet();
        }
    }

    /** Comes behind the job on the one thread of the scheduler. */
    static class Beside {
        @Scheduled(fixedDelay = 3_600_000, initialDelay = 1)
        public void run() {
            Scheduling.FIRED.countDown();
        }
    }

    @Test
    void aScheduledJobRunsOnOneOfTwoHosts() throws InterruptedException {
        try (ConfigurableApplicationContext here = host(Scheduling.class); ConfigurableApplicationContext there = host(Scheduling.class)) {
            assertTrue(here.isActive() && there.isActive());
            Scheduling.FIRED.await();
        }
        assertEquals(1, Scheduling.RUNS.get());
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    static class Mistaken {
        @Bean
        Counting counting() {
            return new Counting();
        }
    }

    static class Counting {
        @OncePer(value = "1h", name = "count")
        public int count() {
            return 1;
        }
    }

    @Test
    void aResultThatCannotBeMissingIsRefused() {
        BeanCreationException refused = assertThrows(BeanCreationException.class, () -> host(Mistaken.class));
        assertTrue(refused.getMostSpecificCause().getMessage().contains("return an object or nothing"));
    }
}
