//! A role that a profile of AWS's tools names by `role_arn`, and what it is assumed with.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;

use reqsign_aws_v4::{
    AssumeRoleCredentialProvider, AssumeRoleWithWebIdentityCredentialProvider, Credential,
    ECSCredentialProvider, EnvCredentialProvider, IMDSv2CredentialProvider, ProcessCredentialProvider,
    ProfileCredentialProvider, RequestSigner, SSOCredentialProvider, StaticCredentialProvider,
};
use reqsign_core::{Context, Error, ProvideCredential, ProvideCredentialDyn, Result, Signer};

use super::aws::SsoSession;
use crate::s3::profile::value;

/// Where requests for a role are signed for if no region is named.
const REGION_DEFAULT: &str = "us-east-1";

/// The name of the sessions, unless the profile has one.
const SESSION_NAME: &str = "cowhand";

/// Roles one behind another.
const ROLES_MAX: usize = 8;

type Credentials<'a> = Pin<Box<dyn Future<Output = Result<Credential>> + Send + 'a>>;

/// The role of the profile that is chosen (`AWS_PROFILE`).
#[derive(Debug)]
pub(super) struct RoleOfProfile;

impl ProvideCredential for RoleOfProfile {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        let profiles = Profiles::read(context).await;
        let profile = chosen(context);
        match profiles.setting(&profile, "role_arn") {
            Some(_) => profiles.role(context, &profile, &[]).await.map(Some),
            None => Ok(None),
        }
    }
}

/// The profile that is chosen.
pub(super) fn chosen(context: &Context) -> String {
    context.env_var("AWS_PROFILE").unwrap_or_else(|| "default".to_owned())
}

/// The place of a file of AWS's tools: `variable`, or `name` in `~/.aws`.
pub(super) fn path_of(context: &Context, variable: &str, name: &str) -> Option<PathBuf> {
    let at_home = || Some(context.home_dir()?.join(".aws").join(name));
    context.env_var(variable).map(PathBuf::from).or_else(at_home)
}

/// Both files of profiles; one that is not there is empty.
struct Profiles {
    credentials: String,
    config: String,
}

impl Profiles {
    async fn read(context: &Context) -> Self {
        let text = async |variable: &str, name: &str| {
            let path = path_of(context, variable, name)?;
            context.file_read_as_string(path.to_str()?).await.ok()
        };
        Self {
            credentials: text("AWS_SHARED_CREDENTIALS_FILE", "credentials").await.unwrap_or_default(),
            config: text("AWS_CONFIG_FILE", "config").await.unwrap_or_default(),
        }
    }

    fn setting(&self, profile: &str, key: &str) -> Option<&str> {
        let of = |text| value(text, profile, key).filter(|value| !value.is_empty());
        of(&self.credentials).or_else(|| of(&self.config))
    }

