//! Reads the URL: `s3://bucket/prefix?region=eu-central-1`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{BackendUrl, Error, ErrorKind, Result, Secret};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{Certificate, ClientOptions, ObjectStore, RetryConfig};

use crate::error::{ENGINE, failure};
use crate::keys::LONGEST_PREFIX;

/// The schemes of this crate: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.
pub const SCHEMES: &[&str] = &["s3", "gs", "az"];

const OPTIONS: &[&str] = &["ca", "endpoint", "poll", "secret_env", "secret_file", "timeout"];

/// The time limit of an attempt to connect.
const CONNECT: Duration = Duration::from_secs(3);
/// A connection that was idle for longer is not used again, because a server may close it at that moment.
const IDLE: Duration = Duration::from_secs(20);

/// The contents of a URL.
#[derive(Clone)]
pub(crate) struct Config {
    kind: Kind,
    /// The bucket, or the container.
    bucket: String,
    /// The prefix of all keys.
    pub(crate) prefix: Path,
    endpoint: Option<String>,
    /// The part of the credentials that is a secret: of S3 the secret access key, of Azure the account's key, of Google the key file's text.
    secret: Option<Secret>,
    ca: Option<PathBuf>,
    /// The longest pause of a waiter between two looks.
    pub(crate) poll: Duration,
    /// The time limit of a request.
    pub(crate) timeout: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    S3 { region: Option<String>, access_key: Option<String> },
    Gs,
    Az { account: Option<String> },
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("store", &self.shown()).finish_non_exhaustive()
    }
}

impl Config {
    pub(crate) fn parse(address: &BackendUrl) -> Result<Config> {
        Config::read(address).map_err(|error| error.on(ENGINE))
    }

    fn read(address: &BackendUrl) -> Result<Config> {
        let own: &[&str] = match &*address.scheme {
            "s3" => &["access_key", "region"],
            "az" => &["account"],
            _ => &[],
        };
        address.only(&OPTIONS.iter().chain(own).copied().collect::<Vec<_>>())?;
        let text = |key: &str| address.option(key).map(str::to_owned);
        let given = |key: &str| match text(key) {
            Some(value) if value.is_empty() => Err(Error::invalid(format!("{key} is empty"))),
            value => Ok(value),
        };
        let kind = match &*address.scheme {
            "s3" => Kind::S3 { region: given("region")?, access_key: given("access_key")? },
            "gs" => Kind::Gs,
            _ => Kind::Az { account: given("account")? },
        };
        let (bucket, prefix) = place(address)?;
        let duration = |key, allowed, rule, default| {
            Ok::<_, Error>(address.duration(key, &["ms", "s", "m"], allowed, rule)?.unwrap_or(default))
        };
        let endpoint = given("endpoint")?;
        if let Some(endpoint) = &endpoint {
            check_endpoint(endpoint)?;
        }
        Ok(Config {
            kind,
            bucket,
            prefix,
            endpoint,
            secret: address.secret("secret")?,
            ca: given("ca")?.map(PathBuf::from),
            poll: duration("poll", 50..=60_000, "50ms to 60s", Duration::from_secs(1))?,
            timeout: duration("timeout", 100..=60_000, "100ms to 60s", Duration::from_secs(5))?,
        })
    }

    /// Names the place for messages.
    pub(crate) fn shown(&self) -> String {
        let scheme = match self.kind {
            Kind::S3 { .. } => "s3",
            Kind::Gs => "gs",
            Kind::Az { .. } => "az",
        };
        let slash = if self.prefix.as_ref().is_empty() { "" } else { "/" };
        format!("{scheme}://{}{slash}{}", self.bucket, self.prefix)
    }

    /// Names the place where clients meet: those of one process with the same one share a queue.
    pub(crate) fn place(&self) -> String {
        let account = match &self.kind {
            Kind::Az { account: Some(account) } => account,
            _ => "",
        };
        format!("{} {account} {}", self.shown(), self.endpoint.as_deref().unwrap_or_default())
    }

