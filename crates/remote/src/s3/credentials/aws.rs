//! Credentials for S3, from where AWS's tools look for them.

use memory::secret::Secret;
use reqsign_aws_v4::{
    AssumeRoleWithWebIdentityCredentialProvider, Credential, ECSCredentialProvider, EnvCredentialProvider,
    IMDSv2CredentialProvider, ProcessCredentialProvider, ProfileCredentialProvider, SSOCredentialProvider,
    StaticCredentialProvider,
};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, ProvideCredential, Result};

use super::context::context;
use super::role::{RoleOfProfile, chosen, path_of};
use super::{Ending, Provider, Source};
use crate::s3::known::{Environment, KnownError};
use crate::s3::profile::value;

impl Ending for Credential {
    fn ends(&self) -> Option<Timestamp> {
        self.expires_in
    }
}

/// What a secret holds, or what `environment` leads to: variables, the profile (a role, keys, SSO, a program), a token of the cluster, the
/// container's endpoint, and at last the instance's metadata.
///
/// # Errors
/// When the secret holds something else.
pub fn aws(
    environment: Environment,
    secret: Option<&Secret>,
) -> std::result::Result<Source<Credential>, KnownError> {
    let context = context(environment);
    if let Some(secret) = secret {
        return Ok(Source::new(context, vec![Provider::new("the secret", of_secret(secret)?)]));
    }
    let providers = vec![
        Provider::new("the environment", Halves),
        Provider::new("the environment", EnvCredentialProvider::new()),
        Provider::new("role_arn of the profile", RoleOfProfile),
        Provider::new("the profile", ProfileCredentialProvider::new()),
        Provider::new("SSO of the profile", SsoSession::default()),
        Provider::new("SSO of the profile", SSOCredentialProvider::new()),
        Provider::new("credential_process of the profile", ProcessCredentialProvider::new()),
        Provider::new("AWS_PROFILE", NamedProfile),
        Provider::new("AWS_WEB_IDENTITY_TOKEN_FILE", AssumeRoleWithWebIdentityCredentialProvider::new()),
        Provider::new("the container's credentials", ECSCredentialProvider::new()),
        Provider::guess("the instance's metadata", IMDSv2CredentialProvider::new()),
    ];
    Ok(Source::new(context, providers))
}

/// `ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]`, with or without a line's end.
fn of_secret(secret: &Secret) -> std::result::Result<StaticCredentialProvider, KnownError> {
    let text = std::str::from_utf8(secret.bytes()).map_err(|_| KnownError::Secret)?;
    let mut parts = text.trim_end_matches(['\r', '\n']).splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(access_key), Some(secret_key), token) if !access_key.is_empty() && !secret_key.is_empty() => {
            let provider = StaticCredentialProvider::new(access_key, secret_key);
            Ok(token.map_or(provider.clone(), |token| provider.with_session_token(token)))
        }
        _ => Err(KnownError::Secret),
    }
}

/// Refuses one half of a key: the other half would come from elsewhere.
#[derive(Debug)]
struct Halves;

impl ProvideCredential for Halves {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        let names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        match names.map(|name| context.env_var(name).is_some()) {
            [true, false] => {
                Err(Error::config_invalid(format!("{} is given and {} is not", names[0], names[1])))
            }
            [false, true] => {
                Err(Error::config_invalid(format!("{} is given and {} is not", names[1], names[0])))
            }
            _ => Ok(None),
        }
    }
}

/// Ends the search where a profile was named that has none: others are not meant.
#[derive(Debug)]
struct NamedProfile;

impl ProvideCredential for NamedProfile {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        let Some(name) = context.env_var("AWS_PROFILE") else { return Ok(None) };
        let path = path_of(context, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
        Err(Error::config_invalid(format!(
            "there is no profile {name:?} with aws_access_key_id and aws_secret_access_key in {}, nor one with \
             sso_account_id and sso_role_name (and sso_session, or sso_region and sso_start_url), with credential_process, or with role_arn, in the file config",
            path.unwrap_or_default().display()
        )))
    }
}

/// A profile with `sso_session`, the name of a section that profiles share.
#[derive(Debug, Default)]
pub(super) struct SsoSession {
    /// The profile; `None`: the chosen one.
    profile: Option<String>,
}

impl SsoSession {
    pub(super) fn of(profile: &str) -> Self {
        Self { profile: Some(profile.to_owned()) }
    }
}

impl ProvideCredential for SsoSession {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        let Some(path) = path_of(context, "AWS_CONFIG_FILE", "config") else { return Ok(None) };
        let path = path.to_string_lossy().into_owned();
        let Ok(config) = context.file_read_as_string(&path).await else { return Ok(None) };
        let profile = self.profile.clone().unwrap_or_else(|| chosen(context));
        let Some(session) = value(&config, &profile, "sso_session") else { return Ok(None) };
        let section = format!("sso-session {session}");
        let wanted = |section: &str, key: &str| {
            let missing = || Error::config_invalid(format!("{path}: [{section}] has no {key}"));
            value(&config, section, key).map(str::to_owned).ok_or_else(missing)
        };
        let provider = SSOCredentialProvider::new()
            .with_account_id(wanted(&profile, "sso_account_id")?)
            .with_role_name(wanted(&profile, "sso_role_name")?)
            .with_region(wanted(&section, "sso_region")?)
            // The file of the token is called by it; that of a session by the session's name.
            .with_start_url(session);
        provider.provide_credential(context).await
    }
}
