package io.github.fencepost.spring.boot;

import io.github.fencepost.Fencepost;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.core.env.Environment;

/**
 * Makes a {@link Fencepost} from the properties {@code fencepost.*}, and locks around methods with {@link Locked} or {@link OncePer}.
 *
 * <p>As everywhere in Spring, the annotations count for calls from other beans: a method that a bean calls on itself, and a private or final
 * one, is not locked. The lock is outside of a transaction of the same method, so it is released after the commit.
 */
@AutoConfiguration
@EnableConfigurationProperties(FencepostProperties.class)
public class FencepostAutoConfiguration {
    /** The client, unless the program has made one. */
    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    Fencepost fencepost(FencepostProperties properties, Environment environment, ObjectProvider<Fencepost.Listener> listener) {
        Fencepost.Builder builder = Fencepost.builder(properties.getUrls().toArray(String[]::new)).ttl(properties.getTtl());
        String holder = properties.getHolder() != null ? properties.getHolder() : environment.getProperty("spring.application.name");
        builder.holder(holder);
        if (properties.getToken() != null) {
            builder.token(properties.getToken());
        }
        if (properties.getTokenFile() != null) {
            builder.tokenFile(properties.getTokenFile());
        }
        if (properties.getCa() != null) {
            builder.authority(properties.getCa());
        }
        listener.ifUnique(builder::listener);
        return builder.build();
    }

    /** Makes the proxies. It is made before all other beans, so it asks for the client when a method is called. */
    @Bean
    static LockingPostProcessor fencepostLocking(BeanFactory beans) {
        return new LockingPostProcessor(new LockingInterceptor(beans.getBeanProvider(Fencepost.class), (ConfigurableBeanFactory) beans));
    }
}