    /// Returns whether the URL asks for connections without TLS.
    pub(crate) fn is_plain(&self) -> bool {
        self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http:"))
    }

    /// Makes the driver. Nothing is sent. What the URL does not say comes from the environment variables that each provider's own tools
    /// read.
    pub(crate) fn driver(&self) -> Result<Arc<dyn ObjectStore>> {
        let broken = |error: object_store::Error| {
            // The driver's message may repeat a key that it cannot read.
            let _ = error;
            let message = "the store's settings are incomplete or wrong; check the URL, the credentials and the \
                 environment variables that begin with AWS_, GOOGLE_ or AZURE_";
            failure(ErrorKind::Configuration, format!("{}: {message}", self.shown()))
        };
        // Core repeats a request that failed. It must know of each attempt: of two the second finds what the first one wrote.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let options = self.options()?;
        Ok(match &self.kind {
            Kind::S3 { region, access_key } => {
                let mut builder = AmazonS3Builder::from_env()
                    .with_bucket_name(&self.bucket)
                    .with_retry(retry)
                    .with_client_options(options)
                    .with_conditional_put(S3ConditionalPut::ETagMatch);
                if let Some(region) = region {
                    builder = builder.with_region(region);
                }
                if let Some(access_key) = access_key {
                    builder = builder.with_access_key_id(access_key);
                }
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint);
                }
                if let Some(secret) = &self.secret {
                    builder = builder.with_secret_access_key(&*secret.text());
                }
                Arc::new(builder.build().map_err(broken)?)
            }
            Kind::Gs => {
                let mut builder = GoogleCloudStorageBuilder::from_env()
                    .with_bucket_name(&self.bucket)
                    .with_retry(retry)
                    .with_client_options(options);
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_base_url(endpoint);
                }
                if let Some(secret) = &self.secret {
                    builder = builder.with_service_account_key(&*secret.text());
                }
                Arc::new(builder.build().map_err(broken)?)
            }
            Kind::Az { account } => {
                let mut builder = MicrosoftAzureBuilder::from_env()
                    .with_container_name(&self.bucket)
                    .with_retry(retry)
                    .with_client_options(options);
                if let Some(account) = account {
                    builder = builder.with_account(account);
                }
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint.clone());
                }
                if let Some(secret) = &self.secret {
                    builder = builder.with_access_key(&*secret.text());
                }
                Arc::new(builder.build().map_err(broken)?)
            }
        })
    }

    fn options(&self) -> Result<ClientOptions> {
        let mut options = ClientOptions::new()
            .with_allow_http(self.is_plain())
            .with_timeout(self.timeout)
            .with_connect_timeout(CONNECT.min(self.timeout))
            .with_pool_idle_timeout(IDLE);
        if let Some(path) = &self.ca {
            let broken = |what: &str| {
                failure(ErrorKind::Configuration, format!("ca names {}, which {what}", path.display()))
            };
            let pem = std::fs::read(path).map_err(|error| broken("cannot be read").because(error))?;
            let certificates = Certificate::from_pem_bundle(&pem).unwrap_or_default();
            if certificates.is_empty() {
                return Err(broken("has no certificate in PEM"));
            }
            options = certificates.into_iter().fold(options, ClientOptions::with_root_certificate);
        }
        Ok(options)
    }
}

