package io.github.fencepost.spring.boot;

import java.lang.reflect.Method;
import java.util.Optional;
import org.springframework.aop.framework.AbstractAdvisingBeanPostProcessor;
import org.springframework.aop.support.AopUtils;
import org.springframework.aop.support.ComposablePointcut;
import org.springframework.aop.support.DefaultPointcutAdvisor;
import org.springframework.aop.support.annotation.AnnotationMatchingPointcut;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.annotation.AnnotatedElementUtils;

/** Puts {@link LockingInterceptor} around the beans with annotated methods, outside of what is around them already. */
final class LockingPostProcessor extends AbstractAdvisingBeanPostProcessor {
    private static final long serialVersionUID = 1L;

    LockingPostProcessor(LockingInterceptor interceptor) {
        ComposablePointcut pointcut = new ComposablePointcut(AnnotationMatchingPointcut.forMethodAnnotation(Locked.class))
                .union((org.springframework.aop.Pointcut) AnnotationMatchingPointcut.forMethodAnnotation(OncePer.class));
        advisor = new DefaultPointcutAdvisor(pointcut, interceptor);
        setBeforeExistingAdvisors(true);
        setProxyTargetClass(true);
        // Before the processors of @Scheduled and the like, which take the proxy.
        setOrder(HIGHEST_PRECEDENCE + 100);
    }

    @Override
    public Object postProcessAfterInitialization(Object bean, String name) {
        MethodIntrospector.selectMethods(AopUtils.getTargetClass(bean), LockingPostProcessor::isAllowed);
        return super.postProcessAfterInitialization(bean, name);
    }

    /** Refuses a method that could not say that it did not run. */
    private static boolean isAllowed(Method method) {
        Class<?> result = method.getReturnType();
        if (result.isPrimitive() && result != void.class && AnnotatedElementUtils.hasAnnotation(method, OncePer.class)) {
            throw new IllegalStateException("@OncePer on " + method + ": a call that does not run returns null; return an object or nothing");
        }
        return false;
    }

    /** What a call returns that does not run. */
    static Object nothing(Method method) {
        return method.getReturnType() == Optional.class ? Optional.empty() : null;
    }
}
