//! Credentials for Google Cloud Storage, from where Google's tools look for them.

use memory::secret::Secret;
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, ProvideCredential, Result};
use reqsign_google::{
    Credential, EnvCredentialProvider, ServiceAccountTokenCredentialProvider, StaticCredentialProvider,
    Token, VmMetadataCredentialProvider, WellKnownCredentialProvider,
};

use super::context::context;
use super::{Ending, Provider, Source};
use crate::s3::known::{Environment, KnownError};

impl Ending for Token {
    fn ends(&self) -> Option<Timestamp> {
        self.expires_at
    }
}

/// What a secret holds, or what `environment` leads to: the file `GOOGLE_APPLICATION_CREDENTIALS` (of a service account, a user, another
/// cloud's identity), gcloud's file, and at last the machine's metadata.
///
/// # Errors
/// When the secret is no text.
pub fn google(
    environment: Environment,
    secret: Option<&Secret>,
) -> std::result::Result<Source<Token>, KnownError> {
    let context = context(environment);
    if let Some(secret) = secret {
        let text = std::str::from_utf8(secret.bytes()).map_err(|_| KnownError::GoogleSecret)?;
        if !text.trim_start().starts_with('{') {
            return Err(KnownError::GoogleSecret);
        }
        let provider = StaticCredentialProvider::new(text);
        return Ok(Source::new(context, vec![Provider::new("the secret", Tokens(provider))]));
    }
    let providers = vec![
        Provider::new("GOOGLE_APPLICATION_CREDENTIALS", Tokens(EnvCredentialProvider::new())),
        Provider::new("gcloud's credentials", Tokens(WellKnownCredentialProvider::new())),
        Provider::guess("the machine's metadata", Tokens(VmMetadataCredentialProvider::new())),
    ];
    Ok(Source::new(context, providers))
}

/// Tokens of what a provider has: a service account's key is exchanged for one.
#[derive(Debug)]
struct Tokens<P>(P);

impl<P: ProvideCredential<Credential = Credential>> ProvideCredential for Tokens<P> {
    type Credential = Token;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Token>> {
        let Some(credential) = self.0.provide_credential(context).await? else { return Ok(None) };
        let credential = match (credential.token, credential.service_account) {
            (None, Some(account)) => {
                let exchanged = ServiceAccountTokenCredentialProvider::new(account);
                exchanged.provide_credential(context).await?.and_then(|credential| credential.token)
            }
            (token, _) => token,
        };
        credential.map(Some).ok_or_else(|| Error::credential_invalid("there is no token in it"))
    }
}
