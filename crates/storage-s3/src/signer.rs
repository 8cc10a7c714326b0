//! Signatures on requests.

use std::time::{SystemTime, UNIX_EPOCH};

use http_wire::signature::{self, Credentials, EMPTY_BODY, Scope, UNSIGNED_BODY, authorization, timestamp};
use http_wire::{FieldError, Fields, Payload, Request};
use storage_http::Authorize;

/// Signs requests for objects; without credentials, leaves them as they are.
#[derive(Debug)]
pub struct Signer {
    credentials: Option<Credentials>,
    region: String,
}

impl Signer {
    /// For a store in `region`.
    pub fn new(credentials: Option<Credentials>, region: String) -> Self {
        Self { credentials, region }
    }
}

impl Authorize for Signer {
    fn fields(&self, request: &Request<'_>, now: SystemTime) -> Result<Fields, FieldError> {
        let mut fields = Fields::default();
        let Some(credentials) = &self.credentials else { return Ok(fields) };
        let now_s = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let body_hash = match request.payload {
            Payload::Nothing => EMPTY_BODY,
            Payload::Hashed { hash, .. } => hash,
            Payload::Unsigned { .. } => UNSIGNED_BODY,
        };
        fields.add("x-amz-content-sha256", body_hash)?;
        fields.add("x-amz-date", timestamp(now_s))?;
        if let Some(token) = &credentials.session_token {
            fields.add("x-amz-security-token", String::from_utf8_lossy(token.bytes()))?;
        }
        let own = request.signed();
        let query = request.url.query().unwrap_or_default();
        let (method, path) = (request.method, request.url.path());
        let signed = signature::Request { method, path, query, body_hash };
        let scope = Scope { region: &self.region, service: "s3", now_s };
        let value = authorization(&signed, own.iter().chain(fields.iter()), credentials, &scope);
        fields.add("Authorization", value)?;
        Ok(fields)
    }

    /// A signature is for one server.
    fn follows_redirects(&self) -> bool {
        false
    }
}
