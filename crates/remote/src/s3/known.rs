//! Settings of stores, from where the tools of their services look for them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::s3::profile::value;
use crate::s3::service::Service;

/// Bytes of a profile file at most.
const PROFILE_BYTES_MAX: u64 = 1 << 20;

/// What a variable says, if there is one.
type Get = dyn Fn(&str) -> Option<String> + Send + Sync;

/// Variables of the environment. Their values are not shown.
#[derive(Clone)]
pub struct Environment(Arc<Get>);

impl Environment {
    /// The variables that `get` gives.
    pub fn new(get: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(get))
    }

    /// Those of this process.
    pub fn of_process() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }

    pub(crate) fn get(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| (self.0)(name).filter(|value| !value.is_empty()))
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment { .. }")
    }
}

/// What is known of a store without being said on a drive.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The region.
    pub region: Option<String>,
    /// The store's URL.
    pub endpoint: Option<String>,
    /// Whose blobs they are, at Azure.
    pub account: Option<String>,
}

/// What is known makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum KnownError {
    /// A file of profiles that cannot be read.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A secret that holds something else.
    #[error("the secret is not ACCESS_KEY_ID:SECRET_ACCESS_KEY, or with :SESSION_TOKEN behind it")]
    Secret,
    /// The same of Google's.
    #[error("the secret is no file of credentials of Google's, in JSON")]
    GoogleSecret,
    /// The same of Azure's.
    #[error("the secret is neither ACCOUNT:KEY nor a SAS token")]
    AzureSecret,
    /// Nothing says whose blobs are meant.
    #[error("no storage account is named: give AZURE_STORAGE_ACCOUNT_NAME, or the endpoint")]
    NoAccount,
}

impl Settings {
    /// What is known of a store of this service. Reads files: not on a loop's thread.
    ///
    /// S3: the variables `AWS_REGION`, `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3` and `AWS_ENDPOINT_URL`, then the profile (`AWS_PROFILE`,
    /// or `default`) in `~/.aws/config` (`AWS_CONFIG_FILE`). Google: `STORAGE_EMULATOR_HOST`. Azure: `AZURE_STORAGE_SERVICE_ENDPOINT`,
    /// `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT`.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn look_up(service: Service, environment: &Environment) -> Result<Self, KnownError> {
        match service {
            Service::S3 => Self::of_aws(environment),
            Service::Google => {
                let emulator = environment.get(&["STORAGE_EMULATOR_HOST"]);
                let with_scheme = |host: String| match host.contains("://") {
                    true => host,
                    false => format!("http://{host}"),
                };
                Ok(Self { endpoint: emulator.map(with_scheme), ..Self::default() })
            }
            Service::Azure => Ok(Self {
                endpoint: environment.get(&["AZURE_STORAGE_SERVICE_ENDPOINT"]),
                account: environment.get(&["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"]),
                ..Self::default()
            }),
        }
    }

    fn of_aws(environment: &Environment) -> Result<Self, KnownError> {
        let profile = environment.get(&["AWS_PROFILE"]).unwrap_or_else(|| "default".to_owned());
        let at_home = || Some(PathBuf::from(environment.get(&["HOME"])?).join(".aws").join("config"));
        let config = environment.get(&["AWS_CONFIG_FILE"]).map(PathBuf::from).or_else(at_home);
        let config = config.map_or(Ok(String::new()), |path| text(&path))?;
        let of_config = |key: &str| value(&config, &profile, key).map(str::to_owned);
        let region = environment.get(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
        let endpoint = environment.get(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
        let region = region.or_else(|| of_config("region"));
        Ok(Self { region, endpoint: endpoint.or_else(|| of_config("endpoint_url")), account: None })
    }
}

/// The text of a file; empty if there is none.
fn text(path: &Path) -> Result<String, KnownError> {
    use std::io::Read;
    let read = std::fs::File::open(path).and_then(|file| {
        let mut text = String::new();
        file.take(PROFILE_BYTES_MAX).read_to_string(&mut text).map(|_| text)
    });
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|source| KnownError::File { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_its_variables() {
        let environment = Environment::new(|name| {
            let known = [
                ("AWS_DEFAULT_REGION", "r"),
                ("AWS_ENDPOINT_URL", "http://h"),
                ("AWS_ENDPOINT_URL_S3", ""),
                ("STORAGE_EMULATOR_HOST", "e:4443"),
                ("AZURE_STORAGE_ACCOUNT", "me"),
            ];
            known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        });
        let known = |service| {
            let Settings { region, endpoint, account } = Settings::look_up(service, &environment).unwrap();
            [region, endpoint, account].map(Option::unwrap_or_default)
        };
        assert_eq!(known(Service::S3), ["r", "http://h", ""]);
        assert_eq!(known(Service::Google), ["", "http://e:4443", ""]);
        assert_eq!(known(Service::Azure), ["", "", "me"]);
    }
}
