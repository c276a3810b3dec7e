package io.github.fencepost.spring.boot;

import io.github.fencepost.Fencepost;
import io.github.fencepost.FencepostLock;
import io.github.fencepost.Once;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicReference;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.ConfigurableBeanFactory;
import org.springframework.boot.convert.DurationStyle;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.Expression;
import org.springframework.expression.common.CompositeStringExpression;
import org.springframework.expression.common.TemplateParserContext;
import org.springframework.expression.spel.standard.SpelExpressionParser;

/** Calls a method under its lock. */
final class LockingInterceptor implements MethodInterceptor {
    private static final SpelExpressionParser EXPRESSIONS = new SpelExpressionParser();
    private static final DefaultParameterNameDiscoverer PARAMETERS = new DefaultParameterNameDiscoverer();

    private final ObjectProvider<Fencepost> locks;
    private final ConfigurableBeanFactory beans;

    LockingInterceptor(ObjectProvider<Fencepost> locks, ConfigurableBeanFactory beans) {
        this.locks = locks;
        this.beans = beans;
    }

    @Override
    public Object invoke(MethodInvocation call) throws Throwable {
        Method method = AopUtils.getMostSpecificMethod(call.getMethod(), call.getThis() == null ? null : AopUtils.getTargetClass(call.getThis()));
        Locked locked = AnnotatedElementUtils.findMergedAnnotation(method, Locked.class);
        OncePer once = AnnotatedElementUtils.findMergedAnnotation(method, OncePer.class);
        Callable<Object> body = () -> proceed(call);
        Callable<Object> guarded = locked == null ? body : () -> underLock(locked, method, call, body);
        try {
            return once == null ? guarded.call() : firing(once, method, call, guarded);
        } catch (Wrapped error) {
            throw error.getCause();
        }
    }

    private Object underLock(Locked locked, Method method, MethodInvocation call, Callable<Object> body) throws Exception {
        FencepostLock lock = locks.getObject().lock(name(locked.value(), method, call));
        lock = locked.ttl().isEmpty() ? lock : lock.withTtl(duration(locked.ttl()));
        return lock.call(locked.waitTime().isEmpty() ? null : duration(locked.waitTime()), lease -> body.call());
    }

    private Object firing(OncePer once, Method method, MethodInvocation call, Callable<Object> body) throws Exception {
        Once job = locks.getObject().once(name(once.name(), method, call), duration(once.value()));
        job = once.retry() ? job.withRetry() : job;
        job = once.ttl().isEmpty() ? job : job.withTtl(duration(once.ttl()));
        AtomicReference<Object> result = new AtomicReference<>(LockingPostProcessor.nothing(method));
        job.run(lease -> result.set(body.call()));
        return result.get();
    }

    /** A lock takes exceptions, and a method may also throw an error. */
    private static Object proceed(MethodInvocation call) throws Exception {
        try {
            return call.proceed();
        } catch (Exception | Error error) {
            throw error;
        } catch (Throwable error) {
            throw new Wrapped(error);
        }
    }

    private static final class Wrapped extends Exception {
        private static final long serialVersionUID = 1L;

        Wrapped(Throwable error) {
            super(error);
        }
    }

    private Duration duration(String text) {
        return DurationStyle.detectAndParse(beans.resolveEmbeddedValue(text));
    }

    private String name(String text, Method method, MethodInvocation call) {
        String resolved = beans.resolveEmbeddedValue(text);
        if (!resolved.contains("#{")) {
            return resolved;
        }
        var context = new MethodBasedEvaluationContext(call.getThis(), method, call.getArguments(), PARAMETERS);
        Expression parsed = EXPRESSIONS.parseExpression(resolved, new TemplateParserContext());
        Expression[] parts = parsed instanceof CompositeStringExpression composite ? composite.getExpressions() : new Expression[] {parsed};
        StringBuilder name = new StringBuilder();
        for (Expression part : parts) {
            Object value = part.getValue(context);
            if (value == null) {
                // The empty text would be the lock of all of them.
                throw new IllegalArgumentException("#{" + part.getExpressionString() + "} in the name of the lock of " + method
                        + " is null; the names of parameters need the option -parameters of javac, or write #p0");
            }
            name.append(value);
        }
        return name.toString();
    }
}
