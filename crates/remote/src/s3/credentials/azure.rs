//! Credentials for Azure Blob Storage, from where Azure's tools look for them.

use memory::secret::Secret;
use reqsign_azure_storage::{
    AzureCliCredentialProvider, ClientSecretCredentialProvider, Credential, EnvCredentialProvider,
    ImdsCredentialProvider, StaticCredentialProvider, WorkloadIdentityCredentialProvider,
};
use reqsign_core::time::Timestamp;

use super::context::context;
use super::{Ending, Provider, Source};
use crate::s3::known::{Environment, KnownError};

impl Ending for Credential {
    fn ends(&self) -> Option<Timestamp> {
        match self {
            Self::SharedKey { .. } => None,
            Self::SasToken { expires_at, .. } => *expires_at,
            Self::BearerToken { expires_in, .. } => *expires_in,
        }
    }
}

/// What a secret holds, or what `environment` leads to: variables (a key, a SAS token, a bearer token, a client's secret), a token of the
/// cluster, Azure's tool, and at last the machine's metadata.
///
/// # Errors
/// When the secret holds something else.
pub fn azure(environment: Environment, secret: Option<&Secret>) -> Result<Source<Credential>, KnownError> {
    let context = context(environment);
    if let Some(secret) = secret {
        return Ok(Source::new(context, vec![Provider::new("the secret", of_secret(secret)?)]));
    }
    let providers = vec![
        Provider::new("the environment", EnvCredentialProvider::new()),
        Provider::new("AZURE_CLIENT_SECRET", ClientSecretCredentialProvider::new()),
        Provider::new("AZURE_FEDERATED_TOKEN_FILE", WorkloadIdentityCredentialProvider::new()),
        Provider::guess("az account get-access-token", AzureCliCredentialProvider::new()),
        Provider::guess("the machine's metadata", ImdsCredentialProvider::new()),
    ];
    Ok(Source::new(context, providers))
}

/// The account that a secret names (`ACCOUNT:KEY`), if it does.
pub fn account(secret: &Secret) -> Option<&str> {
    let (account, _) = std::str::from_utf8(secret.bytes()).ok()?.split_once(':')?;
    (!account.contains('=')).then_some(account)
}

/// `ACCOUNT:KEY`, or a SAS token, with or without a line's end.
fn of_secret(secret: &Secret) -> Result<StaticCredentialProvider, KnownError> {
    let text = std::str::from_utf8(secret.bytes()).map_err(|_| KnownError::AzureSecret)?;
    let text = text.trim_end_matches(['\r', '\n']).trim_start_matches('?');
    match (account(secret), text.split_once(':')) {
        (Some(account), Some((_, key))) if !account.is_empty() && !key.is_empty() => {
            Ok(StaticCredentialProvider::new_shared_key(account, key))
        }
        _ if text.contains("sig=") => Ok(StaticCredentialProvider::new_sas_token(text)),
        _ => Err(KnownError::AzureSecret),
    }
}