/// Reads the bucket and the prefix.
fn place(address: &BackendUrl) -> Result<(String, Path)> {
    let scheme = &address.scheme;
    let rule = || {
        Error::invalid(format!(
            "the URL names no bucket; write {scheme}://bucket or {scheme}://bucket/prefix, in letters, digits, dots and hyphens"
        ))
    };
    let rest = address.rest.strip_prefix("//").ok_or_else(rule)?;
    if rest.contains('@') {
        return Err(Error::invalid(
            "the URL has a user or a key; give the secret with secret_file=/path or secret_env=NAME, or in the environment variables of \
             the provider's own tools",
        ));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_$".contains(&byte);
    if bucket.is_empty() || bucket.len() > 222 || !bucket.bytes().all(sound) {
        return Err(rule());
    }
    let prefix = BackendUrl::decode(prefix.trim_matches('/'))?;
    if prefix.len() > LONGEST_PREFIX {
        return Err(Error::invalid(format!("the prefix is longer than {LONGEST_PREFIX} bytes")));
    }
    let part = |part: &str| {
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".-_=!".contains(&byte);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(sound)
    };
    if !prefix.is_empty() && !prefix.split('/').all(part) {
        return Err(Error::invalid(
            "the prefix is written in letters, digits and the characters . - _ = ! with single slashes between its parts",
        ));
    }
    Ok((bucket.to_owned(), Path::from(prefix)))
}

fn check_endpoint(endpoint: &str) -> Result<()> {
    let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    let sound = |rest: &&str| {
        let host = rest.split('/').next().unwrap_or_default();
        !host.is_empty() && !rest.bytes().any(|byte| byte.is_ascii_whitespace() || b"@?#".contains(&byte))
    };
    match rest.filter(sound) {
        Some(_) => Ok(()),
        None => Err(Error::invalid(
            "endpoint is the address of a server, as in https://storage.example.org or http://127.0.0.1:9000",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Config> {
        Config::parse(&BackendUrl::parse(url)?)
    }

    #[test]
    fn a_url_is_read() {
        let config = parsed("s3://team-locks/prod/a?region=eu-central-1&poll=2s&timeout=500ms").unwrap();
        assert_eq!((&*config.bucket, config.prefix.as_ref()), ("team-locks", "prod/a"));
        assert_eq!((config.poll, config.timeout), (Duration::from_secs(2), Duration::from_millis(500)));
        let region = Some("eu-central-1".to_owned());
        assert_eq!(config.kind, Kind::S3 { region, access_key: None });
        assert_eq!(config.shown(), "s3://team-locks/prod/a");
        let config = parsed("az://c/?account=me&endpoint=http://127.0.0.1:10000/me").unwrap();
        assert_eq!((config.shown(), config.is_plain()), ("az://c".to_owned(), true));
        assert_eq!(config.kind, Kind::Az { account: Some("me".to_owned()) });
        assert_eq!(parsed("gs://b").unwrap().kind, Kind::Gs);
    }

    #[test]
    fn a_url_that_breaks_a_rule_is_refused() {
        for (url, rule) in [
            ("s3:bucket", "names no bucket"),
            ("s3://", "names no bucket"),
            ("s3://a b", "names no bucket"),
            ("s3://key:hunter2@bucket", "secret_file"),
            ("s3://b?secret=hunter2", "not an option"),
            ("s3://b?account=hunter2", "not an option"),
            ("gs://b?region=x", "not an option"),
            ("s3://b/a//b", "single slashes"),
            ("s3://b/../c", "single slashes"),
            ("s3://b?endpoint=host:9000", "address of a server"),
            ("s3://b?endpoint=https://me:hunter2%40h", "address of a server"),
            ("s3://b?poll=1ms", "50ms to 60s"),
            ("s3://b?region=", "is empty"),
        ] {
            let error = parsed(url).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains(rule), "{url}: {error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_secret_is_read_from_a_file_and_not_shown() {
        let folder = fencepost_testkit::server::TempDir::new("object-config").unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hunter2, which is no account key\n").unwrap();
        let config = parsed(&format!("az://c?account=me&secret_file={}", path.display())).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        let error = config.driver().map(drop).unwrap_err();
        assert!(error.is_configuration() && !error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn a_missing_authority_is_named() {
        let error = parsed("s3://b?ca=/nowhere/ca.pem").unwrap().driver().map(drop).unwrap_err();
        assert!(error.is_configuration() && error.to_string().contains("/nowhere/ca.pem"), "{error}");
    }
}
