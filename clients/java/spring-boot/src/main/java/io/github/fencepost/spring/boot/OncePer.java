package io.github.fencepost.spring.boot;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * The method is a job that several hosts start at the same time, for example by {@code @Scheduled}, and that runs once for each firing. A
 * call for a firing that has run, or that runs elsewhere now, does nothing: it returns null, or an empty {@code Optional}.
 *
 * <p>An exception of the method counts as the exit code 1.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface OncePer {
    /** The period of the job, such as {@code 24h}. */
    String value();

    /** The name of the lock, as in {@link Locked#value}. */
    String name();

    /** Whether the next host runs a firing again whose run failed, or whose host died. */
    boolean retry() default false;

    /** How long the lock stays if this program dies. By default that is {@code fencepost.ttl}. */
    String ttl() default "";
}
