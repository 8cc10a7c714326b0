//! Where an object is.

use wire::http::hash::escaped;
use wire::http::{Scheme, Url, UrlError};

use crate::s3::name::ObjectName;
use crate::s3::service::Service;

/// How a bucket is named in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// In the path: `https://ENDPOINT/BUCKET/KEY`.
    Path,
    /// In the host's name: `https://BUCKET.ENDPOINT/KEY`.
    VirtualHost,
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its service.
    pub service: Service,
    /// Its URL; `None`: AWS's in the region, or Google's. At Azure a path is part of it.
    pub endpoint: Option<String>,
    /// The region, which signatures are for.
    pub region: String,
    /// `None`: in the host's name at AWS where the bucket's name allows it, else in the path.
    pub addressing: Option<Addressing>,
}

/// A store that cannot be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The endpoint is no server.
    #[error("the endpoint is {found:?}; allowed: {allowed}, without a path")]
    Endpoint {
        /// Without the credentials that a name can hold.
        found: String,
        /// What it may be.
        allowed: UrlError,
    },
    /// The region is no word.
    #[error("the region is {found:?}; allowed: letters, digits and dashes")]
    Region {
        /// As given.
        found: String,
    },
}

impl Place {
    /// The URL of an object.
    ///
    /// # Errors
    /// When endpoint or region cannot be one.
    pub fn url(&self, object: &ObjectName) -> Result<Url, PlaceError> {
        self.at(&object.bucket, &escaped(&object.key, true))
    }

    /// The URL of a bucket as a whole, for lists of what is in it. Its name must be one.
    pub(crate) fn bucket_url(&self, bucket: &str) -> Result<Url, PlaceError> {
        self.at(bucket, "")
    }

    fn at(&self, bucket: &str, key: &str) -> Result<Url, PlaceError> {
        let server = self.server()?;
        let mut origin = server.origin().clone();
        let at_aws = self.service == Service::S3 && self.endpoint.is_none();
        // A certificate for *.HOST is for names without dots.
        let fits = !bucket.contains('.') || origin.scheme == Scheme::Http;
        let by_default = if at_aws && fits { Addressing::VirtualHost } else { Addressing::Path };
        Ok(match self.addressing.unwrap_or(by_default) {
            Addressing::Path => {
                let base = server.path().trim_end_matches('/');
                let slash = if key.is_empty() { "" } else { "/" };
                Url::at(origin, &format!("{base}/{bucket}{slash}{key}"))
            }
            Addressing::VirtualHost => {
                origin.host = format!("{}.{}", bucket.to_ascii_lowercase(), origin.host);
                Url::at(origin, &format!("/{key}"))
            }
        })
    }

    /// How it is spoken to.
    ///
    /// # Errors
    /// When endpoint or region cannot be one.
    pub fn scheme(&self) -> Result<Scheme, PlaceError> {
        self.server().map(|server| server.origin().scheme)
    }

    fn server(&self) -> Result<Url, PlaceError> {
        let is_of_region = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if self.region.is_empty() || !self.region.bytes().all(is_of_region) {
            return Err(PlaceError::Region { found: self.region.clone() });
        }
        let own = || match self.service {
            Service::S3 => format!("https://s3.{}.amazonaws.com", self.region),
            Service::Google => "https://storage.googleapis.com".to_owned(),
            // It is always given, and names the account.
            Service::Azure => String::new(),
        };
        let endpoint = self.endpoint.clone().unwrap_or_else(own);
        let refused = |allowed| PlaceError::Endpoint { found: wire::http::shown(&endpoint), allowed };
        let server = Url::parse(&endpoint).map_err(refused)?;
        let has_path = server.path() != "/" && self.service != Service::Azure;
        if has_path || server.query().is_some() {
            return Err(refused(UrlError::Shape));
        }
        Ok(server)
    }
}

/// The endpoint of an account of Azure's.
pub fn azure_endpoint(account: &str) -> String {
    format!("https://{account}.blob.core.windows.net")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_at_aws_or_at_an_endpoint_in_both_styles() {
        let url = |endpoint: Option<&str>, addressing, name: &str| {
            let (name, endpoint) = (ObjectName::parse(name).unwrap(), endpoint.map(str::to_owned));
            let place = Place { service: name.service, endpoint, region: "eu-central-1".into(), addressing };
            place.url(&name).map(|url| url.to_string()).map_err(|error| error.to_string())
        };
        for (endpoint, addressing, name, found) in [
            (None, None, "s3://images/a b", "https://images.s3.eu-central-1.amazonaws.com/a%20b"),
            (None, None, "s3://im.ages/a", "https://s3.eu-central-1.amazonaws.com/im.ages/a"),
            (None, Some(Addressing::Path), "s3://images/a", "https://s3.eu-central-1.amazonaws.com/images/a"),
            (Some("http://h:9000"), None, "s3://images/a/b", "http://h:9000/images/a/b"),
            (None, None, "gs://images/a b", "https://storage.googleapis.com/images/a%20b"),
            (Some("http://h:1/me"), None, "az://images/a", "http://h:1/me/images/a"),
            (
                Some("https://me.blob.core.windows.net"),
                None,
                "az://images/a/b",
                "https://me.blob.core.windows.net/images/a/b",
            ),
            (
                Some("http://h:9000/"),
                Some(Addressing::VirtualHost),
                "s3://images/a",
                "http://images.h:9000/a",
            ),
        ] {
            assert_eq!(url(endpoint, addressing, name), Ok(found.to_owned()));
        }
        for endpoint in ["h:9000", "http://h/path", "http://me:hush@h/"] {
            let error = url(Some(endpoint), None, "s3://images/a").unwrap_err();
            assert!(error.contains("the endpoint is") && !error.contains("hush"), "{error}");
        }
    }
}
