package io.github.fencepost.spring.boot;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Each call of the method runs under a lock. A thread that has the lock may lock the name again.
 *
 * <p>A call that waits in vain throws {@link io.github.fencepost.FencepostException.TimedOut}, and one that does not wait {@link
 * io.github.fencepost.FencepostException.Busy}. If the lock was lost while the method ran, the call throws {@link
 * io.github.fencepost.FencepostException.Lost}, or what the method throws, with the loss as suppressed. {@link FencepostAutoConfiguration}
 * says what a proxy is.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface Locked {
    /** The name of the lock: a text with properties and with values of the arguments, such as {@code ${shop}/stock/#{#article}}. */
    String value();

    /** How long a call waits, such as {@code 5s}. Without it a call waits without a limit, and {@code 0s} is a try. */
    String waitTime() default "";

    /** How long the lock stays if this program dies, such as {@code 30s}. By default that is {@code fencepost.ttl}. */
    String ttl() default "";
}