    /// Assumes the role of `profile`, for the roles of the profiles `above` it.
    fn role<'a>(&'a self, context: &'a Context, profile: &'a str, above: &'a [&'a str]) -> Credentials<'a> {
        Box::pin(async move {
            let setting = |key: &str| self.setting(profile, key);
            let wrong = |what: String| Error::config_invalid(format!("profile {profile:?}: {what}"));
            if above.contains(&profile) || above.len() >= ROLES_MAX {
                return Err(wrong(format!(
                    "source_profile leads through {}: in a circle, or through more than {ROLES_MAX} roles",
                    above.join(", ")
                )));
            }
            if setting("mfa_serial").is_some() {
                let what = "mfa_serial asks for a code that a person types; use credential_process with a tool that asks for it";
                return Err(wrong(what.to_owned()));
            }
            let role = setting("role_arn").unwrap_or_default().to_owned();
            let seconds = setting("duration_seconds").map(|text| {
                text.parse().map_err(|_| wrong(format!("duration_seconds is {text:?}; allowed: a number")))
            });
            let request = Assumed {
                role,
                session: setting("role_session_name").unwrap_or(SESSION_NAME).to_owned(),
                external_id: setting("external_id").map(str::to_owned),
                seconds: seconds.transpose()?,
                region: setting("region")
                    .map(str::to_owned)
                    .or_else(|| context.env_var("AWS_REGION"))
                    .or_else(|| context.env_var("AWS_DEFAULT_REGION")),
            };
            if let Some(token) = setting("web_identity_token_file") {
                return request.by_token(context, token).await;
            }
            let source = match (setting("source_profile"), setting("credential_source")) {
                (Some(source), None) => self.source(context, source, (profile, above)).await?,
                (None, Some(source)) => {
                    of_place(context, source).await.map_err(|error| wrong(error.to_string()))?
                }
                (Some(_), Some(_)) => {
                    return Err(wrong(
                        "it has source_profile and credential_source; allowed: one".to_owned(),
                    ));
                }
                (None, None) => {
                    let what = "it has role_arn, and none of source_profile, credential_source and web_identity_token_file";
                    return Err(wrong(what.to_owned()));
                }
            };
            request.by(context, &source).await
        })
    }

    /// The credentials of `source`, which the role of `profile` is assumed with.
    async fn source(
        &self,
        context: &Context,
        source: &str,
        (profile, above): (&str, &[&str]),
    ) -> Result<Credential> {
        // A profile that names itself has keys beside its role.
        if source != profile && self.setting(source, "role_arn").is_some() {
            return self.role(context, source, &[above, &[profile]].concat()).await;
        }
        let places: [Box<dyn ProvideCredentialDyn<Credential = Credential>>; 4] = [
            Box::new(ProfileCredentialProvider::new().with_profile(source)),
            Box::new(SsoSession::of(source)),
            Box::new(SSOCredentialProvider::new().with_profile(source)),
            Box::new(ProcessCredentialProvider::new().with_profile(source)),
        ];
        for place in places {
            if let Some(found) = place.provide_credential_dyn(context).await? {
                return Ok(found);
            }
        }
        Err(Error::config_invalid(format!(
            "profile {profile:?} has source_profile = {source}, and that has no keys, SSO, credential_process or role_arn"
        )))
    }
}

/// Credentials of a place that `credential_source` names.
async fn of_place(context: &Context, place: &str) -> Result<Credential> {
    let found = match place {
        "Environment" => EnvCredentialProvider::new().provide_credential(context).await,
        "Ec2InstanceMetadata" => IMDSv2CredentialProvider::new().provide_credential(context).await,
        "EcsContainer" => ECSCredentialProvider::new().provide_credential(context).await,
        _ => {
            let allowed = "Environment, Ec2InstanceMetadata, EcsContainer";
            return Err(Error::config_invalid(format!("credential_source is {place}; allowed: {allowed}")));
        }
    };
    found?.ok_or_else(|| Error::config_invalid(format!("credential_source = {place} has no credentials")))
}

/// What is requested of the service that gives credentials of roles.
struct Assumed {
    role: String,
    session: String,
    external_id: Option<String>,
    seconds: Option<u32>,
    /// Whose service is asked; the global one without.
    region: Option<String>,
}

impl Assumed {
    async fn by(self, context: &Context, source: &Credential) -> Result<Credential> {
        let keys = StaticCredentialProvider::new(&source.access_key_id, &source.secret_access_key);
        let keys = match &source.session_token {
            Some(token) => keys.with_session_token(token),
            None => keys,
        };
        let signed_for = RequestSigner::new("sts", self.region.as_deref().unwrap_or(REGION_DEFAULT));
        let signer = Signer::new(context.clone(), keys, signed_for);
        let mut provider =
            AssumeRoleCredentialProvider::new(self.role, signer).with_role_session_name(self.session);
        if let Some(id) = self.external_id {
            provider = provider.with_external_id(id);
        }
        if let Some(seconds) = self.seconds {
            provider = provider.with_duration_seconds(seconds);
        }
        if let Some(region) = self.region {
            provider = provider.with_region(region).with_regional_sts_endpoint();
        }
        given(provider.provide_credential(context).await)
    }

    async fn by_token(self, context: &Context, token: &str) -> Result<Credential> {
        let mut provider =
            AssumeRoleWithWebIdentityCredentialProvider::with_config(self.role, PathBuf::from(token))
                .with_role_session_name(self.session);
        if let Some(seconds) = self.seconds {
            provider = provider.with_duration_seconds(seconds);
        }
        if let Some(region) = self.region {
            provider = provider.with_region(region).with_regional_sts_endpoint();
        }
        given(provider.provide_credential(context).await)
    }
}

fn given(found: Result<Option<Credential>>) -> Result<Credential> {
    found?.ok_or_else(|| Error::unexpected("the service that assumes roles gave no credentials"))
}
