//! What a request brings to be authorised.

use std::fmt;
use std::time::SystemTime;

use http_wire::{FieldError, Fields, Request, basic_authorization};
use secret::Secret;

/// What knows credentials.
pub trait Authorize: fmt::Debug + Send + Sync {
    /// The fields that this request needs besides its own, sent at `now`.
    ///
    /// # Errors
    /// When what is known fits into no field.
    fn fields(&self, request: &Request<'_>, now: SystemTime) -> Result<Fields, FieldError>;

    /// Whether a request may be sent to where an answer says.
    fn follows_redirects(&self) -> bool {
        true
    }
}

/// The same fields for each request: a cookie, user and password.
#[derive(Debug, Default)]
pub struct Fixed {
    cookie: Option<Secret>,
    authorization: Option<Secret>,
}

impl Fixed {
    /// With a cookie (`NAME=VALUE`), and a user and a password (RFC 7617).
    pub fn new(cookie: Option<Secret>, login: Option<(&str, &Secret)>) -> Self {
        let authorization = login.map(|(user, password)| basic_authorization(user, password.bytes()));
        Self { cookie, authorization }
    }
}

impl Authorize for Fixed {
    fn fields(&self, _request: &Request<'_>, _now: SystemTime) -> Result<Fields, FieldError> {
        let mut fields = Fields::default();
        for (name, value) in [("Cookie", &self.cookie), ("Authorization", &self.authorization)] {
            if let Some(value) = value {
                let text = std::str::from_utf8(value.bytes());
                fields.add(name, text.map_err(|_| FieldError { name: name.to_owned() })?)?;
            }
        }
        Ok(fields)
    }
}
