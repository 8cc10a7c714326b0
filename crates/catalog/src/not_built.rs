//! Drivers of which a build has only the names, because it lacks their features: what they are asked for is refused, and messages show no
//! credentials.

/// File names that the drivers take, in builds with and without them.
pub(super) mod prefixes {
    pub(crate) const AZ: &[&str] = &["az:"];
    pub(crate) const CHUNKED: &[&str] = &["chunked:"];
    pub(crate) const GS: &[&str] = &["gs:"];
    pub(crate) const HTTP: &[&str] = &["http:"];
    pub(crate) const HTTPS: &[&str] = &["https:"];
    pub(crate) const NBD: &[&str] = &["nbd:", "nbd+tcp:", "nbd+unix:", "nbds:", "nbds+tcp:", "nbds+unix:"];
    pub(crate) const RBD: &[&str] = &["rbd:"];
    pub(crate) const S3: &[&str] = &["s3:"];
}

/// The driver that a build without the feature has.
macro_rules! absent {
    ($constant:ident, $name:literal, $feature:literal) => {
        #[cfg(not(feature = $feature))]
        pub(super) const $constant: graph::drivers::StorageDriver = graph::drivers::StorageDriver {
            name: $name,
            prefixes: prefixes::$constant,
            kind: graph::drivers::StorageKind::Elsewhere(graph::drivers::Elsewhere {
                specs: Vec::new,
                // What they are does not matter: it is refused as a whole.
                options_of: |_| Ok(graph::drive::OptionTree::default()),
                shown: |name| memory::secret::without_credentials(name).into_owned(),
                read: |_| Err(graph::options::OptionError::NotBuilt { driver: $name, feature: $feature }),
                is_within_process: false,
            }),
        };
    };
}

absent!(AZ, "az", "s3");
absent!(CHUNKED, "chunked", "s3");
absent!(GS, "gs", "s3");
absent!(HTTP, "http", "http");
absent!(HTTPS, "https", "http");
absent!(NBD, "nbd", "nbd");
absent!(RBD, "rbd", "rbd");
absent!(S3, "s3", "s3");
