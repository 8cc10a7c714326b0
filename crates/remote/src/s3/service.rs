//! Which interface a store has.

/// The services whose objects can be read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Service {
    /// Amazon S3, and stores that are compatible with it.
    #[default]
    S3,
    /// Google Cloud Storage, by its XML interface.
    Google,
    /// Azure Blob Storage; a bucket is a container there.
    Azure,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    /// What stands before the colon of a name, and what its driver is called.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    /// The service whose objects are called so.
    pub fn of_name(name: &str) -> Option<Self> {
        name.split_once(':').and_then(|(scheme, _)| Self::of_scheme(scheme))
    }

    /// The service of this scheme.
    pub fn of_scheme(scheme: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.scheme() == scheme)
    }

    /// The field in which an object keeps which upload made it.
    pub(crate) fn upload_field(self) -> &'static str {
        let [s3, google, azure] = wire::http::UPLOAD_FIELDS;
        match self {
            Self::S3 => s3,
            Self::Google => google,
            Self::Azure => azure,
        }
    }

    /// Characters of a bucket's name at most.
    pub(crate) fn bucket_max(self) -> usize {
        match self {
            Self::S3 | Self::Azure => 63,
            // With dots it is the name of a domain.
            Self::Google => 222,
        }
    }

    /// Whether it answers that a condition is not met where an upload in parts ends. Google's interface takes none there.
    pub(crate) fn has_conditions_for_parts(self) -> bool {
        self != Self::Google
    }
}
