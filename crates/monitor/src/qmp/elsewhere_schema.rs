//! What blockdev-add takes of disks on servers.

use catalog::{
    AZ_OPTIONS, CHUNKED_OPTIONS, GS_OPTIONS, HTTP_OPTIONS, HTTPS_OPTIONS, NBD_OPTIONS, RBD_OPTIONS,
    S3_OPTIONS,
};
use control::{Argument, Kind, Variant, optional, required};

use super::node_options::{count, members};

static NBD_SERVER_MEMBERS: [Argument; count(NBD_OPTIONS, "server")] = members([], NBD_OPTIONS, "server");
/// Of `nbd`.
pub static NBD_MEMBERS: [Argument; 1 + count(NBD_OPTIONS, "")] =
    members([optional("server", Kind::Object(&NBD_SERVER_MEMBERS))], NBD_OPTIONS, "");

/// Of `http`.
pub static HTTP_MEMBERS: [Argument; count(HTTP_OPTIONS, "")] = members([], HTTP_OPTIONS, "");
/// Of `https`.
pub static HTTPS_MEMBERS: [Argument; count(HTTPS_OPTIONS, "")] = members([], HTTPS_OPTIONS, "");
/// Of `s3`.
pub static S3_MEMBERS: [Argument; count(S3_OPTIONS, "")] = members([], S3_OPTIONS, "");
/// Of `gs`.
pub static GS_MEMBERS: [Argument; count(GS_OPTIONS, "")] = members([], GS_OPTIONS, "");
/// Of `az`.
pub static AZ_MEMBERS: [Argument; count(AZ_OPTIONS, "")] = members([], AZ_OPTIONS, "");
/// Of `chunked`.
pub static CHUNKED_MEMBERS: [Argument; count(CHUNKED_OPTIONS, "")] = members([], CHUNKED_OPTIONS, "");

/// A monitor of a Ceph cluster.
static RBD_SERVER: Kind = Kind::Object(&[required("host", Kind::Text), optional("port", Kind::Text)]);

/// How librbd encrypted an image, and what it is a clone of.
static RBD_ENCRYPTION: Kind = Kind::Union {
    tag: "format",
    common: &[optional("parent", Kind::Ref(&RBD_ENCRYPTION))],
    variants: &[
        Variant { tag: "luks", members: &[required("key-secret", Kind::Text)] },
        Variant { tag: "luks2", members: &[required("key-secret", Kind::Text)] },
        Variant { tag: "luks-any", members: &[required("key-secret", Kind::Text)] },
    ],
};

/// Of `rbd`.
pub static RBD_MEMBERS: [Argument; 3 + count(RBD_OPTIONS, "")] = members(
    [
        optional("server", Kind::List(&RBD_SERVER)),
        optional("encrypt", Kind::Ref(&RBD_ENCRYPTION)),
        optional("auth-client-required", Kind::List(&Kind::Choice(&["cephx", "none"]))),
    ],
    RBD_OPTIONS,
    "",
);
