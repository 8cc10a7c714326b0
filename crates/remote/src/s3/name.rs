//! `s3://BUCKET/KEY`, `gs://BUCKET/KEY`, `az://CONTAINER/KEY`.

use std::fmt;

use crate::s3::service::Service;

/// Bytes of a key at most, as S3 has it.
const KEY_BYTES_MAX: usize = 1024;

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectName {
    /// Whose.
    pub service: Service,
    /// The bucket.
    pub bucket: String,
    /// The key, as it is: slashes are part of it.
    pub key: String,
}

/// A name that means no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has another shape.
    #[error("s3://BUCKET/KEY, gs://BUCKET/KEY or az://CONTAINER/KEY")]
    Shape,
    /// No bucket is called so.
    #[error("a bucket of 3 to 63 letters, digits, dots and dashes")]
    Bucket,
    /// No key is so long, or has control characters, or parts that are no name in a path.
    #[error(
        "a key of 1 to {KEY_BYTES_MAX} bytes without control characters, and without . and .. between slashes"
    )]
    Key,
}

impl ObjectName {
    /// Reads `s3://BUCKET/KEY`, or the same with `gs` or `az`. The key is taken as it stands there, without escapes.
    ///
    /// # Errors
    /// When it is none; the message says what is allowed.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        let service = Service::of_name(name).ok_or(NameError::Shape)?;
        let rest = name.split_once("://").ok_or(NameError::Shape)?.1;
        let (bucket, key) = rest.split_once('/').ok_or(NameError::Shape)?;
        Self::new(service, bucket, key)
    }

    /// The object `key` of `bucket`.
    ///
    /// # Errors
    /// When one of them cannot be called so.
    pub fn new(service: Service, bucket: &str, key: &str) -> Result<Self, NameError> {
        let is_of_bucket = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if !(3..=service.bucket_max()).contains(&bucket.len())
            || !bucket.bytes().all(is_of_bucket)
            || bucket.contains("..")
        {
            return Err(NameError::Bucket);
        }
        let is_path = |key: &str| !key.split('/').any(|part| part == "." || part == "..");
        let is_key = !key.is_empty() && key.len() <= KEY_BYTES_MAX && !key.chars().any(char::is_control);
        if !is_key || !is_path(key) {
            return Err(NameError::Key);
        }
        Ok(Self { service, bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.service.scheme(), self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_bucket_and_a_key_with_slashes() {
        let name = ObjectName::parse("s3://images/debian/12 (new).qcow2").unwrap();
        assert_eq!((name.bucket.as_str(), name.key.as_str()), ("images", "debian/12 (new).qcow2"));
        assert_eq!(name.to_string(), "s3://images/debian/12 (new).qcow2");
        let name = ObjectName::parse("az://images/a/b").unwrap();
        assert_eq!((name.service, name.to_string().as_str()), (Service::Azure, "az://images/a/b"));
        for (name, error) in [
            ("s3:images/x", NameError::Shape),
            ("s4://images/x", NameError::Shape),
            ("gs:/images/x", NameError::Shape),
            ("s3://images", NameError::Shape),
            ("s3://images/", NameError::Key),
            ("s3://im/x", NameError::Bucket),
            ("s3://user:word@images/x", NameError::Bucket),
            ("s3://images/a/../b", NameError::Key),
            ("s3://images/a\nb", NameError::Key),
        ] {
            assert_eq!(ObjectName::parse(name), Err(error), "{name}");
        }
    }
}
