package io.github.fencepost.spring.boot;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.springframework.boot.context.properties.ConfigurationProperties;

/** The properties {@code fencepost.*}. */
@ConfigurationProperties("fencepost")
public final class FencepostProperties {
    /** The addresses of the lock service; by default those in the environment's FENCEPOST_URL. */
    private List<String> urls = List.of();

    /** The access token; by default that in FENCEPOST_SERVICE_TOKEN. */
    private String token;

    /** A file with the access token, which is read again when the service refuses the one that is known. */
    private Path tokenFile;

    /** A file with the certificates that are trusted instead of those of Java. */
    private Path ca;

    /** How long a lock stays if this program dies. */
    private Duration ttl = Duration.ofSeconds(30);

    /** The label that operators see; by default spring.application.name. */
    private String holder;

    public List<String> getUrls() {
        return urls;
    }

    public void setUrls(List<String> urls) {
        this.urls = urls;
    }

    public String getToken() {
        return token;
    }

    public void setToken(String token) {
        this.token = token;
    }

    public Path getTokenFile() {
        return tokenFile;
    }

    public void setTokenFile(Path tokenFile) {
        this.tokenFile = tokenFile;
    }

    public Path getCa() {
        return ca;
    }

    public void setCa(Path ca) {
        this.ca = ca;
    }

    public Duration getTtl() {
        return ttl;
    }

    public void setTtl(Duration ttl) {
        this.ttl = ttl;
    }

    public String getHolder() {
        return holder;
    }

    public void setHolder(String holder) {
        this.holder = holder;
    }
}
