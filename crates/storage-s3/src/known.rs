//! Credentials and settings, from where AWS's tools look for them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use http_wire::signature::Credentials;
use secret::Secret;

use crate::profile::value;

/// Bytes of a profile file at most.
const PROFILE_BYTES_MAX: u64 = 1 << 20;

/// Variables of the environment. Their values are not shown.
#[derive(Clone)]
pub struct Environment(fn(&str) -> Option<String>);

impl Environment {
    /// The variables that `get` gives.
    pub fn new(get: fn(&str) -> Option<String>) -> Self {
        Self(get)
    }

    /// Those of this process.
    pub fn of_process() -> Self {
        Self(|name| std::env::var(name).ok())
    }

    fn get(&self, names: &[&str]) -> Option<String> {
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
    /// `None`: requests are not signed.
    pub credentials: Option<Credentials>,
    /// The region.
    pub region: Option<String>,
    /// The store's URL.
    pub endpoint: Option<String>,
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
    /// A profile that no file has.
    #[error("there is no profile {name:?} with aws_access_key_id and aws_secret_access_key in {}", .path.display())]
    NoProfile {
        /// The profile.
        name: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// One of two that belong together.
    #[error("{found} is given and {missing} is not")]
    Half {
        /// What there is.
        found: &'static str,
        /// What there is not.
        missing: &'static str,
    },
    /// A secret that holds something else.
    #[error("the secret is not ACCESS_KEY_ID:SECRET_ACCESS_KEY, or with :SESSION_TOKEN behind it")]
    Secret,
}

impl Settings {
    /// Looks at the variables (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_DEFAULT_REGION`,
    /// `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`), then at the profile (`AWS_PROFILE`, or `default`) in `~/.aws/credentials` and
    /// `~/.aws/config` (`AWS_SHARED_CREDENTIALS_FILE`, `AWS_CONFIG_FILE`). Reads files: not on a loop's thread.
    ///
    /// # Errors
    /// When a file cannot be read, half of the credentials is missing, or there is no profile of the name that is given.
    pub fn look_up(environment: &Environment) -> Result<Self, KnownError> {
        let named = environment.get(&["AWS_PROFILE"]);
        let profile = named.clone().unwrap_or_else(|| "default".to_owned());
        let home = environment.get(&["HOME"]).map(PathBuf::from);
        let file = |variable: &str, name: &str| {
            let at_home = || home.as_ref().map(|home| home.join(".aws").join(name));
            environment.get(&[variable]).map(PathBuf::from).or_else(at_home)
        };
        let credentials_file = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = file("AWS_CONFIG_FILE", "config").map_or(Ok(String::new()), |path| text(&path))?;
        let of_config = |key: &str| value(&config, &profile, key).map(str::to_owned);
        let given = environment.get(&["AWS_ACCESS_KEY_ID"]);
        let credentials = match (given, environment.get(&["AWS_SECRET_ACCESS_KEY"])) {
            (Some(access_key), Some(secret_key)) => Some(Credentials {
                access_key,
                secret_key: Secret::new(secret_key.into_bytes()),
                session_token: environment
                    .get(&["AWS_SESSION_TOKEN"])
                    .map(|token| Secret::new(token.into_bytes())),
            }),
            (Some(_), None) => {
                return Err(KnownError::Half {
                    found: "AWS_ACCESS_KEY_ID",
                    missing: "AWS_SECRET_ACCESS_KEY",
                });
            }
            (None, Some(_)) => {
                return Err(KnownError::Half {
                    found: "AWS_SECRET_ACCESS_KEY",
                    missing: "AWS_ACCESS_KEY_ID",
                });
            }
            (None, None) => {
                let path = credentials_file.unwrap_or_default();
                let found = of_profile(&text(&path)?, &config, &profile);
                match (found, named) {
                    (None, Some(name)) => return Err(KnownError::NoProfile { name, path }),
                    (found, _) => found,
                }
            }
        };
        let region = environment.get(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
        let endpoint = environment.get(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]);
        Ok(Self {
            credentials,
            region: region.or_else(|| of_config("region")),
            endpoint: endpoint.or_else(|| of_config("endpoint_url")),
        })
    }
}

/// The credentials in a secret: `ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]`, with or without a line's end.
///
/// # Errors
/// When it holds something else.
pub fn credentials_of_secret(secret: &Secret) -> Result<Credentials, KnownError> {
    let text = std::str::from_utf8(secret.bytes()).map_err(|_| KnownError::Secret)?;
    let mut parts = text.trim_end_matches(['\r', '\n']).splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(access_key), Some(secret_key), token) if !access_key.is_empty() && !secret_key.is_empty() => {
            Ok(Credentials {
                access_key: access_key.to_owned(),
                secret_key: Secret::copy_of(secret_key.as_bytes()),
                session_token: token.map(|token| Secret::copy_of(token.as_bytes())),
            })
        }
        _ => Err(KnownError::Secret),
    }
}

fn of_profile(credentials: &str, config: &str, profile: &str) -> Option<Credentials> {
    let get = |key: &str| value(credentials, profile, key).or_else(|| value(config, profile, key));
    Some(Credentials {
        access_key: get("aws_access_key_id")?.to_owned(),
        secret_key: Secret::copy_of(get("aws_secret_access_key")?.as_bytes()),
        session_token: get("aws_session_token").map(|token| Secret::copy_of(token.as_bytes())),
    })
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
    fn variables_come_first_and_both_halves_are_needed() {
        let environment = Environment::new(|name| {
            let known = [
                ("AWS_ACCESS_KEY_ID", "A"),
                ("AWS_SECRET_ACCESS_KEY", "hush"),
                ("AWS_SESSION_TOKEN", "quiet"),
                ("AWS_DEFAULT_REGION", "r"),
                ("AWS_ENDPOINT_URL", "http://h"),
            ];
            known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        });
        let known = Settings::look_up(&environment).unwrap();
        let credentials = known.credentials.as_ref().unwrap();
        assert_eq!((credentials.access_key.as_str(), credentials.secret_key.bytes()), ("A", &b"hush"[..]));
        assert_eq!((known.region.as_deref(), known.endpoint.as_deref()), (Some("r"), Some("http://h")));
        let shown = format!("{known:?} {environment:?}");
        assert!(!shown.contains("hush") && !shown.contains("quiet"), "{shown}");
        let half = Environment::new(|name| (name == "AWS_ACCESS_KEY_ID").then(|| "A".to_owned()));
        let error = Settings::look_up(&half).unwrap_err().to_string();
        assert_eq!(error, "AWS_ACCESS_KEY_ID is given and AWS_SECRET_ACCESS_KEY is not");
        let nothing = Settings::look_up(&Environment::new(|_| None)).unwrap();
        assert!(nothing.credentials.is_none() && nothing.region.is_none());
    }

    #[test]
    fn a_secret_has_two_or_three_parts() {
        let of = |text: &str| credentials_of_secret(&Secret::copy_of(text.as_bytes()));
        let credentials = of("A:b/c+d:to:ken\n").unwrap();
        assert_eq!(credentials.secret_key.bytes(), b"b/c+d");
        assert_eq!(credentials.session_token.as_ref().map(Secret::bytes), Some(&b"to:ken"[..]));
        assert!(of("A:b").unwrap().session_token.is_none());
        assert!(of("hush").is_err() && of(":b").is_err() && of("A:").is_err());
    }
}
