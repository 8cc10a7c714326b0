//! Signatures on requests.

use std::sync::Arc;

use http::request::Parts;
use memory::secret::Secret;
use parking_lot::Mutex;
use reqsign_core::{Context, SignRequest};
use wire::http::{Fields, Payload, Request};

use crate::http::{Authorization, Authorize, Authorizing, Error};
use crate::s3::credentials::{Source, aws, azure, google};
use crate::s3::known::{Environment, KnownError};
use crate::s3::service::Service;

/// What S3 takes for the hash of a body that the connection protects.
const UNSIGNED_BODY: &str = "UNSIGNED-PAYLOAD";
/// The hash of a body that is empty.
const EMPTY_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// The version of Azure's interface that requests are written for.
const AZURE_VERSION: &str = "2021-12-02";

/// Credentials for one service. Clones are renewed together.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// Of AWS, or of a store like S3.
    S3(Arc<Source<reqsign_aws_v4::Credential>>),
    /// Of Google.
    Google(Arc<Source<reqsign_google::Token>>),
    /// Of Azure.
    Azure(Arc<Source<reqsign_azure_storage::Credential>>),
}

impl Credentials {
    /// Those that a secret holds, or those that `environment` leads to. Nothing is read yet.
    ///
    /// # Errors
    /// When the secret holds something else.
    pub fn new(
        service: Service,
        environment: Environment,
        secret: Option<&Secret>,
    ) -> Result<Self, KnownError> {
        Ok(match service {
            Service::S3 => Self::S3(Arc::new(aws(environment, secret)?)),
            Service::Google => Self::Google(Arc::new(google(environment, secret)?)),
            Service::Azure => Self::Azure(Arc::new(azure(environment, secret)?)),
        })
    }

    /// Those that the environment of this process leads to: one for all stores of the service.
    pub fn of_process(service: Service) -> Self {
        static SHARED: Mutex<Vec<(Service, Credentials)>> = Mutex::new(Vec::new());
        let mut shared = SHARED.lock();
        if let Some((_, found)) = shared.iter().find(|(known, _)| *known == service) {
            match found {
                Self::S3(source) => source.look_again(),
                Self::Google(source) => source.look_again(),
                Self::Azure(source) => source.look_again(),
            }
            return found.clone();
        }
        // Only a secret can be wrong.
        let new = Self::new(service, Environment::of_process(), None).unwrap_or(Self::none(service));
        shared.push((service, new.clone()));
        new
    }

    /// None: requests are not signed.
    pub fn none(service: Service) -> Self {
        match service {
            Service::S3 => Self::S3(Arc::new(Source::empty())),
            Service::Google => Self::Google(Arc::new(Source::empty())),
            Service::Azure => Self::Azure(Arc::new(Source::empty())),
        }
    }
}

/// Signs requests for objects; without credentials, leaves them as they are.
#[derive(Debug)]
pub struct Signer {
    credentials: Credentials,
    s3: reqsign_aws_v4::RequestSigner,
    azure: reqsign_azure_storage::RequestSigner,
}

impl Signer {
    /// For a store in `region`.
    pub fn new(credentials: Credentials, region: &str) -> Self {
        let s3 = reqsign_aws_v4::RequestSigner::new("s3", region);
        Self { credentials, s3, azure: reqsign_azure_storage::RequestSigner::new() }
    }

    async fn signed(&self, request: &Request<'_>) -> Result<Authorization, String> {
        match &self.credentials {
            Credentials::S3(source) => match source.get().await? {
                None => Ok(Authorization::default()),
                Some(found) => {
                    let body = match request.payload {
                        Payload::Nothing => EMPTY_BODY,
                        Payload::Hashed { hash, .. } => hash,
                        Payload::Unsigned { .. } => UNSIGNED_BODY,
                    };
                    let own = [("x-amz-content-sha256", body.to_owned())];
                    sign(&self.s3, source.context(), Some(&found), request, &own).await
                }
            },
            Credentials::Google(source) => {
                let mut fields = Fields::default();
                if let Some(token) = source.get().await? {
                    let value = format!("Bearer {}", token.access_token);
                    fields.add("Authorization", value).map_err(|error| error.to_string())?;
                }
                Ok(Authorization { fields, query: None })
            }
            Credentials::Azure(source) => {
                let (found, mut own) =
                    (source.get().await?, vec![("x-ms-version", AZURE_VERSION.to_owned())]);
                if !request.payload.is_empty() {
                    // The connection says it, and the signature covers it.
                    own.push(("content-length", request.payload.len().to_string()));
                }
                sign(&self.azure, source.context(), found.as_ref(), request, &own).await
            }
        }
    }
}

impl Authorize for Signer {
    fn authorize<'a>(&'a self, request: &'a Request<'a>) -> Authorizing<'a> {
        Box::pin(async move {
            let signed = self.signed(request).await;
            signed.map_err(|reason| Error::Credentials { url: request.url.clone(), reason })
        })
    }

    /// A signature is for one server.
    fn follows_redirects(&self) -> bool {
        false
    }
}

/// What a signature adds to a request, and to the fields `own` that it has besides.
async fn sign<S: SignRequest>(
    signer: &S,
    context: &Context,
    credential: Option<&S::Credential>,
    request: &Request<'_>,
    own: &[(&'static str, String)],
) -> Result<Authorization, String> {
    let mut parts = parts(request, own)?;
    let (before, known) = (parts.uri.to_string(), parts.headers.clone());
    signer.sign_request(context, &mut parts, credential, None).await.map_err(|error| error.to_string())?;
    let mut fields = Fields::default();
    for (name, value) in &parts.headers {
        let is_new = !known.contains_key(name) || own.iter().any(|(own, _)| name == own);
        if is_new && name != http::header::CONTENT_LENGTH {
            let text = String::from_utf8_lossy(value.as_bytes());
            fields.add(name.as_str(), text).map_err(|error| error.to_string())?;
        }
    }
    let after = parts.uri.to_string();
    let query = after.strip_prefix(&before).map(|added| added.trim_start_matches(['?', '&']));
    let query = query.filter(|added| !added.is_empty()).map(|added| Secret::copy_of(added.as_bytes()));
    Ok(Authorization { fields, query })
}

/// A request as reqsign has it.
fn parts(request: &Request<'_>, own: &[(&'static str, String)]) -> Result<Parts, String> {
    let uri = format!("{}{}", request.url.origin(), request.url.target());
    let mut builder = http::Request::builder().method(request.method).uri(uri);
    for (name, value) in
        request.signed().iter().chain(own.iter().map(|(name, value)| (*name, value.as_str())))
    {
        builder = builder.header(name, value);
    }
    builder.body(()).map(|request| request.into_parts().0).map_err(|error| error.to_string())
}
