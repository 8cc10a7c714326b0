//! What a request brings to be authorised.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;

use memory::secret::Secret;
use wire::http::{FieldError, Fields, Request, basic_authorization};

use crate::http::errors::Error;

/// What a request brings besides its own fields.
#[derive(Debug, Default)]
pub struct Authorization {
    /// Fields.
    pub fields: Fields,
    /// What is added to the URL's query, escaped. It may be a signature: it is not shown.
    pub query: Option<Secret>,
}

/// An answer that may take requests of its own.
pub type Authorizing<'a> = Pin<Box<dyn Future<Output = Result<Authorization, Error>> + Send + 'a>>;

/// What knows credentials.
pub trait Authorize: fmt::Debug + Send + Sync {
    /// What this request needs, which is sent at once. Credentials that end are renewed.
    ///
    /// # Errors
    /// When what is known fits into no field, or there are no credentials any more.
    fn authorize<'a>(&'a self, request: &'a Request<'a>) -> Authorizing<'a>;

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

    fn fields(&self) -> Result<Fields, FieldError> {
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

impl Authorize for Fixed {
    fn authorize<'a>(&'a self, _request: &'a Request<'a>) -> Authorizing<'a> {
        let fields = self.fields().map_err(Error::from);
        Box::pin(ready(fields.map(|fields| Authorization { fields, query: None })))
    }
}
